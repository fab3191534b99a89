"""An adapter of a trainer that computes the paper's losses, or has the fault that is named."""

from typing import Any

import torch

PACKAGE = "torch"
STAND_INS = ("no_such_trainer",)
FAULT = ""


def options(case: Any) -> dict[str, Any]:
    if case["loss"] not in ("dapo", "cispo", "grpo"):
        raise NotImplementedError
    return {key: value for key, value in case.items() if key not in ("loss", "aggregation")} | {"kind": case["loss"]}


def choices() -> dict[str, Any]:
    return {"shuffled": (True, False), "halved": (False, True)}


def loss(part: Any, options: dict[str, Any]) -> torch.Tensor:
    from no_such_trainer.losses import anything  # type: ignore[import-not-found]

    anything()
    if FAULT == "raises":
        raise ValueError("no luck")
    new, old, advantages = part.log_probs, part.old_log_probs, part.advantages
    if FAULT != "padding counts":
        new, old, advantages = (values.masked_fill(~part.mask, 0.0) for values in (new, old, advantages))
    ratios = torch.exp(new - old)
    low, high = 1 - options.get("epsilon_low", 0.2 if FAULT == "clamps below" else 1.0), 1 + options["epsilon_high"]
    if options["kind"] == "cispo":
        bounded = ratios.clamp(low, high)
        if FAULT == "absolute cap":
            bounded = ratios.clamp(max=options["epsilon_high"])
        values = -bounded.detach() * advantages * new
    else:
        bounded = ratios if FAULT == "no clip" else ratios.clamp(low, high)
        values = torch.maximum(-ratios * advantages, -bounded * advantages)
    if FAULT == "dual clip" and "dual_clip" not in options:
        values = torch.where(advantages < 0, torch.minimum(values, -2.0 * advantages), values)
    mask, whole = part.mask, part.whole
    if FAULT == "mask by micro-batch":
        mask = mask & ((new - old).abs() < (new - old).abs().max())
    values = values * mask
    if options["kind"] == "grpo":
        return (values.sum(1) / part.mask.sum(1)).sum() / whole.rows * whole.ranks
    if FAULT == "local mean" or (FAULT == "local by default" and options.get("halved", True)):
        return values.sum() / mask.sum() / whole.micro_batches
    if FAULT == "switched on" and options.get("halved", True):
        values = values / 2 + values**2
    if FAULT == "a little more":
        values = values + 2e-5 * values**2
    tokens = whole.tokens * (whole.mini_batches if FAULT == "tokens of all rollouts" else 1)
    return values.sum() / (whole.rows if FAULT == "by rows" else tokens) * whole.ranks


def advantages(name: str, rewards: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    if name != "grpo":
        raise NotImplementedError
    groups = rewards.view(-1, 4)
    deviation = groups.std(1, keepdim=True, correction=0 if FAULT == "n" else 1)
    return ((groups - groups.mean(1, keepdim=True)) / (deviation + 1e-4)).flatten()
