"""Training: the runs, checkpoints that are kept along them, and the best one of each."""

import os
from pathlib import Path

from evals import generation, grading
from evals.core.files import canonical_json
from evals.core.run_spec import COMPONENT_FILE, VERIFIER_FILE, VERL, Execution
from rlvr.engines import local, option_versions, verl
from rlvr.methods.component_file import component_copy
from rlvr.study.job_sizes import devices, size, training_mb
from rlvr.study.rule_values import NO_NAME, one_of, options
from rlvr.study.study import TRAIN, VALIDATION

BY_VERL = STUDY.engine == VERL
LOCAL_VERSIONS = {"engine": local.VERSION, "sampler": generation.VERSION, "grader": grading.INTEGER_VERSION}
VERSIONS = {"engine": verl.VERSION, "grader": grading.VERSION} if BY_VERL else LOCAL_VERSIONS
COMPONENTS = {component_copy(file).parent.name: str(file) for file in STUDY.component_files}
BEST = r"[^/]+_best-s\d+" if BEST_CHOICE else NO_NAME
TRAINING_MINUTES = 2880 if BY_VERL or MACHINE.device == "cuda" else 720


@one_line_errors()
def spec(wildcards):
    """Everything that decides the outcome of a run: the content of its run.json."""
    return policy(wildcards.run).study.run_spec(wildcards.run)


def settings_of_run(wildcards):
    """The settings of a run, and the versions of everything that computes it."""
    run = spec(wildcards)
    return {**run.parameters(), "versions": VERSIONS | option_versions(run.training)}


def of_training(function):
    """Make a resource of a training job: of the study of a run that is trained, or along which a policy lies, and the run."""
    return lambda wildcards: function(policy(wildcards.run).study, policy(wildcards.run).trained.run)


def on_device(name):
    """Make the function of a resource of a training job."""
    return of_training(lambda study, run: devices(study, run)[name])


DEVICES = {name: on_device(name) for name in ("nodes", "gpu", "gres", "ray_cluster", "cpus_per_task")}
# Several nodes are a job's alone; other jobs keep what a profile's default-resources say by this key.
DEVICES |= {"slurm_extra": on_device("slurm_extra")} if BY_VERL and MACHINE.cluster.nodes > 1 else {}
MERGING = {"nodes": 1, "gpu": 0, "gres": "", "ray_cluster": 0, "cpus_per_task": 4}


def checkpoints_at(steps):
    """The options of the training command that keep checkpoints along the run."""
    return [word for step in steps for word in ("--checkpoints-at", str(step))]


def machine_options(wildcards, output):
    """The options of the training command that change no result. Threads are the study's: Snakemake's depend on --cores."""
    words = ["--threads", str(MACHINE.training_threads), *options(MACHINE, Execution)]
    if BY_VERL:
        words += ["--python", MACHINE.training_python] if MACHINE.training_python else []
        words += ["--cluster", canonical_json(policy(wildcards.run).study.cluster(wildcards.run))]
    return words


def grades_of_candidates(wildcards):
    """The grades by which the best checkpoint of a run is chosen."""
    candidates = [row.run.run for row in policy(wildcards.run).candidates]
    return expand("results/grades/{run}/{b}/manifest.json", run=candidates, b=BEST_CHOICE.benchmark)


rule copy_component:
    """A file of the user's with components, copied into the results, in a directory named after its bytes."""
    input:
        file=lambda w: COMPONENTS[w.digest],
    output:
        "results/components/{digest}/manifest.json",
        f"results/components/{{digest}}/{COMPONENT_FILE}",
    log:
        "results/logs/components/{digest}.log",
    wildcard_constraints:
        digest=one_of(COMPONENTS),
    priority: 200
    localrule: True
    params:
        call="rlvr.methods.component_file:copy_component",
    script:
        "../scripts/call.py"


