# What every rule file uses: the checked study, and the lists that follow from it.
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
os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]


def resolve_study():
    """The study of this invocation; a mistake in it ends in one line, before any work."""
    source = ", ".join(os.path.relpath(path) for path in workflow.configfiles)
    try:
        return Study.resolve(config, source or "--config")
    except UserError as error:
        raise WorkflowError(str(error)) from None


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


def run_sheet_json(wildcards):
    """All runs (a function, because Snakemake reads wildcards into the braces of a plain string)."""
    return STUDY.run_sheet()


# The run sheet: which runs there are, and what they are called. Small, so a job of its own would cost more than it does.
rule run_sheet:
    output:
        "results/runs.json",
    params:
        sheet=run_sheet_json,
    localrule: True
    shell:
        "printf '%s' {params.sheet:q} > {output:q}"
