"""What rules ask of the studies: what is compared in a folder, and the files that stand for it.

A folder is where a study's own results lie, below results/: "" or studies/NAME/, and within it looks/SEEDS/, steps/
and best/. Named inputs and params are the arguments of the function that a rule calls (workflow/scripts/call.py);
unnamed ones only make the job again when they change. Samples and grades by a further decoding lie in
results/decodings/NAME/, for all studies.
"""

from pathlib import Path

from evals.audit import VERSION as AUDIT_VERSION
from evals.core.comparisons import FALL
from evals.core.config.base_models import FINE_TUNED
from evals.core.files import canonical_json, sha256_file
from evals.core.records import base_name
from evals.core.run_spec import COMPONENT_FILE, VERIFIER_FILE, VERL, Execution, Service
from evals.core.sampling import OfBenchmark, Sampling, SamplingMachine
from evals.generation import VERSION as SAMPLER_VERSION
from evals.grading import INTEGER_VERSION
from evals.grading import VERSION as GRADER_VERSION
from evals.grading.code import VERIFIER_VERSION
from evals.problems.problem_set import NOT_OF_THE_CONTENT
from evals.scores.comparison import Settings
from rlvr.base_model import VERSION as BASE_MODEL_VERSION
from rlvr.engines import option_versions
from rlvr.engines.local import VERSION as LOCAL_ENGINE_VERSION
from rlvr.engines.verl import VERSION as VERL_ENGINE_VERSION
from rlvr.methods.component_file import component_copy
from rlvr.study.benchmarks import absolute_path
from rlvr.study.designs import RATES, sheet_of
from rlvr.study.evidence import notes, own_settings
from rlvr.study.job_sizes import devices, grading_mb, model_training_mb, sampling_mb, size, training_mb
from rlvr.study.launch import end_jobs_on_termination, lift_job_rate
from rlvr.study.looks import announce_look
from rlvr.study.machine import (
    OURS,
    check_machine,
    files_of,
    model_files,
    name_environments,
    require_container,
    require_past,
    set_job_environment,
    software,
)
from rlvr.study.notices import print_notices
from rlvr.study.policies import DECODINGS, score_points
from rlvr.study.rule_values import NO_NAME, by_setting, name_targets, one_of, options, refuse_made_otherwise
from rlvr.study.source_files import as_input, code_of, template_files
from rlvr.study.source_files import CONFIG as CONFIG_FILES
from rlvr.study.studies import FOLDER, asked_names
from rlvr.study.study import TRAIN, TRAINING_PROBLEMS, VALIDATION

STUDY = STUDIES.main
CONFIG = STUDY.config
MACHINE = CONFIG.execution
BENCHMARKS = list(STUDY.benchmarks)
ORDER = f"benchmarks: {', '.join(BENCHMARKS)}"
"""A param of what shows benchmarks one after the other: Snakemake compares inputs as a set."""
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


def decoding_of(folder):
    """The name of the decoding whose scores lie in a folder; None of the sampling that verdicts are about."""
    _, found, name = folder.partition(DECODINGS)
    return name.rstrip("/") if found else None


def answers(decoding):
    """The directory of the samples and grades by a decoding."""
    return "results" if decoding is None else f"results/{DECODINGS}{decoding}"


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
        within = answers(decoding_of(wildcards.folder))
        return expand(pattern, run=runs, b=benchmarks if "{b}" in pattern else [""], answers=within)

    return files


def made(folder):
    """Every file of a folder up to its comparisons.

    Snakemake does not make a lost file again while what was made from it is there. So targets list them all.
    """
    runs = [policy(row.run) for row in compared(folder)]
    runs += [candidate for row in runs for candidate in row.candidates]
    files = {row.file for row in runs}
    files |= {f"results/base/{row.run.base_model}/manifest.json" for row in runs}
    files |= {f"results/runs/{row.trained.run}/manifest.json" for row in runs if row.trained.seed is not None}
    for row in runs:
        names, within = [BEST_CHOICE.benchmark] if row.chooses else BENCHMARKS, answers(decoding_of(folder))
        files |= set(expand(f"{within}/{{of}}/{row.run.run}/{{b}}/manifest.json", of=("samples", "grades"), b=names))
        files |= set(expand(f"{within}/grades/{row.run.run}/{{b}}/audit.json", b=names))
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