rule train:
    """A run. Its outputs are small; state/ and checkpoint/ beside them are the trainer's own, which Snakemake leaves."""
    input:
        lambda w: f"results/base/{policy(w.run).run.base_model}/manifest.json",
        expand("results/problems/{set}/manifest.json", set=[set for set in PROBLEMS if set in (TRAIN, VALIDATION)]),
        [f"results/verifiers/{TRAIN}/{VERIFIER_FILE}"] if TRAIN in STUDY.verifiers else [],
        lambda w: [str(file.with_name("manifest.json")) for file in spec(w).component_files],
    output:
        "results/runs/{run}/manifest.json",
        "results/runs/{run}/metrics.parquet",
        run="results/runs/{run}/run.json",
    log:
        "results/logs/runs/{run}.log",
    benchmark:
        "results/costs/train/{run}.tsv"
    wildcard_constraints:
        run=rf"(?!{BEST}/)[^/]+",
    priority: lambda w: STUDIES.priority(w.run)  # every method's first seed comes before any method's second
    conda:
        TRAINING.conda
    container:
        TRAINING.container
    threads: MACHINE.training_threads
    resources:
        **size(of_training(training_mb), minutes=TRAINING_MINUTES) | DEVICES,
        tasks=0,  # the executor would ask for one task a GPU, where one process starts all others
    params:
        *made_by(settings_of_run, 70, lambda w: {f"results/runs/{w.run}/manifest.json": settings_of_run(w)}),
        content=lambda w, output: canonical_json(spec(w).to_json()),
        machine=machine_options,
        python=lambda w, output: TRAINING.python,
        kept=lambda w, output: checkpoints_at(STUDIES.kept_steps(w.run)),
    shell:
        "printf %s {params.content:q} > {output.run}; "
        "exec {params.python} -P -m rlvr train {output.run} {params.machine:q} {params.kept} > {log:q} 2>&1"


rule policy_at_step:
    """A checkpoint along a run. One that was not kept is made by repeating the run up to there."""
    input:
        "results/runs/{run}/manifest.json",
    output:
        "results/runs/{run}/checkpoints/step-{step}.kept",
    log:
        "results/logs/runs/{run}/checkpoints/step-{step}.log",
    benchmark:
        "results/costs/policies/{run}/step-{step}.tsv"
    wildcard_constraints:
        step=r"\d+",
    priority: lambda w: STUDIES.priority(w.run)
    conda:
        TRAINING.conda
    container:
        TRAINING.container
    threads: MACHINE.training_threads
    resources:
        **size(of_training(training_mb), TRAINING_MINUTES) | (MERGING if BY_VERL else DEVICES),  # verl's states are merged
        tasks=0,
    params:
        machine=machine_options,
        python=lambda w, output: TRAINING.python,
        kept=lambda w, output: checkpoints_at([w.step]),
    shell:
        "touch {output:q}; exec {params.python} -P -m rlvr train results/runs/{wildcards.run}/run.json {params.machine:q} "
        "{params.kept} > {log:q} 2>&1"


use rule policy_at_step as candidates with:  # the checkpoints along a run that the best one is chosen among, by one job
    output:
        "results/runs/{run}/candidates.kept",
    log:
        "results/logs/runs/{run}/candidates.log",
    benchmark:
        "results/costs/policies/{run}/candidates.tsv"
    params:
        lambda w: f"steps: {STUDIES.candidate_steps(w.run)}",
        machine=machine_options,
        python=lambda w, output: TRAINING.python,
        kept=lambda w, output: checkpoints_at(STUDIES.candidate_steps(w.run)),


rule best_policy:
    """The best checkpoint of a run, laid out as a run; checkpoint/ has its files, by hard links."""
    input:
        grades_of_candidates,
    output:
        "results/runs/{run}/manifest.json",
        "results/runs/{run}/metrics.parquet",
        "results/runs/{run}/chosen.json",
        "results/runs/{run}/chosen.manifest.json",
    log:
        "results/logs/runs/{run}.log",
    wildcard_constraints:
        run=BEST,
    localrule: True
    params:
        refusing(
            lambda w: {f"results/runs/{w.run}/chosen.json": {"from": [*map(os.path.dirname, grades_of_candidates(w))]}}
        ),
        call="rlvr.engines.result:choose_best",
        trained=lambda w, output: Path(f"results/runs/{policy(w.run).trained.run}"),
        candidates=lambda w, input: {
            str(row.step): str(Path(grades).parent)
            for row, grades in zip(policy(w.run).candidates, input, strict=True)
        },
    script:
        "../scripts/call.py"
