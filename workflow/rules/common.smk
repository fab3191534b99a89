# What all rules share: the checked study, and the lists that follow from it.
import os
import re
import shlex
import sys
from pathlib import Path

from evals.core.files import canonical_json
from evals.core.errors import UserError
from evals.generation import VERSION as SAMPLER_VERSION
from evals.grading import VERSION as GRADER_VERSION
from evals.grading.code import VERSION as CODE_GRADER_VERSION
from evals.grading.code.sandbox import require_sandbox
from rlvr.base_model import VERSION as BASE_MODEL_VERSION
from rlvr.diagnostics import VERSION as DIAGNOSTICS_VERSION
from rlvr.diagnostics.claims.base import claim_names
from rlvr.engines.local import VERSION as ENGINE_VERSION
from rlvr.study.diagnosed import Diagnosed, measurable_claims
from rlvr.study.studies import named_study_files, read_named_study, resolve_studies, score_points

# Jobs call `python`: the one that runs this, whether or not its environment is activated.
os.environ.update(PATH=os.pathsep.join([os.path.dirname(sys.executable), *os.get_exec_path()]))


def checked_studies():
    """The studies of this invocation; a mistake ends in one line, before any work."""
    source = ", ".join(str(path).removeprefix(f"{workflow.basedir}/") for path in workflow.configfiles)
    try:
        return resolve_studies(config, source)
    except UserError as error:
        sys.exit(f"error: {error}")


def planning():
    """Whether nothing will be run. Snakemake knows it only once it has read the rules."""
    return any(word in ("--dry-run", "--dryrun") or re.fullmatch(r"-[a-zA-Z]*n[a-zA-Z]*", word) for word in sys.argv)


def require_local_copies():
    """Every local copy that the study names is there, or one line says which is not, before any work."""
    copies = {name: benchmark.path for name, benchmark in STUDY.benchmarks.items()}
    for name, path in {**copies, "problems": STUDY.training_settings.get("path")}.items():
        if path is not None and not os.path.exists(path):
            sys.exit(f"error: {name}: path: {path}: no such file or directory")


def require_sandbox_for_programs():
    """Programs can be run here, if the study has a benchmark of them; better said now than after the training."""
    for name, benchmark in STUDY.benchmarks.items():
        if benchmark.grader == "code":
            try:
                require_sandbox()
            except UserError as error:
                sys.exit(f"error: benchmark {name}: {error}")


# A scope is where a study's results lie under results/: "" for the study of this invocation, studies/NAME/ for a named
# one. Problems, base models, runs, samples and grades are shared by all of them.
ALL_STUDIES = checked_studies()
STUDIES, RUNS = ALL_STUDIES.by_scope, ALL_STUDIES.runs
STUDY = STUDIES[""]
SCRATCH, TAKEN_IN = STUDY.models_from_scratch, STUDY.existing_models
require_local_copies()
require_sandbox_for_programs()
EXECUTION = STUDY.config.execution.to_json()
REPOSITORY = workflow.basedir
GENERATED = [name for name, benchmark in STUDY.benchmarks.items() if benchmark.entry.source == "generated"]
READ = [name for name in STUDY.benchmarks if name not in GENERATED]
NONE = "(?!)"
# Other Pythons than ours, such as vLLM's, find our packages here.
os.environ.update(PYTHONPATH=os.pathsep.join([REPOSITORY, *filter(None, [os.environ.get("PYTHONPATH")])]))


wildcard_constraints:
    run="|".join(RUNS),
    scope=f"(?:{'|'.join(STUDIES)})",
    benchmark="|".join(STUDY.benchmarks),
    model="|".join(STUDY.config.models),


def modules(*names):
    """Source files of modules or packages: inputs of the stages that are cheap to repeat when their code changes."""
    paths = []
    for name in names:
        path = Path(REPOSITORY, *name.split("."))
        paths += sorted(path.glob("*.py")) if path.is_dir() else [path.with_suffix(".py")]
    return [str(path) for path in paths]


# Parameters and inputs of rules. Text with braces has to come from a function: Snakemake reads wildcards into the
# braces of a plain string.
def run_sheet_json(wildcards):
    """All runs of the study."""
    return STUDIES[wildcards.scope].run_sheet()


def named_study(wildcards):
    """The named study as written."""
    return read_named_study(named_study_files()[study_name(wildcards)])


def study_title(wildcards):
    """The named study's heading."""
    return named_study(wildcards).title


def report_of_named_study(wildcards):
    """Options of the report: the named study's heading, its own figures, and where published numbers are."""
    if not wildcards.scope:
        return []
    options = ["--title", study_title(wildcards), "--reference", f"{REPOSITORY}/config/reference"]
    return [*options, "--own-figures", *own_figures(wildcards.scope)]


