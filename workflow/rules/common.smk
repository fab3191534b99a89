"""What rules ask of the studies: what is compared in a folder, and the files that stand for it.

A folder is where a study's own results lie, below results/: "" or studies/NAME/, and within it looks/SEEDS/, steps/,
best/ and decodings/NAME/. Named inputs and params are the arguments of the function that a rule calls
(workflow/scripts/call.py); unnamed ones only make the job again when they change. Samples and grades by a further
decoding lie in results/decodings/NAME/, for all studies.
"""

import gc
import os
import re
from pathlib import Path

from evals import audit, generation, grading
from evals.core.comparisons import FALL
from evals.core.config.base_models import FINE_TUNED
from evals.core.files import canonical_json, sha256_file
from evals.core.records import base_name
from evals.core.run_spec import COMPONENT_FILE, VERIFIER_FILE, VERL, Execution, Service
from evals.core.sampling import OfBenchmark, Sampling, SamplingMachine
from evals.grading.code import VERIFIER_VERSION
from evals.problems.problem_set import NOT_OF_THE_CONTENT
from rlvr import base_model
from rlvr.engines import local, option_versions, verl
from rlvr.methods.component_file import component_copy
from rlvr.runs.warm_start import start_server
from rlvr.study import machine
from rlvr.study.benchmarks import absolute_path
from rlvr.study.designs import RATES, sheet_of
from rlvr.study.evidence import notes, own_settings
from rlvr.study.job_sizes import devices, grading_mb, model_training_mb, sampling_mb, size, training_mb
from rlvr.study.launch import end_jobs_on_termination, lift_job_rate
from rlvr.study.looks import announce_look
from rlvr.study.notices import print_notices
from rlvr.study.policies import DECODINGS, score_points
from rlvr.study.rule_values import NO_NAME, by_setting, name_targets, one_of, options, refuse_made_otherwise
from rlvr.study.source_files import CONFIG as CONFIG_FILES
from rlvr.study.source_files import as_input, code_of, template_files
from rlvr.study.studies import FOLDER, asked_names
from rlvr.study.study import TRAIN, TRAINING_PROBLEMS, VALIDATION

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

with one_line_errors():
    TRAINING, SAMPLING = machine.software(STUDY, "training"), machine.software(STUDY, "sampling")
    if not IN_JOB:
        machine.require_clone()
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
        benchmarks = [wildcards.benchmark] if hasattr(wildcards, "benchmark") else BENCHMARKS
        return expand(pattern, run=runs, b=[""] if is_trained else benchmarks, answers=answers(wildcards.folder))

    return files


def made(folder):
    """Every file of a folder up to its comparisons.

    Snakemake does not make a lost file again while what was made from it is there. So targets list them all, but of
    what one job makes the first alone, and what is lost of the others: each file takes Snakemake a while.
    """
    runs = [policy(row.run) for row in compared(folder)]
    runs += [candidate for row in runs for candidate in row.candidates]
    files = {row.file for row in runs}
    files |= {f"results/base/{row.run.base_model}/manifest.json" for row in runs}
    files |= {f"results/runs/{row.trained.run}/manifest.json" for row in runs if row.trained.seed is not None}
    for row in runs:
        names = [BEST_CHOICE.benchmark] if row.chooses else BENCHMARKS
        for job in ("samples/{run}/{b}/manifest", "grades/{run}/{b}/{file}"):
            pattern, parts = f"{answers(folder)}{job}.json", ("manifest", "audit")
            first, *others = expand(pattern, run=row.run.run, b=names, file=parts)
            files.update([first, *(other for other in others if os.path.exists(first) and not os.path.exists(other))])
    files.update(expand("results/problems/{set}/manifest.json", set=PROBLEMS))
    files.update(expand("results/problems/{set}/disjoint.json", set=BENCHMARKS))
    files.update(expand(f"results/{folder}scores/{{b}}.json", b=BENCHMARKS))
    compared_too = [] if folder.endswith("steps/") else [f"results/{folder}comparisons.json"]
    return [*sorted(files), f"results/{folder}runs.json", *compared_too]


