"""The table of the memory that a training or a warm start will hold, against what there is, before its first step.

Activations are counted: one micro-batch runs on tensors that have shapes and no numbers, which takes no memory and no
GPU (:mod:`rlvr.engines.local.decoder_memory`, :mod:`rlvr.engines.local.padded_memory`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import psutil
import torch

from evals.core.errors import UserError, first_line
from evals.core.files import read_jsonl
from evals.core.run_spec import Execution, LocalRun
from evals.core.training_settings import Lora
from evals.generation.architecture import DecoderConfig, UnknownArchitecture
from evals.generation.checkpoint import Checkpoint
from rlvr.engines.local.contrast import compared_gradients
from rlvr.engines.local.decoder_memory import CountedDecoder
from rlvr.engines.local.memory_parts import OF_ROWS, Part, drawing, peak, table
from rlvr.engines.local.rollout import encode_problems
from rlvr.engines.local.vllm_rollouts import key_value_bytes
from rlvr.methods.method import compose

if TYPE_CHECKING:
    from peft.tuners.lora import LoraLayer

    from rlvr.engines.local.padded_memory import PaddedModel

SMALL = 1 << 26
"""Bytes of weights up to which nothing is said: the laptop study's models fit everywhere."""
_TORCH = 400 << 20
"""Bytes of a process that has loaded torch and this package."""
_TRANSFORMERS = 230 << 20
"""Bytes that transformers and its tokenizer add to a process: they fill chat templates, and compute some models."""
_KERNELS = 190 << 20
"""Bytes of the kernels that oneDNN keeps for 64 shapes (:func:`evals.generation.arithmetic.set_up`)."""


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
    padded = decoder_config(checkpoint) is None

    def found() -> Iterator[Part]:
        yield from _imported(device, dtype, prompt_form == "chat" or padded)
        yield from _trained(dtype, shapes, {}, by_decoder=False)
        tokens = f"{max(lengths)} tokens, padded" if padded else f"{sum(lengths)} tokens"
        what, settings = f"{len(lengths)} solutions of {tokens}", "fine_tuning.micro_batch_tokens"
        yield from _model(checkpoint, shapes, dtype).of_passes(lengths, targets, what, settings)

    _compare(name, _counted(found()), device)


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
    return _counted(_of_training(run, execution, checkpoint, shapes, longest))


def _counted(found: Iterator[Part]) -> list[Part]:
    """List the parts up to one that cannot be counted, then a row that says why; UserError for what a user can fix."""
    counted = []
    try:
        for part in found:
            counted.append(part)
    except UserError:
        raise
    except Exception as error:  # of any kind: an estimate ends no training that would work
        counted.append(Part(f"the rest: not counted ({first_line(error)})", 0))
    return counted


def _of_training(
    run: LocalRun, execution: Execution, checkpoint: Checkpoint, shapes: Mapping[str, list[int]], longest: int
) -> Iterator[Part]:
    """Yield the parts of :func:`parts`; those that need no pass on tensors without numbers come first."""
    training, method = run.training, compose(run.method, f"method {run.method_name}")
    weights, bytes_of_number = sum(map(_numbers, shapes.values())), getattr(torch, run.dtype).itemsize
    by_decoder, again = decoder_config(checkpoint) is not None, execution.gradient_checkpointing
    adapters: Mapping[str, LoraLayer] = {}
    if training.lora is not None:
        from rlvr.engines.local.lora import empty_adapters  # which imports transformers

        adapters = empty_adapters(checkpoint, training.lora)
    imported = _imported(execution.device, run.dtype, run.prompt_form == "chat" or not by_decoder or bool(adapters))
    trained = _trained(run.dtype, shapes, adapters, by_decoder)
    yield from (*imported, *trained)
    yield from _of_contrast(run, trained[-1].size // 2, execution.device)  # the optimizer has two numbers of each
    rows = min(training.sampling_batch_size, training.rollouts_per_step)
    by_vllm = training.sampling_backend == "vllm"
    if by_vllm:
        yield Part(f"weights of vLLM, {run.dtype}", bytes_of_number * weights)
        of_rows = key_value_bytes(checkpoint.config, run.dtype, rows, longest)
        yield Part("keys and values of vLLM", of_rows, settings=OF_ROWS)
    model = _model(checkpoint, shapes, run.dtype, again, training.lora, adapters)
    vocabulary, hidden = model.head
    if method.needs_hidden_states:
        width = method.sketch_dimensions or hidden
        states = training.rollouts_per_step * training.max_new_tokens * width * bytes_of_number
        held = min(states, execution.hidden_state_budget << 20)
        yield Part("hidden states of a rollout batch", held, "update", "execution.hidden_state_budget")
    if by_decoder and training.temperature != 1:
        head = 2 * 4 * vocabulary * hidden
        yield Part("head over the temperature, and its gradient", head, "update", "temperature")
    batch = training.rollouts_per_update
    if method.loss.coupling == "rollout":  # others take their mini-batch whole
        batch = min(batch, training.micro_batch_size, max(1, (training.micro_batch_tokens or sys.maxsize) // longest))
    of_passes = "micro_batch_size, micro_batch_tokens" + ("" if again else ", execution.gradient_checkpointing")
    what, targets = f"{batch} rollouts of {longest} tokens", batch * training.max_new_tokens
    yield from model.of_passes([longest] * batch, targets, what, of_passes)
    if by_vllm:
        yield drawing(rows, vocabulary)
    else:
        yield from model.of_sampling(rows, longest - training.max_new_tokens, longest)


def _model(
    checkpoint: Checkpoint,
    shapes: Mapping[str, list[int]],
    dtype: str,
    again: bool = False,
    lora: Lora | None = None,
    adapters: Mapping[str, LoraLayer] = MappingProxyType({}),
) -> CountedDecoder | PaddedModel:
    """Return the model whose passes are counted."""
    if (config := decoder_config(checkpoint)) is not None:
        return CountedDecoder(config, shapes, dtype, again, adapters)
    from rlvr.engines.local.padded_memory import PaddedModel  # which imports transformers

    return PaddedModel(checkpoint, dtype, again, lora)


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
