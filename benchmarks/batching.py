"""Time of every assignment and selection on a rollout batch of 512 prompts with 16 responses each, without a model.

    python benchmarks/batching.py --out batching.json

Three kinds of batch: ``mixed`` (each prompt has its own chance of a right response, from 0 to 1), ``rare`` (one
response in fifty is right, so that most groups are of one reward) and ``equal`` (no response is right). A selection
has the largest buffer that its entry lets it have: all rounds of sampling. All pieces take turns, so that whatever
else the machine does falls on all. Processor time is counted, of all threads.
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

from rlvr.methods.batching.dynamic_sampling import DynamicSampling
from rlvr.methods.batching.reward_balanced import RewardBalanced
from rlvr.methods.method import ASSIGNMENTS

GOAL_MILLISECONDS = 50.0
SELECTIONS: dict[str, tuple[RewardBalanced | DynamicSampling, bool]] = {
    "reward_balanced, single rollouts": (RewardBalanced(), False),
    "reward_balanced, whole groups": (RewardBalanced(), True),
    "dynamic_sampling": (DynamicSampling(), True),
}
"""Name -> selection, and whether groups have to stay whole."""


def draw(kind: str, prompts: int, samples: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rewards, group ids and lengths [prompts x samples]; wrong responses are longer."""
    generator = torch.Generator().manual_seed(1)
    chances = {"mixed": torch.rand(prompts, generator=generator), "rare": torch.full((prompts,), 0.02)}
    chance = chances.get(kind, torch.zeros(prompts)).repeat_interleave(samples)
    rewards = (torch.rand(prompts * samples, generator=generator) < chance).float()
    lengths = (torch.randn(prompts * samples, generator=generator) * 0.5 + 7.0 - 0.5 * rewards).exp().long() + 1
    return rewards, torch.arange(prompts).repeat_interleave(samples), lengths


def calls(kind: str, arguments: argparse.Namespace) -> dict[str, Callable[[], object]]:
    """Every piece on its arguments, by the name of what it does."""
    size = arguments.prompts * arguments.samples
    rewards, group_ids, lengths = draw(kind, arguments.prompts, arguments.samples)
    found: dict[str, Callable[[], object]] = {}
    for name, assignment in ASSIGNMENTS.items():
        found[name] = partial(seeded, assignment(), rewards, group_ids, lengths, arguments.updates)
    for name, (selection, whole) in SELECTIONS.items():
        buffer = draw(kind, arguments.prompts * selection.max_rounds, arguments.samples)
        found[name] = partial(seeded, selection, buffer[0], buffer[1], size, whole, selection.max_rounds)
    return found


def seeded(piece: Callable[..., object], *given: object) -> object:
    """One call with a generator of its own."""
    return piece(*given, generator=torch.Generator().manual_seed(1))


def measure(arguments: argparse.Namespace) -> dict[str, object]:
    """Processor time of each piece on each kind of batch."""
    torch.set_num_threads(arguments.threads)
    runs = {(kind, name): run for kind in ("mixed", "rare", "equal") for name, run in calls(kind, arguments).items()}
    times: dict[tuple[str, str], list[float]] = {key: [] for key in runs}
    for repetition in range(-2, arguments.repetitions):  # the first two rounds warm up and are not counted
        for key, run in runs.items():
            started = time.process_time()
            run()
            if repetition >= 0:
                times[key].append(1e3 * (time.process_time() - started))
    slowest = max(statistics.median(values) for values in times.values())
    milliseconds: dict[str, dict[str, object]] = {}
    for (kind, name), values in times.items():
        median = round(statistics.median(values), 2)
        milliseconds.setdefault(name, {})[kind] = {"median": median, "highest": round(max(values), 2)}
    return {
        "machine": f"{platform.machine()}, {arguments.threads} threads",
        "torch": torch.__version__,
        "prompts": arguments.prompts,
        "samples_per_prompt": arguments.samples,
        "updates": arguments.updates,
        "rounds_in_the_buffer": {name: selection.max_rounds for name, (selection, _) in SELECTIONS.items()},
        "repetitions": arguments.repetitions,
        "milliseconds": milliseconds,
        "slowest_median": round(slowest, 2),
        "within_goal": slowest < GOAL_MILLISECONDS,
    }


def main() -> None:
    """Measure, write JSON and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=512)
    parser.add_argument("--samples", type=int, default=16, help="responses to a prompt")
    parser.add_argument("--updates", type=int, default=16, help="mini-batches")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--out", type=Path, default=Path("batching.json"))
    arguments = parser.parse_args()
    result = measure(arguments)
    arguments.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