onstart:
    lift_job_rate(workflow)
    end_jobs_on_termination(workflow)  # Snakemake has set its own way of ending by now, which this one calls
    is_ours = TRAINING == SAMPLING == machine.OURS and not workflow.deployment_settings.deployment_method
    is_portable = (
        STUDY.models_from_scratch == CONFIG.models and CONFIG.evaluation.backend == "local"
    )  # same code paths
    can_fork = MACHINE.device == "cpu" and hasattr(os, "pidfd_open")  # Linux has it
    if MACHINE.forks and workflow.local_exec and is_ours and is_portable and can_fork:
        start_server()


def refusing(asked, may_be_left_out=()):
    """Make an unnamed param, none that Snakemake compares: it refuses results made with other parameters than ``asked``."""
    check = one_line_errors()(refuse_made_otherwise)
    return lambda w, input, output: "" if IN_JOB else check(workflow, w, input, output, asked(w), may_be_left_out)


def sources_of(files):
    """Make the function of the digests of files, which are read where a result has to be compared with them."""
    return lambda paths=tuple(files): [sha256_file(Path(path)) for path in paths]


def made_by(settings, at_most, asked, may_be_left_out=()):
    """The settings of a rule one by one, and the refusal of what was made with others."""
    return [*by_setting(settings, at_most), refusing(asked, may_be_left_out)]


# Problems

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


# Base models

SCRATCH, TUNED = STUDY.scratch_bases, STUDY.fine_tuned_models
IMPORTED = {**STUDY.existing_models, **{f"{name}-pretrained": model for name, model in TUNED.items()}}
"""The models that are fetched or linked; what is fine-tuned first has the name of its result and a suffix."""
MAY_BE_AT_DEFAULT = ("head_dtype", "chat_template_kwargs")


@one_line_errors()
def files_of_model(wildcards):
    """The files of a local model; where verl trains, a plan may be made far from them."""
    name, may_be_missing = wildcards.imported.removesuffix("-pretrained"), workflow.dryrun and STUDY.engine == VERL
    return machine.model_files(f"models.{name}", IMPORTED[wildcards.imported], may_be_missing)


def imported(wildcards):
    """An existing model, and its commit if it is on the Hub."""
    model = IMPORTED[wildcards.imported]
    revision = model.hub_revision if model.id else None
    return {"model": model.id or absolute_path(model.path), "revision": revision}


def corpus(wildcards):
    """The settings of a base model's corpus, and how many worked solutions it has."""
    model = SCRATCH[wildcards.model]
    return {"settings": model.corpus, "count": model.training.examples}


def parameters_of_corpus(wildcards):
    """The parameters that the manifest of a corpus has."""
    settings, count = corpus(wildcards).values()
    parameters = {"version": base_model.VERSION, "count": count, **settings.to_json()}
    return {f"results/base/{wildcards.model}/corpus.manifest.json": parameters}


def from_scratch(wildcards):
    """The settings that train a base model from scratch."""
    return SCRATCH[wildcards.model].training_settings()


def fine_tuning(wildcards):
    """The settings of a fine-tuning, and how its model computes and is prompted."""
    model = TUNED[wildcards.model]
    own = {key: getattr(model, key) for key in ("dtype", "prompt_form", *MAY_BE_AT_DEFAULT)}
    return {**model.fine_tuning.to_json(), **{key: value for key, value in own.items() if value}}


def parameters_of_fine_tuning(wildcards):
    """The parameters that the manifest of a fine-tuned model has."""
    parameters = {"source": FINE_TUNED, "version": local.VERSION, **fine_tuning(wildcards)}
    if all(map(os.path.isfile, solutions := STUDY.solutions(wildcards.model))):
        parameters["sources"] = sources_of(solutions)
    return {f"results/base/{wildcards.model}/manifest.json": parameters}


# Training

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


# Evaluation

DECISIVE = {*OfBenchmark.model_fields, *Sampling.model_fields, "served_model", "extra_body"} - {"backend", "dtype"}
CHOOSING = [BEST_CHOICE.benchmark] if BEST_CHOICE else ["none"]
CANDIDATE = r"[^/]+_choice\d+-s\d+" if BEST_CHOICE else NO_NAME


