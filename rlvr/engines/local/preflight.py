"""The table of the memory that a training or a warm start will hold, against what there is, before its first step.

Activations are counted: one micro-batch runs on tensors that have shapes and no numbers, which takes no memory and no
GPU (:mod:`rlvr.engines.local.decoder_memory`, :mod:`rlvr.engines.local.padded_memory`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import psutil
import torch

from evals.core.errors import UserError, first_line
from evals.core.files import read_jsonl
from evals.core.run_spec import Execution, LocalRun
from evals.generation.architecture import DecoderConfig, UnknownArchitecture
from evals.generation.checkpoint import Checkpoint
from rlvr.engines.local.contrast import compared_gradients
from rlvr.engines.local.decoder_memory import kept_by_passes
from rlvr.engines.local.policy import LOGITS_AT_ONCE
from rlvr.engines.local.rollout import encode_problems
from rlvr.engines.local.vllm_rollouts import key_value_bytes
from rlvr.methods.method import compose

if TYPE_CHECKING:
    from peft.tuners.lora import LoraLayer

    from rlvr.engines.local.padded_memory import Sampling, Update

SMALL = 1 << 26
"""Bytes of weights up to which nothing is said: the laptop study's models fit everywhere."""
_TORCH = 400 << 20
"""Bytes of a process that has loaded torch and this package."""
_TRANSFORMERS = 230 << 20
"""Bytes that transformers and its tokenizer add to a process: they fill chat templates, and compute some models."""
_KERNELS = 190 << 20
"""Bytes of the kernels that oneDNN keeps for 64 shapes (:func:`evals.generation.arithmetic.set_up`)."""
_OF_ROWS = "sampling_batch_size, max_new_tokens"
Phase = Literal["always", "sampling", "update", "contrast"]


@dataclass(frozen=True)
class Part:
    """Something that a training holds: bytes, when, and the settings that change it."""

    name: str
    size: int
    phase: Phase = "always"
    settings: str = ""


def check_memory(run: LocalRun, execution: Execution, memory: int | None = None) -> None:
    """Print the table; UserError if the training cannot fit.

    With ``memory``, the bytes of a device that need not be there, the table is that of a small model too.
    """
    checkpoint = Checkpoint(run.base / "checkpoint")
    shapes = checkpoint.shapes
    if memory is None and 4 * sum(map(_numbers, shapes.values())) <= SMALL:
        return
    problems = read_jsonl(run.problems / "problems.jsonl", required=("id", "problem"))
    longest = max(map(len, encode_problems(checkpoint, run, problems).values()))
    found = parts(run, execution, checkpoint, shapes, longest + run.training.max_new_tokens)
    _compare(run.run, found, execution.device, memory)


def check_fine_tuning(
    name: str,
    checkpoint: Checkpoint,
    dtype: str,
    prompt_form: str,
    lengths: Sequence[int],
    targets: int,
    device: str,
) -> None:
    """Print the table of a warm start, whose largest pass is over sequences of ``lengths``; UserError if it cannot fit.

    ``targets`` tokens of that pass are solutions, whose logits are computed.
    """
    shapes = checkpoint.shapes
    if 4 * sum(map(_numbers, shapes.values())) <= SMALL:
        return
    config = decoder_config(checkpoint)
    imported = _imported(device, dtype, prompt_form == "chat" or config is None)
    found = [*imported, *_trained(dtype, shapes, {}, by_decoder=False)]
    count, longest, settings = len(lengths), max(lengths), "fine_tuning.micro_batch_tokens"
    if config is None:
        from rlvr.engines.local.padded_memory import PaddedModel  # which imports transformers

        model, what = PaddedModel(checkpoint, dtype), f"{count} solutions of {longest} tokens, padded"
        found += _counted(lambda: _of_padded_passes(model.update(count, longest, targets), dtype, what, settings))
    else:
        what = f"{count} solutions of {sum(lengths)} tokens"
        found += _of_passes(config, shapes, dtype, False, list(lengths), targets, {}, what, settings)
    _compare(name, found, device)


def _compare(name: str, found: list[Part], device: str, memory: int | None = None) -> None:
    """Print the table of the parts; UserError if they do not fit into ``memory`` bytes, by default the device's."""
    total, free = peak(found), _memory(device) if memory is None else memory
    print(*table(name, found, total, free, device), sep="\n", flush=True)
    if total > free:
        largest = max((part for part in found if part.settings), key=lambda part: part.size, default=None)
        hint = f"; the largest part that settings change is {largest.name}: {largest.settings}" if largest else ""
        raise UserError(f"{name}: needs about {total >> 20} MiB of memory on {device}, which has {free >> 20}{hint}")


