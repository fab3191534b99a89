"""The software of the jobs that need verl or vLLM: a Python that the study names, or what ``snakemake --sdm`` brings.

All other jobs run in the environment that Snakemake itself runs in, which has to have our packages anyway.
"""

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snakemake_interface_executor_plugins.settings import DeploymentMethod

from evals.core.errors import UserError
from evals.core.run_spec import VERL
from rlvr.study.plan import Plan
from rlvr.study.source_files import REPOSITORY

_ENVIRONMENTS = REPOSITORY / "workflow" / "envs"
_CONTAINER = _ENVIRONMENTS / "verl.sif"  # has vLLM too


@dataclass(frozen=True)
class Software:
    """The values of a rule's ``conda`` and ``container``."""

    conda: str | Callable[[Any], None]
    container: str | None = None


# A function, which Snakemake takes for a decision: `snakemake --lint` asks every rule for one.
OURS = Software(conda=lambda wildcards: None)
_VERL = Software(str(_ENVIRONMENTS / "verl.yaml"), str(_CONTAINER))
_VLLM = Software(str(_ENVIRONMENTS / "vllm.yaml"), str(_CONTAINER))


def named_python(plan: Plan, key: str) -> str:
    """The command of the Python that the study's ``execution`` names, or ``python``; a path is the repository's."""
    python = str(plan.execution.get(key, "python"))
    if "/" not in python:  # on the PATH
        return python
    path = REPOSITORY / Path(python).expanduser()
    if not path.is_file():
        raise UserError(f"execution.{key}: {python}: no such file; `make test-engines` makes .venv-engines")
    return shlex.quote(str(path))


def training_software(plan: Plan) -> Software:
    """The software of trainings: verl's or vLLM's where they need it, unless the study names a Python by its path."""
    if "/" in plan.execution.get("training_python", "python"):
        return OURS
    if plan.study.engine == VERL:
        return _VERL
    return _VLLM if plan.study.config.samples_rollouts_by_vllm else OURS


def sampling_software(plan: Plan) -> Software:
    """The software of jobs that sample by vLLM, likewise; in a study by verl it is verl's, which has a vLLM."""
    if plan.study.config.evaluation.backend != "vllm" or "/" in plan.execution.get("sampling_python", "python"):
        return OURS
    return _VERL if plan.study.engine == VERL else _VLLM


def complete(workflow: Any, named: list[Software]) -> None:
    """Let the rules that name no environment run where Snakemake does, and ask for the container that others name."""
    for rule in workflow.rules:
        rule.conda_env = rule.conda_env or OURS.conda
    asked = DeploymentMethod.APPTAINER in workflow.deployment_settings.deployment_method
    if asked and any(each.container for each in named) and not _CONTAINER.exists():
        recipe = _ENVIRONMENTS / "verl.dockerfile"
        raise UserError(f"--sdm apptainer: {_CONTAINER}: no such container; {recipe} says how to make it")
