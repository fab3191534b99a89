"""What the rules of several files ask of the studies, and what is shown of a folder: tables, figures and pages.

A folder is where a study's own results lie, below results/: "" or studies/NAME/, and within it looks/SEEDS/, steps/,
best/ and decodings/NAME/. Named inputs and params are the arguments of the function that a rule calls
(workflow/scripts/call.py); unnamed ones only make the job again when they change. Samples and grades by a further
decoding lie in results/decodings/NAME/, for all studies.
"""

import gc
import os
from functools import partial
from pathlib import Path

from evals.core.arithmetic import processor
from evals.core.files import sha256_file
from evals.core.records import base_name
from rlvr.runs.warm_start import start_server
from rlvr.study import machine
from rlvr.study.designs import RATES, sheet_of
from rlvr.study.evidence import notes, own_settings
from rlvr.study.job_sizes import size
from rlvr.study.launch import end_jobs_on_termination, lift_job_rate, read_ends_of_slurm
from rlvr.study.looks import announce_look
from rlvr.study.notices import print_notices
from rlvr.study.policies import DECODINGS, score_points
from rlvr.study.rule_values import by_setting, name_targets, one_of, refuse_made_otherwise
from rlvr.study.source_files import CONFIG as CONFIG_FILES
from rlvr.study.source_files import as_input, code_of, template_files
from rlvr.study.studies import FOLDER, asked_names

gc.set_threshold(100_000)  # what a plan makes stays: to look for garbage each 700 objects takes a tenth of the time
STUDY = STUDIES.main
CONFIG = STUDY.config
MACHINE = CONFIG.execution
BENCHMARKS = list(STUDY.benchmarks)
ORDER = f"benchmarks: {', '.join(BENCHMARKS)}"
"""A param of what shows benchmarks one after the other: Snakemake compares inputs as a set."""
TRAINS = bool(STUDY.methods)
BEST_CHOICE = CONFIG.best_checkpoint
KEEPS_ROLLOUTS = TRAINS and MACHINE.rollouts_kept_every is not None
DECODED_BY = {f"{DECODINGS}{name}/": decoding for name, decoding in CONFIG.evaluation.decodings.items()}
REFUSED = []
"""Results of this plan that were made otherwise."""

with one_line_errors():
    TRAINING, SAMPLING = machine.software(STUDY, "training"), machine.software(STUDY, "sampling")
    if not IN_JOB:
        machine.require_clone()
        machine.require_own_paths(workflow.modifier.path_modifier)
        machine.check_machine(STUDY)
        machine.require_container(workflow.deployment_settings.deployment_method, (TRAINING, SAMPLING))
        machine.require_records(Path(".snakemake/metadata"))
        machine.require_past(map(str, Path("results").rglob("*manifest.json")))
        print_notices(STUDIES.left(STUDY.folder), STUDIES.looks(STUDY.folder))
machine.set_job_environment()


wildcard_constraints:
    folder=FOLDER,
    decoding=f"|{one_of(DECODED_BY)}",  # nothing: the sampling that verdicts are about
    run="[^/]+",
    model=one_of(CONFIG.models),
    benchmark=one_of(BENCHMARKS),


study_of, policy, together = map(one_line_errors(), (STUDIES.study, STUDIES.policy, STUDIES.together))
"""The whole study of a folder; the checkpoint that a run id stands for; the folders that are made together."""
TAKEN = [] if IN_JOB else [name for name, look in STUDIES.looks(STUDY.folder).items() if look.is_taken]
"""The looks whose decisions are known, of which the progress display has been told."""


@one_line_errors()
def compared(folder):
    """The runs that are compared in a folder, after the looks before it."""
    for name in STUDIES.looks(folder):
        if name == folder:
            break
        if STUDIES.looks(folder)[name].is_due:  # by the decisions of the looks before, which are there by now
            checkpoints.look.get(folder=name)  # Snakemake asks again once its decisions are there
            if name not in TAKEN:
                TAKEN.append(name)
                announce_look(STUDIES.left(folder), STUDIES.looks(folder), logger)
    return STUDIES.compared(folder)


def answers(folder):
    """The directory, with a slash, of the samples and grades whose scores lie in a folder."""
    return "results/" + (folder[folder.index(DECODINGS) :] if DECODINGS in folder else "")


def trained(folder):
    """The ids of the trained runs that are compared in a folder."""
    return [row.run for row in compared(folder) if row.seed is not None]


def of_runs(pattern):
    """Make an input function: the files of every run of the folder; those below results/runs/ of the trained ones."""

    def files(wildcards):
        is_trained = pattern.startswith("results/runs/")
        runs = trained(wildcards.folder) if is_trained else [row.run for row in compared(wildcards.folder)]
        return expand(pattern, run=runs, answers=answers(wildcards.folder))

    return files


