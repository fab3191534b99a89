"""Everything of verl's insides that the adapter overrides, calls or reads, as it stood in the verl it was read against.

An upgrade begins here: the tests name what has changed since. The overrides are in rlvr/engines/verl/engine.py,
trainer.py and replay_buffer.py; what is registered in verl's public tables is not listed.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Mapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

from rlvr.engines.verl import PINNED

pytest.importorskip("verl", reason="verl is not in this environment: make test-engines")

READ_AGAINST = "0.9.1"
INSIDES = {
    "workers.engine.base.BaseEngine.infer_batch": ("385edf89498f", "token weights after the old log-probs"),
    "workers.engine.fsdp.transformer_impl.FSDPEngine.initialize": ("3a04cf9c22e2", "how long ranks wait"),
    "workers.engine.fsdp.transformer_impl.FSDPEngine.forward_backward_batch": (
        "237c0e9c228c",
        "losses that couple rollouts",
    ),
    "workers.engine.fsdp.transformer_impl.FSDPEngine._build_lr_scheduler": (
        "b618d11ffea7",
        "decay of the learning rate",
    ),
    "workers.engine.fsdp.transformer_impl.FSDPEngine._build_lora_module": ("30f33d930e8f", "adapters' first numbers"),
    "workers.engine.fsdp.transformer_impl.FSDPEngine._merged_lora_per_tensor_param": (
        "771b0779a8e3",
        "what vLLM is sent of adapters",
    ),
    "workers.engine.fsdp.transformer_impl.FSDPEngine.save_checkpoint": (
        "7855b4991f66",
        "adapters in float32",
    ),
    "workers.engine.fsdp.transformer_impl.FSDPEngine.get_data_parallel_rank": ("dfa8c5bab537", "called"),
    "workers.engine.fsdp.transformer_impl.FSDPEngine.get_data_parallel_size": ("3a2fc929f037", "called"),
    "workers.engine.fsdp.transformer_impl.FSDPEngine.get_data_parallel_group": ("efeae7fa97d7", "called"),
    "workers.engine.fsdp.transformer_impl.FSDPEngine._gather_and_unpad_packed": ("8bad0c87f463", "called"),
    "workers.engine.fsdp.transformer_impl.FSDPEngineWithLMHead.prepare_model_outputs": (
        "fe47e79d4faf",
        "the head's inputs",
    ),
    "workers.engine.fsdp.transformer_impl.FSDPEngineWithLMHead.forward_step": (
        "0c246a287aaf",
        "gradients and metrics of losses",
    ),
    "workers.engine_workers.TrainingWorker.__init__": ("2677f57e4f38", "the process group before the engine"),
    "workers.engine_workers.TrainingWorker.train_mini_batch": ("e95d0ed9be07", "how a rank's share is sliced"),
    "workers.engine_workers.TrainingWorker.train_batch": ("c69f927ddc1b", "calls the engine's; outputs go to the CPU"),
    "workers.engine_workers.TrainingWorker.infer_batch": ("f23cd4d7098e", "calls the engine's; outputs go to the CPU"),
    "single_controller.base.worker.Worker._query_dispatch_info": ("97de321e6d3b", "called"),
    "single_controller.base.worker_group.WorkerGroup.__init__": ("84bbffbc7a00", "its _dispatch_info is read"),
    "trainer.ppo.v1.trainer_base.PPOTrainer.__init__": ("baa6517f050f", "the settings of a run; refill_fn"),
    "trainer.ppo.v1.trainer_base.PPOTrainer._balance_batch": ("15c76afb58f4", "mini-batches"),
    "trainer.ppo.v1.trainer_base.PPOTrainer._update_actor": ("cd7783aaa6ef", "the step"),
    "trainer.ppo.v1.trainer_base.PPOTrainer._compute_advantage": ("1fa06c928f2f", "token weights"),
    "trainer.ppo.v1.trainer_base.PPOTrainer._compute_metrics": ("46175d3c2cdc", "seconds"),
    "trainer.ppo.v1.trainer_base.PPOTrainer._compute_old_log_prob": ("5ca28a6483ca", "its outputs are read"),
    "trainer.ppo.v1.trainer_base.PPOTrainer._next_train_batch": ("9eb23b5f5870", "its prompts are counted on"),
    "trainer.ppo.v1.trainer_base.PPOTrainer._step_once": ("b9d72aef23f2", "the order of all of these"),
    "trainer.ppo.v1.replay_buffer.ReplayBuffer.__init__": ("b49fc64696bf", "its fields are read"),
    "trainer.ppo.v1.replay_buffer.ReplayBuffer.sample": ("e29f28813ca7", "whole batches"),
    "trainer.ppo.v1.replay_buffer.ReplayBuffer._sync_metadata_from_transfer_queue": ("5b44f423500b", "called"),
}
"""Method -> the beginning of the SHA-256 of its syntax tree, comments aside, and what the adapter does there."""
OF_THE_QUEUE: Mapping[str, tuple[str, str]] = {
    "controller.TransferQueueController.kv_retrieve_meta": (
        "35538322ec1d",
        "keys are noted in the order in which they are put",
    ),
    "controller.TransferQueueController._handle_kv_list_request": ("8afa53616ba3", "and listed in that order"),
    "controller.DataPartitionStatus.clear_data": ("b0d377913170", "those that are cleared are forgotten"),
}
"""The same of TransferQueue, by whose order of prompts the replay buffer goes."""
ROOT = Path(__file__).parents[2]


def method_of(name: str, package: str = "verl") -> ast.FunctionDef | ast.AsyncFunctionDef:
    """A method of verl or another package, parsed and not imported."""
    module, kind, method = name.rsplit(".", 2)
    spec = find_spec(package)
    assert spec is not None and spec.origin is not None
    path = Path(spec.origin).parent / f"{module.replace('.', '/')}.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == kind]
    functions = (node for node in classes[0].body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return next(node for node in functions if node.name == method)


def test_the_version_that_was_read_is_the_one_that_is_pinned_and_installed() -> None:
    assert version("verl") == PINNED == READ_AGAINST


@pytest.mark.parametrize("name", INSIDES)
def test_what_is_overridden_is_what_was_read(name: str) -> None:
    found = hashlib.sha256(ast.dump(method_of(name)).encode()).hexdigest()[:12]
    assert found == INSIDES[name][0], f"read verl.{name} again ({INSIDES[name][1]}), then note {found}"


@pytest.mark.parametrize("name", OF_THE_QUEUE)
def test_the_queue_is_the_one_that_was_read(name: str) -> None:
    found = hashlib.sha256(ast.dump(method_of(name, "transfer_queue")).encode()).hexdigest()[:12]
    assert found == OF_THE_QUEUE[name][0], (
        f"read transfer_queue.{name} again ({OF_THE_QUEUE[name][1]}), then note {found}"
    )


SUBCLASSES = {"engine": ("MethodEngine",), "trainer": ("MethodTrainer",), "replay_buffer": ("MethodReplayBuffer",)}
"""Of verl's classes, by file of ours; the reward manager and the callback are public extension points."""


