"""Problems: drawn, or read from the Hub or from files; checked. They come first: bad ones end the study at once."""

import os
from pathlib import Path

from evals.core.files import sha256_file
from evals.core.run_spec import VERIFIER_FILE
from evals.grading.code import VERIFIER_VERSION
from evals.problems.problem_set import NOT_OF_THE_CONTENT
from rlvr.study import machine
from rlvr.study.job_sizes import grading_mb, size
from rlvr.study.rule_values import one_of
from rlvr.study.study import TRAIN, TRAINING_PROBLEMS, VALIDATION

PROBLEMS = {TRAIN: STUDY.training_settings} if TRAINS else {}
PROBLEMS |= {VALIDATION: STUDY.validation_settings} if STUDY.validation_settings else {}
PROBLEMS |= {name: benchmark.problem_settings() for name, benchmark in STUDY.benchmarks.items()}
DRAWN = {name for name, settings in PROBLEMS.items() if "kinds" in settings}
READ_TRAINING_SET = "evals.problems.training_set:write_training_set"
TRAINED_ON = [TRAINING_PROBLEMS] if TRAINS else []
TRAINED_ON += expand("results/base/{model}/corpus.jsonl", model=STUDY.scratch_bases)
TRAINED_ON += [file for model in STUDY.fine_tuned_models for file in STUDY.solutions(model)]


def drawn(wildcards):
    """What decides drawn problems: the training problems are of the one side of the split, all others of the other."""
    split = "train" if wildcards.set == TRAIN else "evaluation"
    return {"name": wildcards.set, "split": split, **PROBLEMS[wildcards.set]}


def read_by(directory, sets):
    """The settings of sets that are read to a directory: their manifests have what they are, not where they lie."""

    def asked(wildcards):
        content = {key: value for key, value in sets[wildcards.set].items() if key not in NOT_OF_THE_CONTENT}
        sources = sources_of(filter(os.path.isfile, [sets[wildcards.set].get("path") or ""]))
        return {f"{directory}/{wildcards.set}/manifest.json": {**content, "sources": sources}}

    return made_by(lambda w: sets[w.set], 40, asked)


rule draw_problems:
    """Problems drawn from a seed, of the side of the split that they belong to."""
    output:
        "results/problems/{set}/manifest.json",
        "results/problems/{set}/problems.jsonl",
    log:
        "results/logs/problems/{set}.log",
    wildcard_constraints:
        set=one_of(DRAWN),
    priority: 200
    localrule: True
    params:
        *made_by(drawn, 40, lambda w: {f"results/problems/{w.set}/manifest.json": drawn(w)}),
        call="evals.problems.arithmetic:write_problems",
        arguments=lambda w, output: drawn(w),
    script:
        "../scripts/call.py"


rule read_problems:
    """A benchmark or a published training set, read from the Hub or from files."""
    input:
        lambda w: machine.files_of(PROBLEMS[w.set].get("path")),
    output:
        "results/problems/{set}/manifest.json",
        "results/problems/{set}/problems.jsonl",
    log:
        "results/logs/problems/{set}.log",
    wildcard_constraints:
        set=one_of(PROBLEMS.keys() - DRAWN),
    priority: 200
    localrule: True
    params:
        *read_by("results/problems", PROBLEMS),
        call=lambda w: READ_TRAINING_SET if w.set == TRAIN else "evals.problems.problem_set:write_benchmark",
        content=lambda w, output: PROBLEMS[w.set],
    script:
        "../scripts/call.py"


use rule read_problems as read_solutions with:  # a published set of worked solutions that a model is fine-tuned on
    input:
        lambda w: machine.files_of(STUDY.solution_settings[w.set].get("path")),
    output:
        "results/solutions/{set}/manifest.json",
        "results/solutions/{set}/problems.jsonl",
    log:
        "results/logs/solutions/{set}.log",
    wildcard_constraints:
        set=one_of(STUDY.solution_settings),
    localrule: True
    params:
        *read_by("results/solutions", STUDY.solution_settings),
        call=READ_TRAINING_SET,
        content=lambda w, output: STUDY.solution_settings[w.set],


rule try_verifier:
    """A user's function that grades: tried on the problems, and copied into the results."""
    input:
        file=lambda w: STUDY.verifiers[w.set],
        problems="results/problems/{set}/problems.jsonl",
    output:
        "results/verifiers/{set}/manifest.json",
        f"results/verifiers/{{set}}/{VERIFIER_FILE}",
    log:
        "results/logs/verifiers/{set}.log",
    wildcard_constraints:
        set=one_of(STUDY.verifiers),
    priority: 200
    resources:
        **size(grading_mb(workers=1), minutes=120),
    params:
        f"version: {VERIFIER_VERSION}",
        refusing(
            lambda w: {
                f"results/verifiers/{w.set}/manifest.json": {"sha256": lambda: sha256_file(STUDY.verifiers[w.set])}
            }
        ),
        call="evals.grading.grade_file:try_verifier",
    script:
        "../scripts/call.py"


rule check_disjoint:
    """The check that no problem of a benchmark is trained on; one a benchmark, so that another one touches nothing."""
    input:
        "results/problems/{set}/manifest.json",
        trained_on=TRAINED_ON,
    output:
        "results/problems/{set}/disjoint.json",
    log:
        "results/logs/problems/{set}/disjoint.log",
    wildcard_constraints:
        set=one_of(BENCHMARKS),
    priority: 200
    localrule: True
    params:
        call="evals.problems.disjoint:check_disjoint",
        benchmark=lambda w, input: Path(input[0]).parent,
    script:
        "../scripts/call.py"