def made_by(manifest, settings, at_most, asked=None, keys=()):
    """The settings of a rule one by one; results whose manifest has others than are ``asked`` are refused."""
    return by_setting(settings, at_most, refuse_made_otherwise(workflow, manifest, asked or settings, keys))


# Problems

PROBLEMS = {TRAIN: STUDY.training_settings} if TRAINS else {}
PROBLEMS |= {VALIDATION: STUDY.validation_settings} if STUDY.validation_settings else {}
PROBLEMS |= {name: benchmark.problem_settings() for name, benchmark in STUDY.benchmarks.items()}
DRAWN = [name for name, settings in PROBLEMS.items() if "kinds" in settings]
READ = [name for name in PROBLEMS if name not in DRAWN and name != TRAIN]
TRAINED_ON = [TRAINING_PROBLEMS] if TRAINS else []
TRAINED_ON += expand("results/base/{model}/corpus.jsonl", model=STUDY.scratch_bases)
TRAINED_ON += [file for model in STUDY.fine_tuned_models for file in STUDY.solutions(model)]


def drawn(wildcards):
    """What decides drawn problems: the training problems are of the one side of the split, all others of the other."""
    settings = {key: PROBLEMS[wildcards.set][key] for key in ("kinds", "count", "seed")}
    return {"name": wildcards.set, "split": "train" if wildcards.set == TRAIN else "evaluation", **settings}


def read_by(manifest, sets):
    """The same of problem sets that are read: their manifests have what they are, not where they lie."""
    content = lambda w: {key: value for key, value in sets[w.set].items() if key not in NOT_OF_THE_CONTENT}
    return made_by(manifest, lambda w: sets[w.set], 40, content)


# Base models

SCRATCH, TUNED = STUDY.scratch_bases, STUDY.fine_tuned_models
IMPORTED = {**STUDY.existing_models, **{f"{name}-pretrained": model for name, model in TUNED.items()}}
"""The models that are fetched or linked; what is fine-tuned first has the name of its result and a suffix."""


def files_of_model(wildcards):
    """The files of a local model; where verl trains, a plan may be made far from them."""
    name = wildcards.imported.removesuffix("-pretrained")
    with one_line_errors():
        may_be_missing = workflow.dryrun and STUDY.engine == VERL
        return model_files(f"models.{name}", IMPORTED[wildcards.imported], may_be_missing)


def source_of_model(wildcards):
    """A model's directory, or its name on the Hub and the commit there."""
    model = IMPORTED[wildcards.imported]
    if model.path is not None:
        return {"model": absolute_path(model.path), "revision": None}
    return {"model": model.id, "revision": model.hub_revision}


def corpus(wildcards):
    """The settings of a base model's corpus, and how many worked solutions it has."""
    model = SCRATCH[wildcards.model]
    return {"settings": model.corpus, "count": model.training.examples}


def settings_of_corpus(wildcards):
    """What decides a corpus: with the version, so that a raised one makes it again and is no other's result."""
    return {**corpus(wildcards), "version": BASE_MODEL_VERSION}


def parameters_of_corpus(wildcards):
    """The parameters that the manifest of a corpus has."""
    settings, count = corpus(wildcards).values()
    return {"version": BASE_MODEL_VERSION, "count": count, **settings.to_json()}


def from_scratch(wildcards):
    """The settings that train a base model from scratch."""
    return SCRATCH[wildcards.model].training_settings()


MAY_BE_AT_DEFAULT = ("head_dtype", "chat_template_kwargs")


def fine_tuning(wildcards):
    """The settings of a fine-tuning, and how its model computes and is prompted."""
    model = TUNED[wildcards.model]
    own = {key: getattr(model, key) for key in ("dtype", "prompt_form", *MAY_BE_AT_DEFAULT)}
    return {**model.fine_tuning.to_json(), **{key: value for key, value in own.items() if value}}