def notes(wildcards):
    """What the study asks, if it is a named one, and what its numbers are evidence of."""
    return [named_study(wildcards).question, NOTE] if wildcards.scope else [NOTE]


def own_settings(wildcards):
    """How this study's numbers are made, in the terms of config/reference/settings.yaml."""
    evaluation = STUDY.config.evaluation
    sampling = {key: getattr(evaluation, key) for key in ("temperature", "top_p", "max_new_tokens")}
    settings = {"training_problems": STUDY.training_problems, "checkpoint": "last"}
    models = {name: f"{name}, trained from scratch" for name in SCRATCH}
    # Of owner/name or of a path papers give the name.
    models |= {name: Path(model.id or model.path).name for name, model in TAKEN_IN.items()}
    return canonical_json({"models": models, **settings, **sampling})


def study_name(wildcards):
    """The study's name."""
    return STUDIES[wildcards.scope].config.study


def reference_method(wildcards):
    """The method that every other one of the study is compared with."""
    return STUDIES[wildcards.scope].config.reference_method


def training_kinds(wildcards):
    """Families and lengths of the training problems."""
    return canonical_json(STUDY.training_settings["kinds"])


def training_set_settings(wildcards):
    """What decides the problems of a published training set."""
    return canonical_json(STUDY.training_settings)


def training_files(wildcards):
    """The local copy that a published training set is read from."""
    return local_files(STUDY.training_settings)


def training_count(wildcards):
    """Number of the training problems."""
    return STUDY.config.problems.count


def training_seed(wildcards):
    """Seed of the training problems."""
    return STUDY.config.problems.seed


def benchmark_settings(wildcards):
    """What decides a benchmark's problems."""
    return canonical_json(STUDY.problem_settings(wildcards.benchmark))


def generated_kinds(wildcards):
    """Family and length of a generated benchmark."""
    return canonical_json(STUDY.problem_settings(wildcards.benchmark)["kinds"])


def generated_count(wildcards):
    """Number of a generated benchmark's problems."""
    return STUDY.benchmarks[wildcards.benchmark].entry.count


def generated_seed(wildcards):
    """Seed of a generated benchmark."""
    return STUDY.benchmarks[wildcards.benchmark].entry.seed


def local_files(settings):
    """The files of a local copy: if one is changed, the copy is read again."""
    return files_of(settings.get("path"))


def files_of(path):
    """All files of a local copy; none without one."""
    return sorted(str(file) for file in ([path] if os.path.isfile(path) else Path(path).rglob("*.*"))) if path else []


def benchmark_files(wildcards):
    """The local copy that a benchmark is read from."""
    return files_of(STUDY.benchmarks[wildcards.benchmark].path)


def grading_kind(wildcards):
    """How a benchmark's responses are read."""
    grader = STUDY.benchmarks[wildcards.benchmark].grader
    return grader if grader in ("choice", "code") else "completion"


def grader_version(wildcards):
    """The version of what grades a benchmark."""
    return f"code {CODE_GRADER_VERSION}" if grading_kind(wildcards) == "code" else GRADER_VERSION


def corpus_settings(wildcards):
    """A model's corpus, as configured."""
    return canonical_json(SCRATCH[wildcards.model].corpus.to_json())


def corpus_count(wildcards):
    """Worked solutions that a model's training uses up."""
    training = SCRATCH[wildcards.model].training
    return training.steps * training.batch_size


def base_model_settings(wildcards):
    """A model's architecture and training, as the base trainer takes them."""
    model = SCRATCH[wildcards.model]
    return canonical_json({"architecture": model.architecture.to_json(), **model.training.to_json()})


def resolved_run(wildcards):
    """Content of the run's run.json: whatever changes it makes this run, and no other, be trained again."""
    return canonical_json(RUNS[wildcards.run][0].resolved_run(wildcards.run))


def base_manifest(wildcards):
    """The base model that a run starts from."""
    return f"results/base/{RUNS[wildcards.run][1].model}/manifest.json"


def evaluated_manifest(wildcards):
    """The manifest of the checkpoint that a run evaluates."""
    return RUNS[wildcards.run][0].checkpoint_manifest(wildcards.run)


def evaluated_directory(wildcards):
    """The directory of that checkpoint's artifact."""
    return str(Path(RUNS[wildcards.run][0].checkpoint_manifest(wildcards.run)).parent)


def study_json(wildcards):
    """The whole configuration of the study."""
    return canonical_json(STUDIES[wildcards.scope].config.to_json())
