"""What the rules of problems, models, training and evaluation are given: inputs, params and resources, in this order."""

import os
from pathlib import Path

from evals import audit, generation, grading
from evals.core.comparisons import FALL
from evals.core.config.base_models import FINE_TUNED
from evals.core.files import canonical_json, sha256_file
from evals.core.run_spec import COMPONENT_FILE, VERIFIER_FILE, VERL, Execution, Service
from evals.core.sampling import OfBenchmark, Sampling, SamplingMachine
from evals.grading.code import VERIFIER_VERSION
from evals.problems.problem_set import NOT_OF_THE_CONTENT
from rlvr import base_model
from rlvr.engines import local, option_versions, verl
from rlvr.methods.component_file import component_copy
from rlvr.study import machine
from rlvr.study.benchmarks import absolute_path
from rlvr.study.job_sizes import devices, grading_mb, model_training_mb, sampling_mb, size, training_mb
from rlvr.study.policies import DECODINGS
from rlvr.study.rule_values import NO_NAME, by_setting, one_of, options
from rlvr.study.source_files import code_of
from rlvr.study.study import TRAIN, TRAINING_PROBLEMS, VALIDATION

# Problems

PROBLEMS = {TRAIN: STUDY.training_settings} if TRAINS else {}
PROBLEMS |= {VALIDATION: STUDY.validation_settings} if STUDY.validation_settings else {}
PROBLEMS |= {name: benchmark.problem_settings() for name, benchmark in STUDY.benchmarks.items()}
DRAWN = {name for name, settings in PROBLEMS.items() if "kinds" in settings}
READ_TRAINING_SET = "evals.problems.training_set:write_training_set"
TRAINED_ON = [TRAINING_PROBLEMS] if TRAINS else []
TRAINED_ON += expand("results/base/{model}/corpus.jsonl.bz2", model=STUDY.scratch_bases)
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
    """Step -> directory of the grades by which the best checkpoint of a run is chosen."""
    candidates = policy(wildcards.run).candidates
    return {str(row.step): f"results/grades/{row.run.run}/{BEST_CHOICE.benchmark}" for row in candidates}


# Evaluation

DECISIVE = {*OfBenchmark.model_fields, *Sampling.model_fields, "served_model", "extra_body"} - {"backend", "dtype"}


def evaluated_on(wildcards):
    """The benchmarks that a checkpoint is evaluated on."""
    return [BEST_CHOICE.benchmark] if policy(wildcards.run).chooses else BENCHMARKS


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