def evaluated_on(wildcards):
    """The benchmarks that a checkpoint is evaluated on."""
    return CHOOSING if policy(wildcards.run).chooses else BENCHMARKS


def sampling(wildcards):
    """What decides a policy's samples on all benchmarks alike; those of a candidate are others than those that are scored."""
    row, decoding = policy(wildcards.run), DECODED_BY.get(wildcards.decoding)
    settings = STUDY.sampling(row.run.model)
    if decoding is not None:
        return settings.model_copy(update={"temperature": decoding.temperature, "top_p": decoding.top_p})
    return settings.model_copy(update={"seed": settings.seed + 1}) if row.chooses else settings


def sampling_of(wildcards):
    """What each benchmark has of its own, by its name."""
    row, decoding = policy(wildcards.run), DECODED_BY.get(wildcards.decoding)
    own = {}
    for name in evaluated_on(wildcards):
        samples = BEST_CHOICE.k if row.chooses else CONFIG.evaluation.samples(name)
        samples = decoding.samples_per_problem if decoding else samples
        own[name] = OfBenchmark(prompt=STUDY.prompt(name, row.run.model), samples_per_problem=samples)
    return own


def settings_of_samples(wildcards):
    """What decides the samples of a checkpoint."""
    return {**sampling(wildcards).identity(), "of": sampling_of(wildcards), "version": generation.VERSION}


def parameters_of_samples(wildcards):
    """The parameters that the manifests of samples have, of those that decide them."""
    settings, at = sampling(wildcards), f"results/{wildcards.decoding}samples/{wildcards.run}"
    shared = settings.identity()
    server = STUDY.served_models.get(policy(wildcards.run).run.model)
    shared |= {"served_model": server.model, "extra_body": server.extra_body} if server else {}
    shared = {key: value for key, value in shared.items() if key in DECISIVE and value != {}}
    shared |= {"engine": settings.backend, "version": generation.VERSION}
    shared |= {} if settings.dtype == "auto" else {"dtype": settings.dtype}
    shared["from"] = [] if server else [policy(wildcards.run).directory]
    return {f"{at}/{name}/manifest.json": {**shared, **own.identity()} for name, own in sampling_of(wildcards).items()}


def sampling_command(wildcards, output):
    """The words of the command that samples a checkpoint: settings as JSON, and options of the machine."""
    own = {f"results/problems/{name}": of.identity() for name, of in sampling_of(wildcards).items()}
    settings = [policy(wildcards.run).directory, canonical_json(sampling(wildcards).identity()), canonical_json(own)]
    return [*settings, *options(MACHINE, SamplingMachine)]


def settings_of_grades(wildcards):
    """What decides the grades of a checkpoint."""
    of_audit = {"audit": audit.VERSION, "audited": CONFIG.evaluation.audited}
    return {"of": {name: STUDY.grading(name) for name in evaluated_on(wildcards)}, **of_audit}


def parameters_of_grades(wildcards):
    """The parameters that the manifests of grades and of their audits have."""
    asked = {}
    for name in evaluated_on(wildcards):
        kind, version = STUDY.grading(name)
        file = f"results/{wildcards.decoding}grades/{wildcards.run}/{name}/manifest.json"
        samples = f"results/{wildcards.decoding}samples/{wildcards.run}/{name}"
        asked[file] = {"kind": kind, "grader_version": int(str(version).split()[-1]), "from": [samples]}
        audited = {"share": CONFIG.evaluation.audited, "version": audit.VERSION}
        asked[file.replace("manifest.json", "audit.json")] = audited
    return asked


def verifiers(names):
    """The study's copies of a user's functions that grade benchmarks."""
    return {name: f"results/verifiers/{name}/{VERIFIER_FILE}" for name in names if name in STUDY.verifiers}


