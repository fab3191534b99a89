"""A run and a cluster at paper scale, as a study resolves them."""

import copy
import importlib
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from evals.core.run_spec import Cluster, VerlRun
from rlvr.engines.verl.launch import Places
from rlvr.methods.components import composition
from rlvr.study.catalogue import load_catalogue, resolve_method

CLUSTER: dict[str, Any] = {
    "platform": "cuda",
    "nodes": 2,
    "gpus_per_node": 8,
    "sequence_parallel": 2,
    "rollout_tensor_parallel": 4,
    "tokens_per_device": 16384,
    "gpu_memory_utilization": 0.6,
    "offload": True,
    "checkpoint_interval": 4,
    "checkpoints_kept": 2,
    "grading_workers": 16,
}
TRAINING: dict[str, Any] = {
    "steps": 220,
    "prompts_per_step": 128,
    "samples_per_prompt": 16,
    "updates_per_step": 4,
    "max_prompt_tokens": 2048,
    "max_new_tokens": 20480,
    "temperature": 1.0,
    "learning_rate": 1e-6,
    "warmup_updates": 0,
    "weight_decay": 0.1,
    "gradient_clip": 1.0,
}
PIECES = ("version", *composition().model_fields)


def run_content(method: str = "delta", **training: Any) -> dict[str, Any]:
    """run.json of a method of the catalogue, with some training settings changed."""
    entry = resolve_method(method, {}, load_catalogue(), "test")
    return {
        "run": f"qwen3_8b-{method}-s1",
        "engine": "verl",
        "model": "qwen3_8b",
        "base": "results/base/qwen3_8b",
        "dtype": "bfloat16",
        "problems": "results/problems/train",
        "prompt": "{problem} Put the answer in \\boxed{}.",
        "prompt_form": "base",
        "method_name": method,
        "method": {piece: copy.deepcopy(entry.get(piece)) for piece in PIECES},
        "seed": 1,
        "training": {**TRAINING, **training},
    }


def make_run(method: str = "delta", **training: Any) -> VerlRun:
    """The same, read."""
    return VerlRun.parse(run_content(method, **training), "run.json")


def make_cluster(**changes: Any) -> Cluster:
    """A cluster with some settings changed."""
    return Cluster.parse({**CLUSTER, **changes}, "cluster")


def import_with_verl(
    monkeypatch: pytest.MonkeyPatch, wanted: str, ReplayBuffer: type = object, PPOTrainer: type = object, **queue: Any
) -> ModuleType:
    """A module of rlvr.engines.verl with stand-ins for verl's classes and for the functions of its transfer queue."""

    def module(name: str, **content: Any) -> None:
        made = ModuleType(name)
        made.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, made)

    module("transfer_queue", KVBatchMeta=SimpleNamespace, **queue)
    for name in ("verl", "verl.trainer", "verl.trainer.ppo", "verl.trainer.ppo.v1"):
        module(name)
    module("tensordict", TensorDict=lambda fields, batch_size: fields)
    module("verl.trainer.ppo.v1.replay_buffer", ReplayBuffer=ReplayBuffer)
    module("verl.trainer.ppo.v1.trainer_sync", PPOTrainerSync=PPOTrainer)
    own = ("rlvr.engines.verl.replay_buffer", "rlvr.engines.verl.trainer")
    for name in own:
        monkeypatch.delitem(sys.modules, name, raising=False)
    found = importlib.import_module(f"rlvr.engines.verl.{wanted}")
    for name in own:  # they have seen what verl is not
        monkeypatch.delitem(sys.modules, name, raising=False)
    return found


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(run=tmp_path / "runs" / "r", study=tmp_path, repository=tmp_path / "code", state=tmp_path / "state")