def parameters_of_fine_tuning(wildcards):
    """The parameters that the manifest of a fine-tuned model has."""
    return {"source": FINE_TUNED, "version": LOCAL_ENGINE_VERSION, **fine_tuning(wildcards)}


# Training

BY_VERL = STUDY.engine == VERL
LOCAL_VERSIONS = {"engine": LOCAL_ENGINE_VERSION, "sampler": SAMPLER_VERSION, "grader": INTEGER_VERSION}
VERSIONS = {"engine": VERL_ENGINE_VERSION, "grader": GRADER_VERSION} if BY_VERL else LOCAL_VERSIONS
COMPONENTS = {component_copy(file).parent.name: str(file) for file in STUDY.component_files}


def spec(wildcards):
    """Everything that decides the outcome of a run: the content of its run.json."""
    with one_line_errors():
        study, _ = STUDIES.policy(wildcards.run)
        return study.run_spec(wildcards.run)


def settings_of_run(wildcards):
    """The settings of a run, and the versions of everything that computes it."""
    run = spec(wildcards)
    return {**run.parameters(), "versions": VERSIONS | option_versions(run.training)}


def of_training(wildcards):
    """The study of a run that is trained, or along which a policy lies, and the run."""
    study, row = STUDIES.policy(wildcards.run)
    return study, row.trained.run


def on_device(name):
    """Make the function of a resource of a training job: its nodes, GPUs and processors."""
    return lambda wildcards: devices(*of_training(wildcards))[name]


def where_kept(name):
    """Make the function of a resource of a job that keeps checkpoints along a run: by verl it merges what was saved."""
    by_verl = {"nodes": 1, "gpu": 0, "gres": "", "ray_cluster": 0, "cpus_per_task": 4}
    return by_verl[name] if BY_VERL else on_device(name)


TRAINING_MINUTES = 2880 if BY_VERL or MACHINE.device == "cuda" else 720
WHOLE_NODES = {"slurm_extra": on_device("slurm_extra")} if BY_VERL and MACHINE.cluster.nodes > 1 else {}
"""Several nodes are a job's alone; other jobs keep what a profile's default-resources say by this key."""


def checkpoints_at(steps):
    """The options of the training command that keep checkpoints along the run."""
    return [word for step in steps for word in ("--checkpoints-at", str(step))]


def cluster_option(wildcards):
    """Where verl carries a run out, as an option of the command; nothing for the local engine."""
    study, _ = STUDIES.policy(wildcards.run)
    return ["--cluster", canonical_json(study.cluster(wildcards.run))] if BY_VERL else []


def machine_options(wildcards, output):
    """The options of the training command that change no result. Threads are the study's: Snakemake's depend on --cores."""
    python = ["--python", MACHINE.training_python] if BY_VERL and MACHINE.training_python else []
    return [
        "--threads",
        str(MACHINE.training_threads),
        *options(MACHINE, Execution),
        *python,
        *cluster_option(wildcards),
    ]


def grades_of_candidates(wildcards):
    """The grades by which the best checkpoint of a run is chosen."""
    candidates = [row.run.run for row in policy(wildcards.run).candidates]
    return expand("results/grades/{run}/{b}/manifest.json", run=candidates, b=BEST_CHOICE.benchmark)


# Evaluation

DECISIVE = {*OfBenchmark.model_fields, *Sampling.model_fields} - {"backend", "dtype"}
CHOOSING = [BEST_CHOICE.benchmark] if BEST_CHOICE else ["none"]
CANDIDATE = r"[^/]+_choice\d+-s\d+" if BEST_CHOICE else NO_NAME
GRADES = ("grades.jsonl", "manifest.json", "audit.json", "audit.manifest.json")


def decoding_by(wildcards):
    """The decoding of a job that samples or grades; None of the sampling that verdicts are about."""
    return CONFIG.evaluation.decodings[wildcards.decoding] if hasattr(wildcards, "decoding") else None


def answers_of(wildcards):
    """The directory of the samples and grades that a job is about."""
    return answers(getattr(wildcards, "decoding", None))


def evaluated_on(wildcards):
    """The benchmarks that a checkpoint is evaluated on."""
    return CHOOSING if policy(wildcards.run).chooses else BENCHMARKS


