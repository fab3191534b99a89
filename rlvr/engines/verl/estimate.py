"""The memory of a device in a training step, from shapes alone: no GPU, no weights, no verl.

The model is built of tensors that have shapes and no numbers, sharded over as many ranks as the cluster has devices, of
which this process stands for one. torch adds up what a device holds. Sharding, precision and recomputed activations are
those of the launch; the loss is that of flash-attn, whose gradient takes the place of the logits.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evals.core.errors import UserError
from evals.core.run_spec import Cluster, VerlRun
from evals.core.training_settings import Lora
from rlvr.engines.verl import RESPONSE_FRACTION
from rlvr.engines.verl.checks import check
from rlvr.engines.verl.hidden_states import hidden_state_places, hidden_state_size

_MICRO_BATCHES = 2
"""After the second nothing grows: the first leaves gradients, which the others are added to."""
_NOT_COUNTED = "3 to 5 GiB more: CUDA, NCCL and what vLLM keeps while it sleeps"


@dataclass(frozen=True)
class Peaks:
    """Bytes of a device: held all the time, and at most in the pass for old log-probs and in an update."""

    weights: int
    optimizer: int
    log_probs: int
    update: int


def estimate(run: VerlRun, cluster: Cluster, config: Path) -> str:
    """Return a report for people; ``config`` is the model's config.json."""
    from transformers import AutoConfig

    method = check(run, cluster, None)
    if not config.is_file():
        raise UserError(f"{config}: no such file; accepted: --model-config with the config.json of the model")
    architecture = AutoConfig.from_pretrained(config)
    peaks = device_peaks(architecture, cluster.tokens_per_device, cluster.devices, run.dtype, run.training.lora)
    content = architecture.to_dict()
    hidden = hidden_state_size(run, cluster, method, content, RESPONSE_FRACTION)
    kept = hidden.of_device if hidden is not None and hidden.place(cluster) == "device" else 0
    rows = {
        "weights, float32": peaks.weights,
        "optimizer": peaks.optimizer,
        **({"hidden states": kept} if kept else {}),
        "at most, old log-probs": peaks.log_probs + kept,
        "at most, update": peaks.update,
    }
    lines = [
        f"{run.run}: one of {cluster.devices} devices, {_MICRO_BATCHES} micro-batches of {cluster.tokens_per_device} "
        "tokens, from shapes alone:",
        "",
        *(f"    {name:24}{size / 2**30:8.1f} GiB" for name, size in rows.items()),
        "",
        f"not in it: {_NOT_COUNTED}; what a loss that couples rollouts holds, and what token weights are computed with",
    ]
    if cluster.offload:
        lines.append("offload: weights and optimizer are in host memory while vLLM samples, and here in both passes")
    return "\n".join(lines + hidden_state_places(run, cluster, method, content))


def _adapt(model: Any, lora: Lora) -> None:
    """Put adapters beside a model's linear layers, as peft does; they alone are trained."""
    from torch import Tensor, nn

    class Adapted(nn.Module):
        def __init__(self, layer: nn.Linear) -> None:
            super().__init__()
            self.layer = layer
            self.first = nn.Linear(layer.in_features, lora.rank, bias=False)
            self.second = nn.Linear(lora.rank, layer.out_features, bias=False)

        def forward(self, inputs: Tensor) -> Tensor:
            added: Tensor = self.layer(inputs) + lora.alpha / lora.rank * self.second(self.first(inputs))
            return added

    model.requires_grad_(False)
    targets, head = lora.target_modules, model.get_output_embeddings()
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, nn.Linear) and layer is not head and (isinstance(targets, str) or name in targets):
                setattr(parent, name, Adapted(layer))
    model.enable_input_require_grads()


def device_peaks(config: Any, tokens: int, devices: int, dtype: str, lora: Lora | None = None) -> Peaks:
    """Count what one of ``devices`` holds at most, with micro-batches of ``tokens`` tokens on each.

    With ``lora`` adapters alone are trained.

    It starts torch's default process group, of which a process has one.
    """
    import torch
    import torch.distributed as distributed
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from transformers import AutoModelForCausalLM

    class InPlaceCrossEntropy(torch.autograd.Function):
        """The log-prob of a token [tokens] of logits [tokens, V]: the gradient is written over the logits."""

        @staticmethod
        def forward(ctx: Any, logits: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(logits)
            return logits[:, 0].float()

        @staticmethod
        def backward(ctx: Any, _gradient: torch.Tensor) -> torch.Tensor:
            (logits,) = ctx.saved_tensors
            own: torch.Tensor = logits.mul_(1)
            return own

    warnings.filterwarnings("ignore")
    kept = getattr(torch, dtype)
    distributed.init_process_group("fake", rank=0, world_size=devices, store=FakeStore())
    try:
        mesh = distributed.device_mesh.init_device_mesh("cpu", (devices,))
        with FakeTensorMode():
            config._attn_implementation = "sdpa"
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            model.train()
            if lora is not None:
                _adapt(model, lora)
            precision = MixedPrecisionPolicy(param_dtype=kept, reduce_dtype=torch.float32, cast_forward_inputs=True)
            own = [] if config.tie_word_embeddings else [model.get_input_embeddings()]
            for module in [*model.model.layers, *own, model]:
                fully_shard(module, mesh=mesh, mp_policy=precision, reshard_after_forward=True)
            trained = [each for each in model.parameters() if each.requires_grad]
            optimizer = torch.optim.AdamW(trained)
            weights, moments = (
                sum(size * each.to_local().numel() for each in held)
                for size, held in ((4, list(model.parameters())), (8, trained))
            )
            tracker = FSDPMemTracker(model, optimizer)

            def logits() -> torch.Tensor:
                tracker.reset_mod_stats()  # it knows a module's first pass alone; what is held stays counted
                ids = torch.randint(config.vocab_size, (1, tokens))
                with torch.autocast("cpu", dtype=kept, enabled=dtype != "float32"):
                    found: torch.Tensor = model(input_ids=ids, use_cache=False).logits[0]
                return found

            def update(micro_batches: int) -> None:
                for _ in range(micro_batches):
                    InPlaceCrossEntropy.apply(logits()).sum().backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                optimizer.zero_grad()

            def peak() -> int:
                return max(parts["Total"] for parts in tracker.get_tracker_snapshot("peak").values())

            # Each block counts its own peak.
            with tracker:
                update(1)  # makes the optimizer's state
            with tracker, torch.no_grad():
                found = logits()  # and the entropy, as verl computes it
                torch.logsumexp(found, dim=-1) - (found.softmax(dim=-1) * found).sum(dim=-1)
                del found
            log_probs = peak()
            with tracker:
                update(_MICRO_BATCHES)
            return Peaks(weights, moments, log_probs, peak())
    finally:
        distributed.destroy_process_group()
