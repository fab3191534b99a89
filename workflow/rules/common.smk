# What all rules share: the checked study, and the lists that follow from it.
import os
import sys
from pathlib import Path

from evals.artifacts import canonical_json
from evals.errors import UserError
from evals.generation import VERSION as SAMPLER_VERSION
from evals.grading import VERSION as GRADER_VERSION
from rlvr.base_model import VERSION as BASE_MODEL_VERSION
from rlvr.engines.local import VERSION as ENGINE_VERSION
from rlvr.study.study import Study

# Jobs call `python`: the one that runs this, whether or not its environment is activated.
os.environ.update(PATH=os.pathsep.join([os.path.dirname(sys.executable), *os.get_exec_path()]))


def resolve_study():
    """The study of this invocation; a mistake in it ends in one line, before any work."""
    source = ", ".join(str(path).removeprefix(f"{workflow.basedir}/") for path in workflow.configfiles)
    try:
        return Study.resolve(config, source)
    except UserError as error:
        sys.exit(f"error: {error}")


STUDY = resolve_study()
EXECUTION = STUDY.config["execution"]
RUN_IDS = [run.run for run in STUDY.runs]
TRAINED_IDS = [run.run for run in STUDY.trained_runs]
SCORES = [f"results/scores/{benchmark}.json" for benchmark in STUDY.benchmarks]
REPOSITORY = workflow.basedir


wildcard_constraints:
    run="|".join(RUN_IDS),
    benchmark="|".join(STUDY.benchmarks),
    model="|".join(STUDY.config["models"]),


def modules(*names):
    """Source files of modules or packages: inputs of the stages that are cheap to repeat when their code changes."""
    paths = []
    for name in names:
        path = Path(REPOSITORY, *name.split("."))
        paths += sorted(path.glob("*.py")) if path.is_dir() else [path.with_suffix(".py")]
    return [str(path) for path in paths]


FIGURES = expand(
    "results/figures/{figure}.{ending}", figure=["scores", "differences", "training_curves"], ending=["png", "svg"]
)
NOTE = (
    "Generated problems and a model of half a million parameters: this shows how the methods behave on this task, and"
    " that the machinery works. It is no evidence about models of billions of parameters."
)
METRICS = expand("results/runs/{run}/metrics.parquet", run=TRAINED_IDS)
# Benchmark files are written with a job but are no outputs of it: the tables read them, and follow the job through
# its manifest.
RUN_MANIFESTS = expand("results/runs/{run}/manifest.json", run=TRAINED_IDS)


# Parameters and inputs of rules. Text with braces has to come from a function: Snakemake reads wildcards into the
# braces of a plain string.
def run_sheet_json(wildcards):
    """All runs."""
    return STUDY.run_sheet()


def training_kinds(wildcards):
    """Families and lengths of the training problems."""
    return canonical_json(STUDY.config["problems"]["kinds"])


def benchmark_kind(wildcards):
    """Family and length of a generated benchmark."""
    benchmark = STUDY.benchmarks[wildcards.benchmark]
    return canonical_json([{"family": benchmark["family"], "operands": benchmark["operands"]}])


def benchmark_count(wildcards):
    """Number of a benchmark's problems."""
    return STUDY.benchmarks[wildcards.benchmark]["count"]


def benchmark_seed(wildcards):
    """Seed of a generated benchmark."""
    return STUDY.benchmarks[wildcards.benchmark]["seed"]


def corpus_settings(wildcards):
    """A model's corpus, as configured."""
    return canonical_json(STUDY.config["models"][wildcards.model]["corpus"])


def corpus_count(wildcards):
    """Worked solutions that a model's training uses up."""
    training = STUDY.config["models"][wildcards.model]["training"]
    return training["steps"] * training["batch_size"]


def base_model_settings(wildcards):
    """A model's architecture and training, as the base trainer takes them."""
    model = STUDY.config["models"][wildcards.model]
    return canonical_json({"architecture": model["architecture"], **model["training"]})


def resolved_run(wildcards):
    """Content of the run's run.json: whatever changes it makes this run, and no other, be trained again."""
    return canonical_json(STUDY.resolved_run(wildcards.run))


def base_manifest(wildcards):
    """The base model that a run starts from."""
    return f"results/base/{STUDY.run(wildcards.run).model}/manifest.json"


def evaluated_manifest(wildcards):
    """The manifest of the checkpoint that a run evaluates."""
    return STUDY.checkpoint_manifest(wildcards.run)


def evaluated_directory(wildcards):
    """The directory of that checkpoint's artifact."""
    return str(Path(STUDY.checkpoint_manifest(wildcards.run)).parent)


def benchmark_prompt(wildcards):
    """A benchmark's prompt template."""
    return STUDY.benchmarks[wildcards.benchmark]["prompt"]


def study_json(wildcards):
    """The whole configuration."""
    return canonical_json(config)