def sampling(wildcards):
    """What decides a policy's samples on all benchmarks alike; those of a candidate are others than those that are scored."""
    row, decoding = policy(wildcards.run), decoding_by(wildcards)
    settings = STUDY.sampling(row.run.model)
    if decoding is not None:
        return settings.model_copy(update={"temperature": decoding.temperature, "top_p": decoding.top_p})
    return settings.model_copy(update={"seed": settings.seed + 1}) if row.chooses else settings


def sampling_of(wildcards):
    """What each benchmark has of its own, by its name."""
    row, decoding = policy(wildcards.run), decoding_by(wildcards)

    def samples(name):
        return BEST_CHOICE.k if row.chooses else CONFIG.evaluation.samples(name)

    return {
        name: OfBenchmark(
            prompt=STUDY.prompt(name, row.run.model),
            samples_per_problem=decoding.samples_per_problem if decoding else samples(name),
        )
        for name in evaluated_on(wildcards)
    }


def settings_of_samples(wildcards):
    """What decides the samples of a checkpoint."""
    return {**sampling(wildcards).identity(), "of": sampling_of(wildcards), "version": SAMPLER_VERSION}


def check_samples(wildcards, texts):
    """Refuse samples of a policy that were made with other settings than the study asks."""
    for name, own in sampling_of(wildcards).items():
        asked = {**sampling(wildcards).identity(), **own.identity()}
        asked = {key: value for key, value in asked.items() if key in DECISIVE}
        file = f"{answers_of(wildcards)}/samples/{{run}}/{name}/manifest.json"
        refuse_made_otherwise(workflow, file, lambda w, asked=asked: asked, DECISIVE)(wildcards, texts)


def check_grades(wildcards, texts):
    """Refuse grades of a policy that were made by another grader than the study asks."""
    for name in evaluated_on(wildcards):
        kind, version = STUDY.grading(name)
        asked = {"kind": kind, **({"grader_version": version} if isinstance(version, int) else {})}
        file = f"{answers_of(wildcards)}/grades/{{run}}/{name}/manifest.json"
        refuse_made_otherwise(workflow, file, lambda w, asked=asked: asked)(wildcards, texts)


def sampling_command(wildcards, output):
    """The words of the command that samples a checkpoint: settings as JSON, and options of the machine."""
    own = {f"results/problems/{name}": of.identity() for name, of in sampling_of(wildcards).items()}
    settings = [policy(wildcards.run).directory, canonical_json(sampling(wildcards).identity()), canonical_json(own)]
    return [*settings, *options(MACHINE, SamplingMachine)]


def settings_of_grades(wildcards):
    """What decides the grades of a checkpoint."""
    of_audit = {"audit": AUDIT_VERSION, "audited": CONFIG.evaluation.audited}
    return {"of": {name: STUDY.grading(name) for name in evaluated_on(wildcards)}, **of_audit}


def verifiers(names):
    """The study's copies of a user's functions that grade benchmarks."""
    return {name: f"results/verifiers/{name}/{VERIFIER_FILE}" for name in names if name in STUDY.verifiers}


def is_look(wildcards):
    """Return whether a folder is that of a look."""
    return wildcards.folder in STUDIES.looks(wildcards.folder)


def statistics(wildcards):
    """The statistics of a comparison: at a look its intervals have the level of the look, and controls are not named."""
    config = study_of(wildcards.folder).config
    looks = {} if decoding_of(wildcards.folder) else STUDIES.looks(wildcards.folder)
    look, planned = looks.get(wildcards.folder), list(looks.values())
    stopping = {"looks": [row.seeds for row in planned], "levels": [row.level for row in planned]}
    return {
        "reference_method": config.reference_method,
        "statistics": CONFIG.statistics,
        "controls": None if look else config.controls,
        "confidence": 1.0 - look.level if look else 0.95,
        **({"is_first_look": True} if look and look.earlier is None else {}),
        "stopping": (
            {**stopping, "margin": planned[0].margin, "level": config.seeds.level / 100}
            if planned and not look
            else None
        ),
    }


