"""Time of every policy loss, forward and backward, against a copy of the same bytes: in one run, without a model.

    python benchmarks/losses.py --out losses.json
    python benchmarks/losses.py --out losses.json --device cuda --rollouts 128 --length 8192

A mini-batch of ragged responses, four to a group, half of them right, log-ratios of deviation 0.1. The copy is of the
log-probs, old log-probs and advantages that a loss has to read and of the gradient that it has to write: a bound from
below, not a target. Losses and copy take turns, so that whatever else the machine does falls on all. On the CPU
processor time is counted, of all threads.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from rlvr.methods.aggregation import Aggregation, Normaliser
from rlvr.methods.components import components
from rlvr.methods.losses.base import PolicyLoss


def draw(rollouts: int, length: int, device: str) -> dict[str, Tensor]:
    """Arguments of a loss, of lengths between half of ``length`` and all of it."""
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(length // 2, length + 1, (rollouts,), generator=generator)
    old = -torch.rand(rollouts, length, generator=generator)
    new = old + 0.1 * torch.randn(rollouts, length, generator=generator)
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0]).repeat(rollouts // 4)[:, None].repeat(1, length)
    inputs = {
        "log_probs": new,
        "old_log_probs": old,
        "advantages": advantages,
        "response_mask": torch.arange(length) < lengths[:, None],
        "group_ids": torch.arange(rollouts) // 4,
    }
    return {name: tensor.to(device) for name, tensor in inputs.items()}


def step(loss: PolicyLoss, inputs: dict[str, Tensor], normaliser: Normaliser) -> None:
    """One forward and backward pass."""
    log_probs = inputs["log_probs"].detach().requires_grad_()
    aggregation, generator = Aggregation(loss.default_aggregation), torch.Generator().manual_seed(1)
    token_loss, _ = loss(**{**inputs, "log_probs": log_probs}, generator=generator, aggregation=aggregation)
    aggregation(token_loss, inputs["response_mask"], normaliser).backward()


def seconds(run: Callable[[], object], device: str) -> float:
    """Processor time of one call on the CPU; on a GPU wall time, its queue emptied before and after."""
    if device == "cpu":
        started = time.process_time()
        run()
        return time.process_time() - started
    torch.cuda.synchronize()
    started = time.perf_counter()
    run()
    torch.cuda.synchronize()
    return time.perf_counter() - started


def measure(arguments: argparse.Namespace) -> dict[str, object]:
    """Alternate the copy and the losses, and compare within each round."""
    torch.set_num_threads(arguments.threads)
    inputs = draw(arguments.rollouts, arguments.length, arguments.device)
    normaliser = Normaliser.of(inputs["response_mask"])
    moved = torch.stack([inputs["log_probs"], inputs["old_log_probs"], inputs["advantages"], inputs["log_probs"]])
    target = torch.empty_like(moved)
    runs: dict[str, Callable[[], object]] = {"copy": lambda: target.copy_(moved)}
    for name, loss in components()["loss"].items():
        runs[name] = partial(step, loss(), inputs, normaliser)
    times: dict[str, list[float]] = {name: [] for name in runs}
    for repetition in range(-2, arguments.repetitions):  # the first two rounds warm up and are not counted
        for name, run in runs.items():
            elapsed = seconds(run, arguments.device)
            if repetition >= 0:
                times[name].append(elapsed)
    return {
        "machine": f"{platform.machine()}, {arguments.threads} threads, {arguments.device}",
        "torch": torch.__version__,
        "rollouts": arguments.rollouts,
        "length": arguments.length,
        "tokens": normaliser.tokens,
        "repetitions": arguments.repetitions,
        "bytes_copied": moved.numel() * moved.element_size(),
        "milliseconds": {name: round(1e3 * statistics.median(values), 3) for name, values in times.items()},
        "times_the_copy": {
            name: summary([one / copy for one, copy in zip(values, times["copy"], strict=True)])
            for name, values in times.items()
            if name != "copy"
        },
    }


def summary(ratios: list[float]) -> dict[str, float]:
    """Median and range of the rounds' ratios."""
    return {
        "median": round(statistics.median(ratios), 1),
        "lowest": round(min(ratios), 1),
        "highest": round(max(ratios), 1),
    }


def main() -> None:
    """Measure, write JSON and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=128, help="a multiple of 4")
    parser.add_argument("--length", type=int, default=1024, help="longest response in tokens")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--out", type=Path, default=Path("losses.json"))
    arguments = parser.parse_args()
    if arguments.rollouts < 4 or arguments.rollouts % 4:
        parser.error(f"--rollouts is {arguments.rollouts}; accepted: a multiple of 4")
    result = measure(arguments)
    arguments.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