def classes_of(path: Path) -> list[ast.ClassDef]:
    return [node for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.ClassDef)]


def methods_in(kind: ast.ClassDef) -> set[str]:
    return {node.name for node in kind.body if isinstance(node, ast.FunctionDef)}


def used_of_verl(kind: ast.ClassDef) -> set[str]:
    """The attributes of ``self`` that a class of ours has not made itself, and private ones of anything else."""
    used, made = set(), methods_in(kind)
    for node in ast.walk(kind):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            made.add(node.target.id)
        elif isinstance(node, ast.Assign):
            made |= {each.id for each in node.targets if isinstance(each, ast.Name)}
        if isinstance(node, ast.Attribute) and not node.attr.startswith("__"):
            of_self = isinstance(node.value, ast.Name) and node.value.id == "self"
            if of_self and isinstance(node.ctx, ast.Store):
                made.add(node.attr)
            elif of_self or node.attr.startswith("_"):
                used.add(node.attr)
    return used - made


def methods_of_verl() -> set[str]:
    """The methods of all classes in those of verl's files that the list names."""
    spec = find_spec("verl")
    assert spec is not None and spec.origin is not None
    files = {Path(spec.origin).parent / f"{name.rsplit('.', 2)[0].replace('.', '/')}.py" for name in INSIDES}
    return {method for path in files for kind in classes_of(path) for method in methods_in(kind)}


def subclasses() -> list[ast.ClassDef]:
    """Our classes, parsed."""
    files = {file: classes_of(ROOT / "rlvr" / "engines" / "verl" / f"{file}.py") for file in SUBCLASSES}
    return [kind for file, names in SUBCLASSES.items() for kind in files[file] if kind.name in names]


def overrides() -> set[str]:
    """The methods of verl that classes of ours replace, as CLASS.METHOD of ours."""
    of_verl = methods_of_verl()
    return {f"{kind.name}.{name}" for kind in subclasses() for name in methods_in(kind) & of_verl}


def test_every_name_of_verl_s_insides_is_listed() -> None:
    """What ours override or call is in the list; what they read is set or read in a method of the list."""
    listed = {name.rsplit(".", 1)[1] for name in INSIDES}
    sources = "\n".join(ast.unparse(method_of(name)) for name in INSIDES)
    of_verl = methods_of_verl()
    for kind in subclasses():
        used = used_of_verl(kind)
        called = [node.func for node in ast.walk(kind) if isinstance(node, ast.Call)]
        calls = {each.attr for each in called if isinstance(each, ast.Attribute)}
        needed = (methods_in(kind) | used) & of_verl | {name for name in used & calls if name.startswith("_")}
        assert needed <= listed, needed - listed
        unseen = {name for name in used - listed if not re.search(rf"\.{name}\b", sources)}
        assert not unseen, unseen