def parameters_of_comparisons(wildcards):
    """The parameters that the manifest of a comparison has."""
    asked = statistics(wildcards)
    settings = Settings.of(**asked)
    names = {"seed": settings.seed, "bootstrap_resamples": settings.bootstrap_resamples}
    names |= {"permutations": settings.permutations, "reference_method": settings.reference_method}
    fall = {} if settings.fall == FALL else {"fall": settings.fall.to_json()}
    return names | {"confidence": settings.confidence} | fall


def decisions(wildcards):
    """The decisions of the last look at the study of a folder; those of a look itself come later."""
    if is_look(wildcards) or decoding_of(wildcards.folder):
        return []
    compared(wildcards.folder)
    taken = [name for name, look in STUDIES.looks(wildcards.folder).items() if look.is_due]
    return [f"results/{name}decisions.json" for name in taken[-1:]]


def look_of(name):
    """Make the function of a value of a look."""
    return lambda wildcards: getattr(STUDIES.looks(wildcards.folder)[wildcards.folder], name)


# What people look at

REFERENCE = as_input(CONFIG_FILES / "reference")
RUNS, COSTS = Path("results/runs"), Path("results/costs")
RESULTS = {"runs": "results/{folder}runs.json", "scores": expand("results/{{folder}}scores/{b}.json", b=BENCHMARKS)}
RESULTS |= {"comparisons": "results/{folder}comparisons.json"}
OF_TRAINING = of_runs("results/runs/{run}/manifest.json", trained=True), of_runs(
    "results/runs/{run}/metrics.parquet", trained=True
)
DECODED = [
    f"results/{{folder}}{DECODINGS}{name}/{file}.json"
    for name in CONFIG.evaluation.decodings
    for file in (*expand("scores/{b}", b=BENCHMARKS), "comparisons")
]
FIRST_BASES = [
    f"results/base/{base_name(name, model.numbers[0])}/manifest.json"
    for name, model in STUDY.models_from_scratch.items()
]
SEVERAL_SIZES = len(CONFIG.models) > 1 and CONFIG.models.keys() == STUDY.models_from_scratch.keys()


SEVERAL_SAMPLES = CONFIG.evaluation.samples_per_problem > 1


def table(name, *more):
    """The files of a table, the first of which stands in `snakemake --report`."""
    path, caption = f"results/{{folder}}tables/{name}", "main" if name == "main" else "table"
    first = report(f"{path}.md", caption=f"../report/{caption}.rst", category="Tables")
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
        names += ["by_seed", "robust", "efficiency", "paper_vs_ours"]
        names += ["pass_at_k"] * SEVERAL_SAMPLES
        names += ["sizes"] * SEVERAL_SIZES + ["checkpoints"] * bool(BEST_CHOICE)
    return names


def figures_of(folder):
    """The figures of a folder: a study of models alone has no training curves."""
    if name := design(folder):
        return [] if name == RATES else [name]
    if not TRAINS:
        return ["scores"]
    study = study_of(folder)
    names = ["scores", "differences", "profiles", "cost_curves", "training_curves"]
    names += ["pass_at_k"] * SEVERAL_SAMPLES
    names += ["compute_performance"] * bool(study.validation_settings) + ["validation_curves"] * bool(BEST_CHOICE)
    return names + own_figures(folder)


def own_figures(folder):
    """The figures that not every study has; the report shows them in a section of their own."""
    study = study_of(folder)
    names = ["sizes"] * SEVERAL_SIZES + ["reward_curves"] * bool(folder)
    return names + ["score_curves"] * (study.config.score_at is not None)


def drawn_files(folder):
    """The tables and figures of a folder."""
    tables = [f"results/{folder}tables/{name}.md" for name in tables_of(folder)]
    return tables, [f"results/{folder}figures/{name}.png" for name in figures_of(folder)]


def pages_of(folder):
    """The pages of a folder, the report and MLflow included; a design has a table and a figure alone."""
    if design(folder):
        return []
    pages = [f"results/{folder}responses/{name}/index.html" for name in BENCHMARKS]
    pages += [f"results/{folder}rollouts/index.html"] * KEEPS_ROLLOUTS
    return pages + [f"results/{folder}{name}" for name in ("report.html", "tracking.json") if TRAINS]


