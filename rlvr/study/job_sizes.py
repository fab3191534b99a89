"""What jobs ask of a cluster: GPUs, nodes, processors, memory and time; each further attempt asks for more of both.

Memory is that of a node, worked out from the number of a model's parameters, and not measured at full size.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from evals.core.config.base_models import FromScratch, Model, Served
from evals.core.run_spec import VERL
from rlvr.study.benchmarks import absolute_path
from rlvr.study.study import Study

BYTES_TRAINED = 16
"""Of a parameter that is trained: itself, its gradient and two moments, in float32."""
_BYTES_SAVED = 8
"""Of a parameter that verl saves or merges: as it is gathered, and as it is written."""
_BYTES_SAMPLED = 4
"""Of a parameter whose policy is sampled: the file's pages, which count as the job's, and what is read of them."""
_PROCESS_MB = 4000
"""Of a process with torch, whatever it computes."""
_DEVICE_MB = 16_000
"""Of a process beside a GPU: libraries, pinned memory, Ray's store."""
_PROCESSORS_OF_GPU = 8
_UNKNOWN_BILLIONS = 8.0
_BILLIONS = re.compile(r"(\d+(?:\.\d+)?)b(?![a-z])", re.IGNORECASE)


def named_billions(name: str) -> float | None:
    """The billions of parameters in a model's name, as in 0.6B; None where it has none."""
    found = _BILLIONS.search(name)
    return float(found[1]) if found else None


def megabytes(model: Model, bytes_of_parameter: int = 1) -> float:
    """The megabytes of a model, by its shape, its files or its name; else as of 8 billion parameters."""
    if isinstance(model, Served):
        return 0.0
    if isinstance(model, FromScratch):
        shape = model.architecture
        heads = 2 * (shape.num_attention_heads + shape.num_key_value_heads) * shape.head_dim
        count = float(shape.num_hidden_layers * shape.hidden_size * (heads + 3 * shape.intermediate_size))
    elif model.path is not None and (files := [*Path(absolute_path(model.path)).glob("*.safetensors")]):
        count = sum(file.stat().st_size for file in files) / 2
    else:
        count = 1e9 * (named_billions(Path(model.path or model.id or "").name) or _UNKNOWN_BILLIONS)
    return bytes_of_parameter * count / 1e6


def size(amount: float | Callable[[Any], float], minutes: int, processors: int = 1) -> dict[str, Any]:
    """Make the processors, memory, in megabytes, and time of a rule's jobs. The last two grow with the attempt."""
    return {
        "cpus_per_task": processors,
        "mem_mb": lambda wildcards, attempt: round((amount(wildcards) if callable(amount) else amount) * attempt),
        "runtime": lambda wildcards, attempt: minutes * attempt,
    }


def model_training_mb(model: Model, on_gpu: bool) -> float:
    """The megabytes of the local engine's process that trains a model: on a CPU with its activations."""
    return (
        _DEVICE_MB + megabytes(model, _BYTES_SAMPLED) if on_gpu else _PROCESS_MB + megabytes(model, 3 * BYTES_TRAINED)
    )


def training_mb(study: Study, run: str) -> float:
    """The megabytes of a node of a job that trains a run, or repeats it up to a checkpoint.

    By verl what is trained waits in host memory where the cluster has ``offload``, and all of it is saved through it.
    """
    model = study.config.models[study.run(run).model]
    if study.engine != VERL:
        return model_training_mb(model, study.config.execution.device == "cuda")
    cluster = study.cluster(run)
    waiting = megabytes(model, BYTES_TRAINED) / int(cluster["nodes"]) if cluster.get("offload") else 0.0
    return _DEVICE_MB * int(cluster["gpus_per_node"]) + waiting + megabytes(model, _BYTES_SAVED)


def sampling_mb(study: Study, model: str) -> float:
    """The megabytes of a job that samples a model's policy, with a process for each GPU that it is spread over."""
    processes = study.sampling(model).tensor_parallel_size
    of_process = _DEVICE_MB if study.config.execution.device == "cuda" else _PROCESS_MB
    return of_process * processes + megabytes(study.config.models[model], _BYTES_SAMPLED)


def grading_mb(workers: int) -> float:
    """The megabytes of a job that grades: each worker may have a gigabyte, and a sandbox of a program another."""
    return _PROCESS_MB + 2000 * workers


def devices(study: Study, run: str) -> dict[str, Any]:
    """The nodes, GPUs and processors of a job that trains a run, which starts Ray on them where no Ray cluster runs.

    On several nodes Slurm is told the GPUs of each, for so many in all would not do, and that they are its alone.
    """
    execution = study.config.execution
    if study.engine != VERL:
        own = {"nodes": 1, "gpu": int(execution.device == "cuda"), "gres": "", "ray_cluster": 0}
        return {**own, "cpus_per_task": execution.training_threads}
    cluster, has_ray = study.cluster(run), "RAY_ADDRESS" in os.environ
    nodes = int(cluster["nodes"])
    gpus = int(cluster["gpus_per_node"]) if cluster["platform"] == "cuda" else 0
    own_nodes = 1 if has_ray else nodes
    return {
        "nodes": own_nodes,
        "gpu": gpus if nodes == 1 else 0,
        "gres": f"gpu:{gpus}" if own_nodes > 1 and gpus else "",
        "ray_cluster": int(nodes > 1 and has_ray),
        "cpus_per_task": _PROCESSORS_OF_GPU * int(cluster["gpus_per_node"]),
        "slurm_extra": "--exclusive" if own_nodes > 1 else "",
    }
