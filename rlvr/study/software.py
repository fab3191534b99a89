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
    config, by_verl = plan.study.config, plan.study.engine == VERL
    needs = {
        "training": by_verl or config.samples_rollouts_by_vllm,
        "sampling": config.evaluation.backend == "vllm",
    }
    key = f"{environment}_python"
    python = getattr(plan.execution, key, None) or "python"
    is_path = "/" in python  # else on the PATH
    brought: dict[str, Any] = (_VERL if by_verl else _VLLM) if needs.get(environment) and not is_path else _OURS
    if environment == "training" and by_verl:
        return Software("python", **brought)
    if is_path:
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
