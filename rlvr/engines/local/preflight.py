"""What a training will hold in memory, in one table before its first step, against what the device has.

Activations are counted: one micro-batch runs on tensors that have shapes and no numbers (torch's device ``meta``), and
what is kept for the gradient is added up. It takes no memory and no GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

import psutil
import torch
from safetensors import safe_open
from torch import Tensor

from evals.core.errors import UserError
from evals.core.files import read_jsonl
from evals.core.run_spec import Execution, LocalRun
from evals.generation.architecture import DecoderConfig, UnknownArchitecture
from evals.generation.checkpoint import Checkpoint
from evals.generation.decoder import DecoderModel
from rlvr.engines.local.policy import LOGITS_AT_ONCE
from rlvr.engines.local.rollout import encode_problems
from rlvr.engines.local.vllm_rollouts import key_value_bytes
from rlvr.methods.method import compose

if TYPE_CHECKING:
    from peft.tuners.lora import LoraLayer

SMALL = 1 << 26
"""Bytes of weights up to which nothing is said: the laptop study's models fit everywhere."""
_TORCH = 400 << 20
"""Bytes of a process that has loaded torch and nothing else."""
Phase = Literal["always", "sampling", "update"]


@dataclass(frozen=True)
class Part:
    """Something that a training holds: bytes, when, and the settings that change it."""

    name: str
    size: int
    phase: Phase = "always"
    settings: str = ""


def check_memory(run: LocalRun, execution: Execution) -> None:
    """Print the table; UserError if the training cannot fit."""
    checkpoint = Checkpoint(run.base / "checkpoint")
    shapes = _shapes(checkpoint)
    if 4 * sum(map(_numbers, shapes.values())) <= SMALL:
        return
    problems = read_jsonl(run.problems / "problems.jsonl", required=("id", "problem"))
    longest = max(map(len, encode_problems(checkpoint, run, problems).values()))
    found = parts(run, execution, checkpoint, shapes, longest + run.training.max_new_tokens)
    total, free = peak(found), _memory(execution.device)
    print(*table(run.run, found, total, free, execution.device), sep="\n", flush=True)
    if total > free:
        largest = max((part for part in found if part.settings), key=lambda part: part.size)
        raise UserError(
            f"{run.run}: needs about {total >> 20} MiB of memory on {execution.device}, which has {free >> 20}; the "
            f"largest part that settings change is {largest.name}: {largest.settings}"
        )