def made(folder):
    """Every file of a folder up to its comparisons.

    Snakemake does not make a lost file again while what was made from it is there: targets list them all.
    """
    runs = [policy(row.run) for row in compared(folder)]
    runs += [candidate for row in runs for candidate in row.candidates]
    files = {row.file for row in runs}
    files |= {f"results/base/{row.run.base_model}/manifest.json" for row in runs}
    files |= {f"results/runs/{row.trained.run}/manifest.json" for row in runs if row.trained.seed is not None}
    files.update(
        f"{answers(folder)}{kind}/{row.run.run}/manifest.json" for row in runs for kind in ("samples", "grades")
    )
    files.update(expand("results/problems/{set}/{file}", set=PROBLEMS, file=("manifest.json", "problems.jsonl")))
    files.update(expand("results/problems/{set}/disjoint.json", set=BENCHMARKS))
    files.update(expand(f"results/{folder}scores/{{b}}.json", b=BENCHMARKS))
    compared_too = [] if folder.endswith("steps/") else [f"results/{folder}comparisons.json"]
    return [*sorted(files), f"results/{folder}runs.json", *compared_too]


onstart:
    lift_job_rate(workflow)
    read_ends_of_slurm()
    end_jobs_on_termination(workflow)  # Snakemake has set its own way of ending by now, which this one calls
    is_ours = TRAINING == SAMPLING == machine.OURS and not workflow.deployment_settings.deployment_method
    is_small = STUDY.models_from_scratch == CONFIG.models and MACHINE.device == "cpu"
    is_local = CONFIG.evaluation.backend == "local"  # other samplers choose code paths of their own
    # Under Linux, with the portable code paths: a fork has those of its server.
    can_fork = workflow.local_exec and hasattr(os, "pidfd_open") and not processor()[1]
    if MACHINE.forks and is_ours and is_small and is_local and can_fork:
        start_server()


def refusing(asked, may_be_left_out=()):
    """Make an unnamed param, none that Snakemake compares: it refuses results made with other parameters than ``asked``."""
    check = one_line_errors()(partial(refuse_made_otherwise, may_be_left_out=may_be_left_out, refused=REFUSED))
    return lambda w, input, output: "" if IN_JOB else check(workflow, w, input, output, asked(w))


def sources_of(files):
    """Make the function of the digests of files, which are read where a result has to be compared with them."""
    return lambda paths=tuple(files): [sha256_file(Path(path)) for path in paths]


def made_by(settings, at_most, asked, may_be_left_out=()):
    """The settings of a rule one by one, and the refusal of what was made with others."""
    return [*by_setting(settings, at_most), refusing(asked, may_be_left_out)]


# What people look at

REFERENCE = as_input(CONFIG_FILES / "reference")
RUNS = Path("results/runs")


def results_of(folder):
    """The run sheet, scores and comparisons of a folder, as the inputs of what shows them."""
    scores = [f"results/{folder}scores/{name}.json" for name in BENCHMARKS]
    return {"runs": f"results/{folder}runs.json", "scores": scores, "comparisons": f"results/{folder}comparisons.json"}


RESULTS = results_of("{folder}")
TRAINED = of_runs("results/runs/{run}/manifest.json")
SCORED = expand("results/{{folder}}scores/{b}.manifest.json", b=BENCHMARKS)
"""What stands for a folder's samples, grades and audits: its manifests are written anew when one of these is."""
BEHIND_RESULTS = [*SCORED, "results/{folder}comparisons.manifest.json"]
"""What stands for the runs, too."""
DECODED = [
    f"results/{{folder}}{at}{file}.json"
    for at in DECODED_BY
    for file in (*expand("scores/{b}", b=BENCHMARKS), "comparisons")
]
BASES = STUDY.models_from_scratch
FIRST_BASES = [f"results/base/{base_name(name, model.numbers[0])}/manifest.json" for name, model in BASES.items()]
SEVERAL_SIZES = len(CONFIG.models) > 1 and CONFIG.models.keys() == BASES.keys()
SEVERAL_SAMPLES = CONFIG.evaluation.samples_per_problem > 1
DESIGNS = {RATES: "designs", "doses": "designs", "factorial": "factors"}
"""The modules of evals.scores with the tables of designs."""


@one_line_errors()
def further_effects(wildcards):
    """The finished studies in directories of their own below results/, for which rows of phenomena.yaml ask."""
    from evals.tables.phenomena import read_phenomena  # here: only this table needs it, and scipy comes with it

    names = sorted({row.study for row in read_phenomena(CONFIG_FILES / "phenomena.yaml") if row.study})
    directories = [Path("results", name, "results") for name in names]
    return [at for at in directories if all((at / file).exists() for file in ("comparisons.json", "runs.json"))]


def table(name, *more):
    """The files of a table, the first of which stands in `snakemake --report`."""
    path = f"results/{{folder}}tables/{name}"
    first = report(f"{path}.md", caption="../report/table.rst", category="Tables")
    return [first, *(path + ending for ending in (".csv", ".tex", ".manifest.json", *more))]


