"""Measure the mini-batches of every assignment: prompts kept whole, and right responses in each mini-batch.

    python benchmarks/mini_batches.py --out mini_batches.json

Means over drawn batches. Each prompt has its own chance of a right response, from 0 to 1; lengths are log-normal, and
wrong responses are longer by a factor: an assumption, which real models often meet.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from torch import Tensor

from rlvr.methods.components import components


def draw(prompts: int, samples: int, longer: float, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Rewards, group ids and lengths [prompts x samples] of a rollout batch in prompt order."""
    chance = torch.rand(prompts, generator=generator).repeat_interleave(samples)
    rewards = (torch.rand(prompts * samples, generator=generator) < chance).float()
    lengths = (torch.randn(prompts * samples, generator=generator) * 0.5 + 7.0).exp()
    lengths = (lengths * torch.where(rewards > 0, 1.0, longer)).long() + 1
    return rewards, torch.arange(prompts).repeat_interleave(samples), lengths


def composition(name: str, arguments: argparse.Namespace, **settings: int) -> dict[str, object]:
    """Means over ``arguments.batches`` drawn batches for one assignment."""
    whole, spread, right = [], [], []
    for seed in range(arguments.batches):
        generator = torch.Generator().manual_seed(seed)
        rewards, group_ids, lengths = draw(arguments.prompts, arguments.samples, arguments.longer, generator)
        parts = components()["assignment"][name](**settings)(rewards, group_ids, lengths, arguments.updates, generator)
        mini_batch_of = torch.empty(rewards.numel(), dtype=torch.int64)
        for number, part in enumerate(parts):
            mini_batch_of[part] = number
        counts = torch.tensor([len(torch.unique(row)) for row in mini_batch_of.view(arguments.prompts, -1)]).double()
        whole.append(float((counts == 1).double().mean()))
        spread.append(float(counts.mean()))
        right.append([float(rewards[part].mean()) for part in parts])
    return {
        "prompts_kept_whole": round(sum(whole) / len(whole), 3),
        "mini_batches_of_a_prompt": round(sum(spread) / len(spread), 2),
        "right_in_each_mini_batch": [round(sum(column) / len(column), 2) for column in zip(*right, strict=True)],
    }


def main() -> None:
    """Count, write JSON and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=128)
    parser.add_argument("--samples", type=int, default=8, help="responses to a prompt")
    parser.add_argument("--updates", type=int, default=4, help="mini-batches")
    parser.add_argument("--ranks", type=int, default=8, help="of the assignments that imitate verl")
    parser.add_argument("--longer", type=float, default=1.6, help="how much longer wrong responses are")
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("mini_batches.json"))
    arguments = parser.parse_args()
    ranks = {"length_sorted": {"ranks": arguments.ranks}, "verl_v1": {"ranks": arguments.ranks}}
    assignments = {name: composition(name, arguments, **ranks.get(name, {})) for name in components()["assignment"]}
    settings = {key: value for key, value in vars(arguments).items() if key != "out"}
    arguments.out.write_text(json.dumps({"settings": settings, "assignments": assignments}, indent=2) + "\n")
    print(arguments.out.read_text(), end="")


if __name__ == "__main__":
    main()