def parts(
    run: LocalRun, execution: Execution, checkpoint: Checkpoint, shapes: Mapping[str, list[int]], longest: int
) -> list[Part]:
    """What the training holds, from the shapes of its weights; ``longest`` tokens are a prompt and its response."""
    training, method = run.training, compose(run.method, f"method {run.method_name}")
    weights, bytes_of_number = sum(map(_numbers, shapes.values())), getattr(torch, run.dtype).itemsize
    try:
        config: DecoderConfig | None = DecoderConfig.from_json(checkpoint.config, "config.json")
    except UnknownArchitecture:
        config = None
    adapters: Mapping[str, LoraLayer] = {}
    if training.lora is not None:
        from rlvr.engines.local.lora import empty_adapters  # which imports transformers

        adapters = empty_adapters(checkpoint, training.lora)
    found = [Part("torch", _TORCH), *_trained(run, shapes, adapters, by_decoder=config is not None)]
    rows = min(training.sampling_batch_size, training.rollouts_per_step)
    if training.sampling_backend == "vllm":
        of_rows = key_value_bytes(checkpoint.config, run.dtype, rows, longest)
        found += [
            Part(f"weights of vLLM, {run.dtype}", bytes_of_number * weights),
            Part("keys and values of vLLM", of_rows, settings="sampling_batch_size, max_new_tokens"),
        ]
    if config is None:
        return [*found, Part("activations of transformers' model: not counted", 0)]
    batch = min(training.micro_batch_size, training.rollouts_per_update)
    if training.micro_batch_tokens is not None:
        batch = max(1, min(batch, training.micro_batch_tokens // longest))
    # The logits, their logarithms, and shares or slopes of the same size.
    of_logits = 3 * 4 * min(LOGITS_AT_ONCE, batch * training.max_new_tokens * config.vocabulary)
    again = execution.gradient_checkpointing
    activations, copies = kept_by_passes(config, shapes, run, again, [longest] * batch, adapters)
    of_passes = "micro_batch_size, micro_batch_tokens" + ("" if again else ", execution.gradient_checkpointing")
    if training.sampling_backend == "local":
        of_token = 2 * config.layers * config.key_value_heads * config.head_dimension * bytes_of_number
        found += [
            Part(f"weights as the decoder takes them, {run.dtype}", bytes_of_number * weights, "sampling"),
            Part("keys and values", rows * longest * of_token, "sampling", "sampling_batch_size, max_new_tokens"),
        ]
    found += [
        Part("logits of a token for every sample", 5 * 4 * rows * config.vocabulary, "sampling", "sampling_batch_size"),
        Part(f"weights as passes take them, {run.dtype}", copies, "update"),
        Part("gradients of these, before they reach the weights", copies, "update"),
        Part(f"activations of {batch} rollouts of {longest} tokens", activations, "update", of_passes),
        Part("logits of a part of the tokens", of_logits, "update"),
    ]
    if training.temperature != 1:
        head = 2 * 4 * config.vocabulary * config.hidden
        found.append(Part("head over the temperature, and its gradient", head, "update", "temperature"))
    if method.needs_hidden_states:
        width = method.sketch_dimensions or config.hidden
        states = training.rollouts_per_step * training.max_new_tokens * width * bytes_of_number
        held = min(states, execution.hidden_state_budget << 20)
        found.append(Part("hidden states of a rollout batch", held, "update", "execution.hidden_state_budget"))
    return found


def _trained(
    run: LocalRun, shapes: Mapping[str, list[int]], adapters: Mapping[str, LoraLayer], by_decoder: bool
) -> list[Part]:
    """Weights, what is trained of them or beside them, and the optimizer's state of that."""
    weights = trained = sum(map(_numbers, shapes.values()))
    found = [Part("weights, float32", 4 * weights)]
    if adapters:
        from rlvr.engines.local.lora import number_of_parameters

        trained = number_of_parameters(adapters)
        lowered = [shape for name, shape in shapes.items() if name in adapters or (by_decoder and len(shape) > 1)]
        low = sum(map(_numbers, lowered))
        found = [
            Part(f"weights, {run.dtype}", getattr(torch, run.dtype).itemsize * low),
            Part("other weights, float32", 4 * (weights - low)),
            Part("adapters, float32", 4 * trained, settings="lora.rank, lora.target_modules"),
        ]
    return [
        *found,
        Part("gradients, float32", 4 * trained),
        Part("optimizer, two moments in float32", 8 * trained),
    ]


def kept_by_passes(
    config: DecoderConfig,
    shapes: Mapping[str, list[int]],
    run: LocalRun,
    again: bool,
    lengths: list[int],
    adapters: Mapping[str, LoraLayer] = MappingProxyType({}),
) -> tuple[int, int]:
    """Bytes of activations that a pass over sequences of ``lengths`` tokens keeps, and of weights in other form."""
    once, twice = (_kept(config, shapes, run, again, number * lengths, adapters) for number in (1, 2))
    if not again:
        return twice - once, 2 * once - twice
    # Layers that are computed again are held by their inputs, and one at a time is then kept whole.
    whole, copies = kept_by_passes(config, shapes, run, False, lengths, adapters)
    inputs = (config.layers - 1) * sum(lengths) * config.hidden * getattr(torch, run.dtype).itemsize
    return twice - once + inputs + whole // config.layers, copies


def _kept(
    config: DecoderConfig,
    shapes: Mapping[str, list[int]],
    run: LocalRun,
    again: bool,
    lengths: list[int],
    adapters: Mapping[str, LoraLayer],
) -> int:
    """Bytes that a pass keeps for its gradient, beside the weights themselves."""
    dtype = getattr(torch, run.dtype)
    weights = {
        name: torch.empty(shape, device="meta", dtype=dtype if adapters and len(shape) > 1 else torch.float32)
        for name, shape in shapes.items()
    }
    model = DecoderModel(config, weights, dtype, again)
    if adapters:
        from rlvr.engines.local.lora import AdaptedDecoder

        model = AdaptedDecoder(model, adapters)
    saved: dict[int, Tensor] = {}  # by storage; held, so that no other storage takes its place

    def keep(tensor: Tensor) -> Tensor:
        saved.setdefault(tensor.untyped_storage()._cdata, tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.states([[0] * length for length in lengths], [0] * len(lengths))
    # By storage, as products keep transposed views of the weights, which take no memory of their own.
    own = {weight.untyped_storage()._cdata for weight in (*weights.values(), *model.parameters())}
    return sum(tensor.untyped_storage().nbytes() for place, tensor in saved.items() if place not in own)


def peak(found: list[Part]) -> int:
    """The most bytes at a time: what is always there, with what either sampling or updates add."""
    by_phase = {phase: sum(part.size for part in found if part.phase == phase) for phase in ("sampling", "update")}
    return sum(part.size for part in found if part.phase == "always") + max(by_phase.values())


def table(run: str, found: list[Part], total: int, free: int, device: str) -> list[str]:
    """The parts for people, in MiB."""
    lines = [f"{run}: memory that the training takes, estimated, MiB"]
    for part in found:
        name = part.name if part.phase == "always" else f"{part.phase}: {part.name}"
        lines.append(f"  {name:<58}{part.size >> 20:>8}  {part.settings}".rstrip())
    return [*lines, f"  {'at most at a time':<58}{total >> 20:>8}  of {free >> 20} on {device}"]


def _shapes(checkpoint: Checkpoint) -> dict[str, list[int]]:
    """The shapes of the weights, from the files' headers."""
    shapes: dict[str, list[int]] = {}
    for path in sorted(checkpoint.directory.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            names = file.keys()
            shapes |= {name: file.get_slice(name).get_shape() for name in names}
    return shapes


def _numbers(shape: list[int]) -> int:
    return int(torch.Size(shape).numel())


def _memory(device: str) -> int:
    """All memory of the device."""
    return torch.cuda.mem_get_info()[1] if device == "cuda" else int(psutil.virtual_memory().total)