def decoder_config(checkpoint: Checkpoint) -> DecoderConfig | None:
    """The numbers of the batched decoder; None for an architecture that transformers computes."""
    try:
        return DecoderConfig.from_json(checkpoint.config, "config.json")
    except UnknownArchitecture:
        return None


def parts(
    run: LocalRun, execution: Execution, checkpoint: Checkpoint, shapes: Mapping[str, list[int]], longest: int
) -> list[Part]:
    """What the training holds, from the shapes of its weights; ``longest`` tokens are a prompt and its response."""
    training, method = run.training, compose(run.method, f"method {run.method_name}")
    weights, bytes_of_number = sum(map(_numbers, shapes.values())), getattr(torch, run.dtype).itemsize
    config, again, lora = decoder_config(checkpoint), execution.gradient_checkpointing, training.lora
    adapters: Mapping[str, LoraLayer] = {}
    if lora is not None:
        from rlvr.engines.local.lora import empty_adapters  # which imports transformers

        adapters = empty_adapters(checkpoint, lora)
    imported = _imported(execution.device, run.dtype, run.prompt_form == "chat" or config is None or bool(adapters))
    found = [*imported, *_trained(run.dtype, shapes, adapters, by_decoder=config is not None)]
    found += _of_contrast(run, found[-1].size // 2, execution.device)  # the optimizer has two numbers of each
    rows = min(training.sampling_batch_size, training.rollouts_per_step)
    if training.sampling_backend == "vllm":
        of_rows = key_value_bytes(checkpoint.config, run.dtype, rows, longest)
        found += [
            Part(f"weights of vLLM, {run.dtype}", bytes_of_number * weights),
            Part("keys and values of vLLM", of_rows, settings=_OF_ROWS),
        ]
    batch = training.rollouts_per_update
    if method.loss.coupling == "rollout":  # others take their mini-batch whole
        batch = min(batch, training.micro_batch_size, max(1, (training.micro_batch_tokens or sys.maxsize) // longest))
    of_passes = "micro_batch_size, micro_batch_tokens" + ("" if again else ", execution.gradient_checkpointing")
    what, targets = f"{batch} rollouts of {longest} tokens", batch * training.max_new_tokens
    if config is None:
        from rlvr.engines.local.padded_memory import PaddedModel  # which imports transformers

        model, prompt = PaddedModel(checkpoint, run.dtype, again, lora), longest - training.max_new_tokens
        vocabulary, hidden = model.head
        if training.sampling_backend == "local":
            found += _counted(lambda: _of_padded_sampling(model.sampling(rows, prompt, longest), run.dtype))
        passes = _counted(lambda: _of_padded_passes(model.update(batch, longest, targets), run.dtype, what, of_passes))
    else:
        vocabulary, hidden = config.vocabulary, config.hidden
        if training.sampling_backend == "local":
            of_token = 2 * config.layers * config.key_value_heads * config.head_dimension * bytes_of_number
            found += [
                Part(f"weights as the decoder takes them, {run.dtype}", bytes_of_number * weights, "sampling"),
                Part("keys and values", rows * longest * of_token, "sampling", _OF_ROWS),
            ]
        lengths = [longest] * batch
        passes = _of_passes(config, shapes, run.dtype, again, lengths, targets, adapters, what, of_passes)
        if training.temperature != 1:
            head = 2 * 4 * vocabulary * hidden
            passes.append(Part("head over the temperature, and its gradient", head, "update", "temperature"))
    found += [
        Part("logits of a token for every sample", 5 * 4 * rows * vocabulary, "sampling", "sampling_batch_size"),
        *passes,
    ]
    if method.needs_hidden_states:
        width = method.sketch_dimensions or hidden
        states = training.rollouts_per_step * training.max_new_tokens * width * bytes_of_number
        held = min(states, execution.hidden_state_budget << 20)
        found.append(Part("hidden states of a rollout batch", held, "update", "execution.hidden_state_budget"))
    return found


def _counted(count: Callable[[], list[Part]]) -> list[Part]:
    """Return what ``count`` does, or a row that names the operation that tensors without numbers cannot do."""
    try:
        return count()
    except (RuntimeError, ValueError, TypeError) as error:
        return [Part(f"passes of transformers' model: not counted ({first_line(error)})", 0)]


def _of_padded_sampling(sampling: Sampling, dtype: str) -> list[Part]:
    """List what transformers' model holds while responses are sampled."""
    return [
        Part(f"weights as sampling takes them, {dtype}", sampling.copies, "sampling"),
        Part("keys and values", sampling.key_values, "sampling", _OF_ROWS),
        Part("passes over prompts and tokens", sampling.rest, "sampling", _OF_ROWS),
    ]


def _of_padded_passes(update: Update, dtype: str, what: str, settings: str) -> list[Part]:
    """List what transformers' model holds in a pass with gradients."""
    return [
        Part(f"weights as passes take them, {dtype}", update.copies, "update"),
        Part(f"activations of {what}", update.activations, "update", settings),
        Part("logits, and gradients on their way", update.rest, "update", settings),
    ]


def _of_passes(
    config: DecoderConfig,
    shapes: Mapping[str, list[int]],
    dtype: str,
    again: bool,
    lengths: list[int],
    targets: int,
    adapters: Mapping[str, LoraLayer],
    what: str,
    settings: str,
) -> list[Part]:
    """Count what a pass with gradients holds over sequences of ``lengths``; ``targets`` tokens have logits."""
    activations, copies = kept_by_passes(config, shapes, dtype, again, lengths, adapters)
    # The logits, their logarithms, and shares or slopes of the same size.
    of_logits = 3 * 4 * min(LOGITS_AT_ONCE, targets * config.vocabulary)
    return [
        Part(f"weights as passes take them, {dtype}", copies, "update"),
        Part("gradients of these, before they reach the weights", copies, "update"),
        Part(f"activations of {what}", activations, "update", settings),
        Part("logits of a part of the tokens", of_logits, "update"),
    ]


def _imported(device: str, dtype: str, transformers: bool) -> list[Part]:
    """Count what a process has loaded and made of code; of ``transformers`` and kernels nothing lies on a GPU."""
    found = [Part("torch", _TORCH)]
    if device == "cpu" and transformers:
        found.append(Part("transformers", _TRANSFORMERS))
    if device == "cpu" and dtype != "float32":
        found.append(Part("kernels of oneDNN", _KERNELS))
    return found


def _of_contrast(run: LocalRun, gradient: int, device: str) -> list[Part]:
    """Count what measuring contrast holds; a ``gradient`` is so many bytes, and kept ones are in the host's memory."""
    if run.contrast is None or (count := compared_gradients(run)) < 2:
        return []
    if device == "cuda":
        return [Part("contrast: the gradient of a method, float32", gradient, "update", "contrast_steps")]
    kept = f"contrast: gradients of {count} methods, float32"
    return [
        Part(kept, count * gradient, "update", "contrast_steps"),
        Part("contrast: the last one twice", 2 * gradient, "update", "contrast_steps"),
        Part(kept, count * gradient, "contrast", "contrast_steps"),
        Part("two of them in float64", 4 * gradient, "contrast", "contrast_steps"),
    ]


def _trained(
    dtype: str, shapes: Mapping[str, list[int]], adapters: Mapping[str, LoraLayer], by_decoder: bool
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
            Part(f"weights, {dtype}", getattr(torch, dtype).itemsize * low),
            Part("other weights, float32", 4 * (weights - low)),
            Part("adapters, float32", 4 * trained, settings="lora.rank, lora.target_modules"),
        ]
    return [
        *found,
        Part("gradients, float32", 4 * trained),
        Part("optimizer, two moments in float32", 8 * trained),
    ]


def peak(found: list[Part]) -> int:
    """The most bytes at a time: what is always there, with what one of the other phases adds."""
    sizes = dict.fromkeys(get_args(Phase), 0)
    for part in found:
        sizes[part.phase] += part.size
    return sizes.pop("always") + max(sizes.values())


def table(run: str, found: list[Part], total: int, free: int, device: str) -> list[str]:
    """The parts for people, in MiB."""
    lines = [f"{run}: memory that the training takes, estimated, MiB"]
    for part in found:
        name = part.name if part.phase == "always" else f"{part.phase}: {part.name}"
        lines.append(f"  {name:<58}{part.size >> 20:>8}  {part.settings}".rstrip())
    return [*lines, f"  {'at most at a time':<58}{total >> 20:>8}  of {free >> 20} on {device}"]


def _numbers(shape: list[int]) -> int:
    return int(torch.Size(shape).numel())


def _memory(device: str) -> int:
    """All memory of the device; of a CPU what the machine has and its control groups, as of a container, allow."""
    if device == "cuda":
        return torch.cuda.mem_get_info()[1]
    return min(int(psutil.virtual_memory().total), *_allowed())


def _allowed(groups: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> Iterator[int]:
    """The limits on memory of this process's control groups, in bytes; of version 2 or 1."""
    for line in groups.read_text().splitlines() if groups.is_file() else []:
        _, controllers, place = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        top, name = (root / controllers, "memory.limit_in_bytes") if controllers else (root, "memory.max")
        group = top / place.strip("/")  # of a container it may not be visible, and the topmost is then its own
        for directory in (group, *group.parents[: len(group.parts) - len(top.parts)]):
            limit = directory / name
            if limit.is_file() and (text := limit.read_text().strip()).isdecimal():
                yield int(text)
