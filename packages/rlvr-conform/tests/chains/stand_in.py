"""A chain whose model has the log-probabilities themselves as its parameters, with the fault that is named."""

import os
from typing import Any

import torch

FAULT = ""


class Chain:
    def __init__(self, options: Any, ranks: int, micro_batches: int, sampled_micro_batches: int, longest: int) -> None:
        rank, high = int(os.environ.get("RANK", "0")), 1 + options["epsilon_high"]
        lengths = torch.randint(1, longest, (4 * 2 * micro_batches,), generator=torch.Generator().manual_seed(rank))
        self.updates: list[dict[str, Any]] = []
        self.kept: list[torch.Tensor] = []
        rollouts = lengths.split(4 * sampled_micro_batches)
        for number, own in enumerate(lengths.split(4 * micro_batches)):
            rollout = rollouts[number * micro_batches // sampled_micro_batches]
            old = -torch.rand(len(own), longest, generator=torch.Generator().manual_seed(number)).double() - 1
            new = (old + 0.4 * old.cos()).requires_grad_()
            advantage = torch.linspace(-1, 1, len(own)).double()[:, None].expand_as(old)
            mask = torch.arange(longest) < own[:, None]
            ratio = (new - old).exp()
            values = torch.maximum(-ratio * advantage, -ratio.clamp(1 - options["epsilon_low"], high) * advantage)
            tokens: Any = own.sum()
            if FAULT == "rollout tokens":
                tokens = rollout.sum()
            if FAULT == "mean tokens":
                tokens = rollout.sum() * len(own) / len(rollout)
            loss = (values * mask).sum() / tokens
            (gradient,) = torch.autograd.grad(loss, new)
            self.kept.append(gradient[mask])
            rows = {"new": new.tolist(), "old": old.tolist(), "advantage": advantage.tolist(), "lengths": own.tolist()}
            self.updates.append({"loss": loss.item() * (2 if FAULT == "logs twice" else 1), **rows})

    def gradients(self, number: int, slopes: list[list[float]]) -> tuple[torch.Tensor, torch.Tensor]:
        return self.kept[number], torch.tensor([slope for row in slopes for slope in row], dtype=torch.float64)