def statistics(wildcards):
    """The statistics of a comparison: at a look its intervals have the level of the look, and controls are not named."""
    config = study_of(wildcards.folder).config
    looks = {} if DECODINGS in wildcards.folder else STUDIES.looks(wildcards.folder)
    look, planned, stopping = looks.get(wildcards.folder), list(looks.values()), None
    if planned and not look:
        stopping = {"looks": [row.seeds for row in planned], "levels": [row.level for row in planned]}
        stopping |= {"margin": planned[0].margin, "level": config.seeds.level / 100}
    return {
        "reference_method": config.reference_method,
        "statistics": CONFIG.statistics,
        "controls": None if look else config.controls,
        "confidence": 1.0 - look.level if look else 0.95,
        **({"is_first_look": True} if look and look.earlier is None else {}),
        "stopping": stopping,
    }


def parameters_of_comparisons(wildcards):
    """The parameters that the manifest of a comparison has."""
    asked, of = statistics(wildcards), CONFIG.statistics
    parameters = {"seed": of.seed, "bootstrap_resamples": of.resamples, "permutations": of.permutations}
    parameters |= {key: asked[key] for key in ("reference_method", "confidence", "controls")}
    parameters |= {key: value for key, value in (asked["stopping"] or {}).items() if key in ("margin", "level")}
    parameters |= {} if of.fall == FALL else {"fall": of.fall.to_json()}
    parameters["weighting"] = of.weighting or "benchmarks"
    parameters["from"] = results_of(wildcards.folder)["scores"]
    return {f"results/{wildcards.folder}comparisons.manifest.json": parameters}


def last_decisions(wildcards):
    """The decisions of the last look at the study of a folder; those of a look itself come later."""
    if DECODINGS in wildcards.folder or wildcards.folder in STUDIES.looks(wildcards.folder):
        return []
    compared(wildcards.folder)
    due = [name for name, look in STUDIES.looks(wildcards.folder).items() if look.is_due]
    return [f"results/{name}decisions.json" for name in due[-1:]]


def look_of(name):
    """Make the function of a value of a look."""
    return lambda wildcards: getattr(STUDIES.looks(wildcards.folder)[wildcards.folder], name)


OF_LOOK = {name: look_of(name) for name in ("margin", "level", "level_alone")}


# What people look at

REFERENCE = as_input(CONFIG_FILES / "reference")
RUNS = Path("results/runs")


def results_of(folder):
    """The run sheet, scores and comparisons of a folder, as the inputs of what shows them."""
    scores = [f"results/{folder}scores/{name}.json" for name in BENCHMARKS]
    return {"runs": f"results/{folder}runs.json", "scores": scores, "comparisons": f"results/{folder}comparisons.json"}


RESULTS = results_of("{folder}")
METRICS = of_runs("results/runs/{run}/metrics.parquet")
TRAINED = of_runs("results/runs/{run}/manifest.json")
AUDITS = of_runs("results/grades/{run}/{b}/audit.json")
DECODED = [
    f"results/{{folder}}{at}{file}.json"
    for at in DECODED_BY
    for file in (*expand("scores/{b}", b=BENCHMARKS), "comparisons")
]
BASES = STUDY.models_from_scratch
FIRST_BASES = [f"results/base/{base_name(name, model.numbers[0])}/manifest.json" for name, model in BASES.items()]
SEVERAL_SIZES = len(CONFIG.models) > 1 and CONFIG.models.keys() == BASES.keys()
SEVERAL_SAMPLES = CONFIG.evaluation.samples_per_problem > 1
OF_EFFECTS = re.findall(r"^ +study: (\w+)$", (CONFIG_FILES / "phenomena.yaml").read_text(), re.MULTILINE)
FURTHER_EFFECTS = [
    at
    for at in (Path("results", name, "results") for name in sorted({*OF_EFFECTS}))
    if all((at / file).exists() for file in ("comparisons.json", "runs.json"))
]
"""The finished studies in directories of their own below results/, for which rows of phenomena.yaml ask."""
DESIGNS = {RATES: "designs", "doses": "designs", "factorial": "factors"}
"""The modules of evals.scores with the tables of designs."""


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


def design_arguments(wildcards):
    """What the table of a design is given: the sheet of the ways in which methods are trained, and the design."""
    study = study_of(wildcards.folder)
    sheet = sheet_of(study.config, study.titles)
    if wildcards.table == "factorial":
        return {"sheet": sheet, "factorial": study.config.factorial}
    return {"sheet": sheet, "training": RUNS, "reference_method": study.config.reference_method}


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
