"""The memory of a run, measured, and the sum of it for a device that is not there.

Measured: its largest passes are made once before its first step, and thrown away. The sum: five products, from shapes
and settings alone.
"""

from __future__ import annotations

import math
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import torch
from torch import Tensor

from evals.core.errors import UserError, first_line
from evals.core.files import read_jsonl
from evals.core.run_spec import Execution, LocalRun
from evals.core.training_settings import Lora
from evals.generation.checkpoint import Checkpoint
from rlvr.engines.local.contrast import compared_gradients
from rlvr.engines.local.policy import LOGITS_AT_ONCE, Policy, TokenBatch, token_log_probs
from rlvr.engines.local.rollout import ScoredDraw, encode_problems, sampling_of
from rlvr.engines.local.vllm_rollouts import bytes_of_token
from rlvr.methods.method import Method, compose
from rlvr.runs.job import end_with_parent

if TYPE_CHECKING:
    from rlvr.engines.local.learner import Learner

SMALL = 1 << 26
"""Bytes of weights up to which nothing is measured: the laptop study's models fit everywhere."""
_SMALLER = {
    "sampling": "training.sampling_batch_size, training.max_new_tokens",
    "update": "training.micro_batch_size, training.micro_batch_tokens, execution.gradient_checkpointing",
    "warm start": "fine_tuning.micro_batch_tokens",
}
"""By the name of a pass, the settings that it takes less memory with."""
_END = 0
"""The token that ends the responses of :class:`_LongestDraw`."""


def check_memory(name: str, checkpoint: Checkpoint, device: str, passes: Mapping[str, Callable[[], None]]) -> None:
    """Make the largest passes once and print what they took; UserError if that is more than the device has.

    Nothing is left of them: on a CPU a child process makes them, and on a GPU no pass changes a weight or the state of
    an optimizer, nor draws from a random stream of the training. Of a small model none is made.
    """
    if 4 * numbers(checkpoint.shapes) <= SMALL:
        return
    started, total = time.monotonic(), _memory(device)
    taken, reason = (_taken_on_gpu if device == "cuda" else _taken_by_child)(list(passes.values()))
    if reason:
        print(f"{name}: memory: not measured ({reason})", flush=True)
    elif len(taken) < len(passes) or taken[-1] > total:
        phase = next(name for name, size in zip(passes, [*taken, total + 1], strict=False) if size > total)
        hint = f"smaller: {_SMALLER[phase]}"
        raise UserError(f"{name}: out of memory: {device} has {total >> 20} MiB, too little for {phase}; {hint}")
    else:
        seconds = time.monotonic() - started
        most = f"{taken[-1] >> 20} MiB of {total >> 20} on {device}"
        print(f"{name}: memory: the largest passes take {most}, measured in {seconds:.0f} s", flush=True)


