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
    """The Python of a kind of job, and the values of its rule's ``conda`` and ``container``."""

    python: str
    conda: str | Callable[[Any], None]
    container: str | None = None


# A function, which Snakemake takes for a decision: `snakemake --lint` asks every rule for one.
_OURS = {"conda": lambda wildcards: None, "container": None}
_VERL = {"conda": str(_ENVIRONMENTS / "verl.yaml"), "container": str(_CONTAINER)}
_VLLM = {"conda": str(_ENVIRONMENTS / "vllm.yaml"), "container": str(_CONTAINER)}


def software(plan: Plan, environment: str) -> Software:
    """The software of jobs that train or sample (``training``, ``sampling``), or of all others (empty).

    A Python that the study names by its path comes before what ``--sdm`` brings. In a study by verl, vLLM is verl's.
    verl has a Python of its own, which the training command starts.
    """
    by_verl = plan.study.engine == VERL
    if environment == "training":
        brought = _VERL if by_verl else _VLLM if plan.study.config.samples_rollouts_by_vllm else _OURS
        named = plan.execution.training_python
        return _software("training_python", None if by_verl else named, _OURS if "/" in (named or "") else brought)
    if environment == "sampling":
        named = plan.execution.sampling_python
        uses_vllm = plan.study.config.evaluation.backend == "vllm" and "/" not in (named or "")
        return _software("sampling_python", named, (_VERL if by_verl else _VLLM) if uses_vllm else _OURS)
    return _software("", None, _OURS)


def _software(key: str, python: str | None, brought: dict[str, Any]) -> Software:
    python = python or "python"
    if "/" in python:  # else on the PATH
        path = REPOSITORY / Path(python).expanduser()
        if not path.is_file():
            raise UserError(f"execution.{key}: {python}: no such file; `make test-engines` makes .venv-engines")
        python = shlex.quote(str(path))
    return Software(python, **brought)


def complete(workflow: Any, kinds: list[Software]) -> None:
    """Let the rules that name no environment run where Snakemake does, and ask for the container that others name."""
    for rule in workflow.rules:
        rule.conda_env = rule.conda_env or _OURS["conda"]
    asked = DeploymentMethod.APPTAINER in workflow.deployment_settings.deployment_method
    if asked and any(software.container for software in kinds) and not _CONTAINER.exists():
        recipe = _ENVIRONMENTS / "verl.dockerfile"
        raise UserError(f"--sdm apptainer: {_CONTAINER}: no such container; {recipe} says how to make it")
