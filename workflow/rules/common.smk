"""What rules ask of the studies: what is compared in a folder, and the files that stand for it.

A folder is where a study's own results lie, below results/: "" or studies/NAME/, and within it looks/SEEDS/, steps/
and best/. Named inputs and params are the arguments of the function that a rule calls (workflow/scripts/call.py);
unnamed ones only make the job again when they change.
"""

from pathlib import Path

from rlvr.study.launch import end_jobs_on_termination, lift_job_rate
from rlvr.study.looks import announce_look
from rlvr.study.machine import OURS, check_machine, require_container, require_past, set_job_environment, software
from rlvr.study.notices import print_notices
from rlvr.study.rule_values import NO_NAME, by_setting, one_of, options, refuse_made_otherwise
from rlvr.study.source_files import code_of, template_files
from rlvr.study.studies import FOLDER

STUDY = STUDIES.main
CONFIG = STUDY.config
MACHINE = CONFIG.execution
BENCHMARKS = list(STUDY.benchmarks)
TRAINS = bool(STUDY.methods)
BEST_CHOICE = CONFIG.best_checkpoint
KEEPS_ROLLOUTS = TRAINS and MACHINE.rollouts_kept_every is not None

with one_line_errors():
    TRAINING, SAMPLING = software(STUDY, "training"), software(STUDY, "sampling")
    if workflow.is_main_process:
        check_machine(STUDY)
        require_container(workflow.deployment_settings.deployment_method, (TRAINING, SAMPLING))
        require_past(map(str, Path("results").rglob("*manifest.json")))
        print_notices(STUDIES.left(STUDY.folder), STUDIES.looks(STUDY.folder))
set_job_environment()


wildcard_constraints:
    folder=FOLDER,
    run="[^/]+",
    model=one_of(CONFIG.models),
    benchmark=one_of(BENCHMARKS),


def study_of(folder):
    """The whole study of a folder."""
    with one_line_errors():
        return STUDIES.study(folder)


def policy(run):
    """The checkpoint that a run id stands for."""
    with one_line_errors():
        return STUDIES.policy(run)[1]


TAKEN = [name for name, look in STUDIES.looks(STUDY.folder).items() if look.is_taken]
"""The looks whose decisions are known, of which the progress display has been told."""


def compared(folder):
    """The runs that are compared in a folder, after the looks before it."""
    with one_line_errors():
        looks = STUDIES.looks(folder)
        for name in looks:
            if name == folder:
                break
            if STUDIES.looks(folder)[name].is_due:  # by the decisions of the looks before, which are there by now
                checkpoints.look.get(folder=name)  # Snakemake asks again once its decisions are there
                if name not in TAKEN:
                    TAKEN.append(name)
                    announce_look(STUDIES.left(folder), STUDIES.looks(folder), logger)
        return STUDIES.compared(folder)


def of_runs(pattern, trained=False):
    """Make an input function: the files of every run of the folder, or of those that were trained."""

    def files(wildcards):
        runs = [row.run for row in compared(wildcards.folder) if not trained or row.seed is not None]
        benchmarks = [wildcards.benchmark] if hasattr(wildcards, "benchmark") else BENCHMARKS
        return expand(pattern, run=runs, b=benchmarks if "{b}" in pattern else [""])

    return files


def made(folder):
    """Every file of a folder up to its comparisons.

    Snakemake does not make a lost file again while what was made from it is there. So targets list them all.
    """
    runs = [policy(row.run) for row in compared(folder)]
    runs += [candidate for row in runs for candidate in row.candidates]
    files = {row.file for row in runs}
    files |= {f"results/base/{row.run.model}/manifest.json" for row in runs}
    files |= {f"results/runs/{row.trained.run}/manifest.json" for row in runs if row.trained.seed is not None}
    for row in runs:
        names = [BEST_CHOICE.benchmark] if row.chooses else BENCHMARKS
        files |= set(expand("results/{of}/{run}/{b}/manifest.json", of=("samples", "grades"), run=row.run.run, b=names))
        files |= set(expand("results/grades/{run}/{b}/audit.json", run=row.run.run, b=names))
    files |= set(expand("results/problems/{set}/manifest.json", set=PROBLEMS))
    files |= set(expand("results/problems/{set}/disjoint.json", set=BENCHMARKS))
    files |= set(expand(f"results/{folder}scores/{{b}}.json", b=BENCHMARKS))
    return [
        *sorted(files),
        f"results/{folder}runs.json",
        *([] if folder.endswith("steps/") else [f"results/{folder}comparisons.json"]),
    ]


onstart:
    lift_job_rate(workflow)
    end_jobs_on_termination(workflow)  # Snakemake has set its own way of ending by now, which this one calls