def _taken_by_child(passes: Sequence[Callable[[], None]]) -> tuple[list[int], str]:
    """The largest resident memory of a copy of this process after each pass, and why no further one was made.

    There is no reason where the system killed the copy or refused it memory.
    """
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        try:
            end_with_parent(signal.SIGKILL)
            torch.set_num_threads(1)  # the others are the parent's
            with suppress(OSError):
                Path("/proc/self/oom_score_adj").write_text("1000")  # the copy dies first
            for make in passes:
                make()
                os.write(writing, f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}\n".encode())
        except BaseException as error:
            lacks = isinstance(error, MemoryError) or "allocate memory" in str(error)
            os.write(writing, b"" if lacks else first_line(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, encoding="utf-8") as lines:
        said = lines.read().splitlines()
    os.waitpid(child, 0)
    return [int(line) for line in said if line.isdecimal()], next((line for line in said if not line.isdecimal()), "")


def _taken_on_gpu(passes: Sequence[Callable[[], None]]) -> tuple[list[int], str]:
    """The most memory that torch had allocated after each pass, up to one without room."""
    taken = []
    torch.cuda.reset_peak_memory_stats()
    with suppress(torch.OutOfMemoryError):
        for make in passes:
            make()
            taken.append(torch.cuda.max_memory_allocated())
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return taken, ""


class _LongestDraw(ScoredDraw):
    """Lets a quarter of the samples end with the last token but one, when most is kept, and no other sample.

    What is kept of the others is then copied.
    """

    def __call__(self, logits: Sequence[Tensor], row_of: Tensor, running: Tensor, step: int) -> Tensor:
        drawn = super().__call__(logits, row_of, running, step).clamp(min=_END + 1)
        if step + 2 == self.log_probs.shape[1]:
            drawn[: len(drawn) // 4] = _END
        return drawn


def largest_passes(learner: Learner) -> dict[str, Callable[[], None]]:
    """The largest batch of rollouts of a run, and the largest pass of its update, made with all that it holds."""
    run, model, prompt = learner.run, learner.model, learner.longest_prompt
    training = run.training

    def sample() -> None:
        most, samples = training.sampling_batch_size, training.samples_per_prompt
        rows = most if run.validation else min(most, training.rollouts_per_step)
        if run.validation:
            samples = min(samples, run.validation.samples_per_problem)
        parameters = sampling_of(training).model_copy(update={"sampling_batch_size": rows})
        names = [f"memory/{row}" for row in range(rows)]
        groups = [names[start : start + samples] for start in range(0, rows, samples)]
        model.sampler()([prompt] * len(groups), groups, parameters, [_END], partial(_LongestDraw, parameters))

    def update() -> None:
        beside = _held_beside_passes(run, learner.method, model)
        held = [torch.ones(size, dtype=torch.uint8, device=model.device) for size in beside]
        lengths = pass_lengths(run, learner.method, len(prompt) + training.max_new_tokens, model.padded)
        responses = [[0] * min(training.max_new_tokens, length - 1) for length in lengths]
        # Each has another first token, for a pass may compute equal prompts once.
        prompts = [
            [number % len(model.head_weight), *prompt[1 : length - len(response)]]
            for number, (length, response) in enumerate(zip(lengths, responses, strict=True))
        ]
        make_gradients(model, TokenBatch(prompts, responses), training.temperature)
        del held

    # vLLM took all of its memory when it was loaded.
    return {"update": update} if training.sampling_backend == "vllm" else {"sampling": sample, "update": update}


def make_gradients(model: Policy, batch: TokenBatch, temperature: float = 1.0) -> None:
    """Compute the gradients of a pass where there are some of another one already, and forget them."""
    one = TokenBatch([batch.prompts[0]], [batch.responses[0][:1]])
    for tokens in (one, batch):
        token_log_probs(model, tokens, temperature).sum().backward()
    for weight in model.parameters():
        weight.grad = None


def pass_lengths(run: LocalRun, method: Method, longest: int, padded: bool) -> list[int]:
    """The sequences of the largest pass of an update, by their tokens."""
    training = run.training
    if method.loss.coupling != "rollout":  # which takes its mini-batch whole
        return [longest] * training.rollouts_per_update
    most = min(training.rollouts_per_update, training.micro_batch_size)
    tokens = training.micro_batch_tokens or most * longest
    lengths = [longest] * min(most, max(1, tokens // longest))
    left = tokens - sum(lengths)
    return [*lengths, left] if len(lengths) < most and left > 1 and not padded else lengths


def _held_beside_passes(run: LocalRun, method: Method, model: Policy) -> Iterator[int]:
    """The bytes that a step holds beside its passes: hidden states of its rollouts, and gradients that are compared."""
    training = run.training
    if method.needs_hidden_states:
        width = method.sketch_dimensions or model.head_weight.shape[1]
        yield training.rollouts_per_step * training.max_new_tokens * width * model.head_dtype.itemsize
    if run.contrast is not None:
        trained = sum(weight.numel() for weight in model.parameters())
        yield 4 * trained * (compared_gradients(run) + 2)  # the last one twice


def numbers(shapes: Mapping[str, Sequence[int]]) -> int:
    """Count the numbers of weights."""
    return sum(math.prod(shape) for shape in shapes.values())


def _memory(device: str) -> int:
    """All memory of the device; of a CPU what the machine has and its control groups, as of a container, allow."""
    if device == "cuda":
        return torch.cuda.mem_get_info()[1]
    return min(int(psutil.virtual_memory().total), *_allowed())


def _allowed(groups: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> Iterator[int]:
    """The limits on memory of this process's control groups, in bytes; of version 2 or 1."""
    for line in groups.read_text().splitlines() if groups.is_file() else []:
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        top, name = (root / controllers, "memory.limit_in_bytes") if controllers else (root, "memory.max")
        group = top / path.strip("/")  # of a container it may not be visible, and the topmost is then its own
        for directory in (group, *group.parents[: len(group.parts) - len(top.parts)]):
            limit = directory / name
            if limit.is_file() and (text := limit.read_text().strip()).isdecimal():
                yield int(text)


def print_sum(run: LocalRun, execution: Execution, device_memory: int) -> None:
    """Print what the training holds, row by row; UserError if it is more than the ``device_memory`` bytes."""
    sizes = products(run, execution)
    total, device = sum(sizes.values()), execution.device
    print(f"{run.run}: memory, a sum and not measured, MiB")
    for name, size in {**sizes, f"all, of {device_memory >> 20} on {device}": total}.items():
        print(f"  {name:<40}{size >> 20:>8}")
    if total > device_memory:
        raise UserError(f"{run.run}: needs about {total >> 20} MiB on {device}, which has {device_memory >> 20}")


def products(run: LocalRun, execution: Execution) -> dict[str, int]:
    """The bytes of what the training holds, by name. Activations are those of Llama's layers."""
    checkpoint, training = Checkpoint(run.base / "checkpoint"), run.training
    config = {**checkpoint.config, **checkpoint.config.get("text_config", {})}
    problems = read_jsonl(run.problems / "problems.jsonl", required=("id", "problem"))
    longest = max(map(len, encode_problems(checkpoint, run, problems).values())) + training.max_new_tokens
    itemsize, of_token = getattr(torch, run.dtype).itemsize, bytes_of_token(config, run.dtype)
    weights = trained = numbers(checkpoint.shapes)
    copies = itemsize * (2 if training.sampling_backend == "vllm" else 1)  # as passes take them, and vLLM's
    if training.lora is not None:
        trained = _of_adapters(training.lora, checkpoint.shapes)
    method = compose(run.method, f"method {run.method_name}", run.training.max_new_tokens)
    lengths = pass_lengths(run, method, longest, padded=False)
    tokens, layers, width = sum(lengths), config["num_hidden_layers"], config["hidden_size"]
    heads, inner = config["num_attention_heads"], config.get("intermediate_size", 4 * width)
    head = config.get("head_dim") or width // heads
    # Inputs of products and of what is not linear; norms and rotations are float32, half as much again in bfloat16.
    of_layer = 3 * width + 3 * head * (heads + config.get("num_key_value_heads", heads)) + 4 * inner
    of_layer *= itemsize if itemsize == 4 else itemsize + 1
    if execution.device == "cpu" and longest <= 8 * head:
        of_layer += 4 * heads * longest  # the shares of attention
    kept = layers * itemsize * width + of_layer if execution.gradient_checkpointing else layers * of_layer
    logits = 3 * 4 * min(LOGITS_AT_ONCE, config["vocab_size"] * len(lengths) * training.max_new_tokens)
    rows = min(training.sampling_batch_size, training.rollouts_per_step)
    return {
        "weights": (copies + (4 if training.lora is None else itemsize)) * weights,
        "gradients": 4 * trained + (itemsize * weights if training.lora is None else 0),
        "two moments": 8 * trained,
        "keys and values": rows * longest * of_token,
        f"activations of {tokens} tokens, logits": tokens * kept + logits,
    }


def _of_adapters(lora: Lora, shapes: dict[str, list[int]]) -> int:
    """Count the trained numbers of adapters: in every layer, rank times what each adapted product takes and gives."""
    names = None if lora.target_modules == "all-linear" else tuple(f"{name}.weight" for name in lora.target_modules)
    products = {name: shape for name, shape in shapes.items() if len(shape) == 2 and ".layers." in name}
    adapted = [shape for name, shape in products.items() if names is None or name.endswith(names)]
    return lora.rank * sum(map(sum, adapted))
