"""Problems: drawn, or read from the Hub or from files; checked. They come first: bad ones end the study at once."""


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
        "results/problems/{set}/problems.jsonl",
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
