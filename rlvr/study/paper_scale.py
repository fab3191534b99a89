"""What a study trained by verl adds: settings of its models, the cluster, and what a run is for that engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evals.core.errors import UserError

VERL = "verl"
_ONLY_LOCAL = ("micro_batch_size", "sampling_batch_size")
_ONLY_VERL = ("max_prompt_tokens",)
_CLUSTER_DEFAULTS: Mapping[str, Any] = {
    "platform": "cuda",
    "sequence_parallel": 1,
    "rollout_tensor_parallel": 1,
    "gpu_memory_utilization": 0.6,
    "offload": False,
    "checkpoints_kept": 2,
    "hidden_state_host_budget": 262144,  # 256 GiB
}
_OF_EXECUTION = ("checkpoint_interval", "grading_workers", "hidden_state_budget")


def engine_of(config: Mapping[str, Any]) -> str:
    """Which engine trains the study's runs."""
    return str(config.get("engine", "local"))


def check_engine(config: Mapping[str, Any], training: Mapping[str, Mapping[str, Any]], source: str) -> None:
    """Check that the study has what its engine needs, and nothing that it would ignore.

    Args:
        config: the study, with methods.
        training: training settings by the name of their key in the study.
        source: names the study in messages.

    Raises:
        UserError: a setting is missing, or is of another engine.
    """
    by_verl = engine_of(config) == VERL
    needed, foreign = (_ONLY_VERL, _ONLY_LOCAL) if by_verl else (_ONLY_LOCAL, _ONLY_VERL)
    for key, settings in training.items():
        for name in needed:
            if name not in settings:
                raise UserError(f"{source}: {key}: lacks {name}; accepted: a number, for engine {engine_of(config)}")
        for name in foreign:
            if name in settings:
                raise UserError(f"{source}: {key}.{name}: is no setting of engine {engine_of(config)}; accepted: none")
    if by_verl and "diagnostics" in config:
        raise UserError(f"{source}: diagnostics: replays runs of engine local; accepted: none with engine verl")
    execution = config["execution"]
    lacking = [key for key in (*_OF_EXECUTION, "cluster", "training_python") if key not in execution]
    if by_verl and lacking:
        raise UserError(f"{source}: execution: lacks {', '.join(lacking)}, which engine verl needs")
    if not by_verl and ("cluster" in execution or "training_python" in execution):
        raise UserError(f"{source}: execution: cluster and training_python are of engine verl; accepted: neither")


def cluster_of(config: Mapping[str, Any], model: str) -> dict[str, Any]:
    """Content of ``cluster.json`` for the runs of a model: where they are carried out."""
    execution = config["execution"]
    shared = {key: execution[key] for key in _OF_EXECUTION}
    return {**_CLUSTER_DEFAULTS, **shared, **execution["cluster"], **config["models"][model].get("cluster", {})}