TABLES = {
    "by_seed": "evals.tables.by_seed:write_by_seed_table",
    "robust": "evals.tables.robust:write_robust_table",
    "pass_at_k": "evals.tables.pass_at_k:write_pass_at_k_table",
}
TABLES_OF_TRAINING = {
    "efficiency": "evals.tables.efficiency:write_efficiency_table",
}


def code_of_call(calls, name):
    """Make the input function of the source files of one of several functions, which a wildcard names."""
    return lambda wildcards: code_of(calls[wildcards[name]].partition(":")[0])


def best_runs(wildcards):
    """The best checkpoints of a folder's runs."""
    return [row.run for row in compared(f"{wildcards.folder}best/") if row.seed is not None]


def published_results(key):
    """The results that stand beside published ones: papers that choose a checkpoint report the best one."""
    return lambda w: expand(RESULTS[key], folder=f"{w.folder}best/" if BEST_CHOICE else w.folder)


DESIGNS = {
    RATES: "evals.scores.designs:write_rates_table",
    "doses": "evals.scores.designs:write_doses_table",
    "factorial": "evals.scores.factors:write_factorial_table",
}


def design_arguments(wildcards):
    """What the table of a design is given: the sheet of the ways in which methods are trained, and the design."""
    study = study_of(wildcards.folder)
    sheet = sheet_of(study.config, {name: entry["title"] for name, entry in study.methods.items()})
    if wildcards.design == "factorial":
        return {"sheet": sheet, "factorial": study.config.factorial}
    return {"sheet": sheet, "training": RUNS, "reference_method": study.config.reference_method}


def reference_of(wildcards):
    """The reference method, by its title in the table of sizes."""
    study = study_of(wildcards.folder)
    name = study.config.reference_method
    return study.methods[name]["title"] if wildcards.design == "sizes" else name


FIGURES = {
    "scores": "evals.figures.results:write_scores_figure",
    "differences": "evals.figures.results:write_differences_figure",
}
FIGURES_OF_METHODS = {
    "profiles": "evals.figures.results:write_profiles_figure",
    "pass_at_k": "evals.figures.results:write_pass_at_k_figure",
}
FIGURES_OF_TRAINING = {
    "cost_curves": "evals.figures.efficiency:write_cost_curves",
    "compute_performance": "evals.figures.efficiency:write_compute_performance",
}


def together(wildcards):
    """The folders of the studies that are made together."""
    with one_line_errors():
        return STUDIES.together(wildcards.folder)


def token_tables(wildcards):
    """The directories of token tables of responses, where somebody made them (rlvr-claims)."""
    runs = [row.run for row in compared(wildcards.folder)]
    directories = [f"results/claims/tokens/{run}/{wildcards.benchmark}" for run in runs]
    return [directory for directory in directories if Path(directory, "tokens.parquet").is_file()]


def replays(wildcards):
    """The directories of replayed runs, where somebody made them (rlvr-claims).

    They are no inputs: a run that is trained again would be replayed again, for a page that shows whatever is there.
    """
    directories = [
        Path(f"results/claims/tokens/{row.run}") for row in compared(wildcards.folder) if row.seed is not None
    ]
    return [directory for directory in directories if (directory / "manifest.json").is_file()]


# What is asked for by name


def everything(folder):
    """Every file of a folder: what is made up to its comparisons, and what people look at."""
    parts = [folder]
    parts += [f"{folder}steps/"] * (study_of(folder).config.score_at is not None)
    parts += [f"{folder}best/"] * bool(BEST_CHOICE)
    parts += [f"{folder}{DECODINGS}{name}/" for name in CONFIG.evaluation.decodings]
    files = [file for part in parts for file in made(part)]
    study = [] if design(folder) else [f"results/{folder}study.json"]
    return [*files, *study, *(file for drawn in drawn_files(folder) for file in drawn), *pages_of(folder)]


OWN = STUDY.folder


def of_study(name):
    """Make the input function of a study of config/studies, with the one that it is made together with."""

    def files(wildcards):
        with one_line_errors():
            folders = STUDIES.together(STUDIES.folder_of(name))
        return [file for folder in folders for file in everything(folder)]

    return files