def figure(name, *more):
    """The files of a figure, the first of which stands in `snakemake --report`."""
    path = f"results/{{folder}}figures/{name}"
    first = report(f"{path}.png", caption="../report/figure.rst", category="Figures")
    return [first, *(path + ending for ending in (".svg", ".pdf", ".manifest.json", *more))]


def design(folder):
    """The name of the one table of a study that is a design, in place of all others; none of other studies."""
    config = study_of(folder).config
    if config.study == RATES:
        return RATES
    return "doses" if config.doses else "factorial" if config.factorial else None


def tables_of(folder):
    """The tables of a folder: a study of models alone has no methods to set side by side."""
    if name := design(folder):
        return [name]
    names = ["main", "audit"]
    if TRAINS:
        names += ["by_seed", "robust", "efficiency", "paper_vs_ours"] + ["pass_at_k"] * SEVERAL_SAMPLES
        names += ["sizes"] * SEVERAL_SIZES + ["checkpoints"] * bool(BEST_CHOICE)
    return names


def figures_of(folder):
    """The figures of a folder: a study of models alone has no training curves."""
    if name := design(folder):
        return [] if name == RATES else [name]
    if not TRAINS:
        return ["scores"]
    names = ["scores", "differences", "profiles", "cost_curves", "training_curves"] + ["pass_at_k"] * SEVERAL_SAMPLES
    names += ["compute_performance"] * bool(study_of(folder).validation_settings)
    return names + ["validation_curves"] * bool(BEST_CHOICE) + own_figures(folder)


def own_figures(folder):
    """The figures that not every study has; the report shows them in a section of their own."""
    names = ["sizes"] * SEVERAL_SIZES + ["reward_curves"] * bool(folder)
    return names + ["score_curves"] * (study_of(folder).config.score_at is not None)


def table_files(folder):
    """The tables of a folder."""
    return [f"results/{folder}tables/{name}.md" for name in tables_of(folder)]


def figure_files(folder):
    """The figures of a folder."""
    return [f"results/{folder}figures/{name}.png" for name in figures_of(folder)]


def pages_of(folder):
    """The pages of a folder, the report and MLflow included; a design has a table and a figure alone."""
    if design(folder):
        return []
    pages = [f"results/{folder}responses/{name}/index.html" for name in BENCHMARKS]
    pages += [f"results/{folder}rollouts/index.html"] * KEEPS_ROLLOUTS
    return pages + [f"results/{folder}{name}" for name in ("report.html", "tracking.json") if TRAINS]


def chosen(wildcards):
    """The files that say which checkpoints of a folder's runs are the best."""
    best = trained(f"{wildcards.folder}best/") if BEST_CHOICE else []
    return [f"results/runs/{run}/chosen.json" for run in best]


def settings_of_design(wildcards):
    """What decides the table of a design: the sheet of the ways in which methods are trained, design and statistics."""
    study = study_of(wildcards.folder)
    own = "factorial" if wildcards.table == "factorial" else "reference_method"
    sheet = sheet_of(study.config, study.titles)
    return {"sheet": sheet, own: getattr(study.config, own), "statistics": CONFIG.statistics}


def reference_of(wildcards):
    """The reference method, by its title in the table of sizes."""
    study = study_of(wildcards.folder)
    name = study.config.reference_method
    return study.titles[name] if wildcards.figure == "sizes" else name


def token_tables(wildcards):
    """The directories of token tables of responses, where somebody made them (rlvr-claims)."""
    directories = [f"results/claims/tokens/{row.run}/{wildcards.benchmark}" for row in compared(wildcards.folder)]
    return [directory for directory in directories if Path(directory, "tokens.parquet").is_file()]


def replays(wildcards):
    """The directories of replayed runs, where somebody made them (rlvr-claims).

    They are no inputs: a run that is trained again would be replayed again, for a page that shows whatever is there.
    """
    directories = [Path("results/claims/tokens", run) for run in trained(wildcards.folder)]
    return [directory for directory in directories if (directory / "manifest.json").is_file()]


# What is asked for by name


def everything(folder):
    """Every file of a folder: what is made up to its comparisons, and what people look at."""
    parts = [folder, *[f"{folder}steps/"] * (study_of(folder).config.score_at is not None)]
    parts += [f"{folder}best/"] * bool(BEST_CHOICE) + [f"{folder}{at}" for at in DECODED_BY]
    files = [file for part in parts for file in made(part)]
    study = [] if design(folder) else [f"results/{folder}study.json"]
    return [*files, *study, *table_files(folder), *figure_files(folder), *pages_of(folder)]


OWN = STUDY.folder


def of_study(name):
    """Make the input function of a study of config/studies, with the one that it is made together with."""

    @one_line_errors()
    def files(wildcards):
        return [file for folder in STUDIES.together(STUDIES.folder_of(name)) for file in everything(folder)]

    return files
