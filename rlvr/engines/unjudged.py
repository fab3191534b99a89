"""Responses that nobody could judge: their worth in a run, their numbers, and the end of one that has too many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from evals.core.errors import UserError
from evals.grading import UNJUDGED, Reason, Verdict

COUNTED = tuple(reason for reason in UNJUDGED if reason is not Reason.UNANSWERED)
"""The reasons that a training run counts: it asks no server for responses."""
ALWAYS_ALLOWED = 10
"""Responses without a judgement that end no training, whatever share of the responses they are."""


def column(reason: str) -> str:
    """The column of metrics.parquet that counts a reason."""
    return f"unjudged_{reason}"


def count_unjudged(reasons: Iterable[str]) -> dict[str, int]:
    """Count the responses without a judgement by reason: metrics of a step, 0 where there are none."""
    counts = Counter(reasons)
    return {column(reason): counts[reason] for reason in COUNTED}


def training_rewards(
    verdicts: Sequence[Verdict], group_ids: Tensor, worth: Literal["wrong", "left_out"]
) -> tuple[Tensor, Tensor]:
    """Rewards [B] of verdicts in the groups of group_ids [B], and which of them [B] count in the training.

    A response that nobody judged is wrong, or left out. Its reward is then the mean of the others of its group: it
    makes no group mixed and has no sign, where a method selects or parts rollouts by their rewards. Where that leaves
    one response of a group, nothing is there to compare it with, and it is left out too.
    """
    rewards = torch.tensor([verdict.reward for verdict in verdicts])
    counted = torch.tensor([verdict.reason not in UNJUDGED for verdict in verdicts]) | (worth == "wrong")
    for group in group_ids[~counted].unique():
        members = group_ids == group
        rewards[members & ~counted] = rewards[members & counted].mean().nan_to_num(0.0)
        if int((members & counted).sum()) == 1:
            counted &= ~members
    return rewards, counted


def require_some(run: str, step: int, counted: Tensor) -> None:
    """Check that some of a step's rollouts [B] count; UserError otherwise: it has no mean, and teaches nothing."""
    if not bool(counted.any()):
        message = f"of {len(counted)} responses none is left in, because too few of each prompt's could be judged"
        raise UserError(f"{run}: step {step}: {message}; accepted: two or more of a prompt (training.unjudged)")


def require_judged(run: str, steps: Sequence[Mapping[str, float]], samples_per_prompt: int, limit: float) -> None:
    """Check that the metrics of a run's ``steps`` so far have not too many responses without a judgement.

    Answers that cannot be read do not count here: a policy that writes no mathematics is a finding, and not a fault of
    the grader.

    Raises:
        UserError: it is more than ``ALWAYS_ALLOWED`` responses, and more than the share ``limit`` of all.
    """
    faults = [reason for reason in COUNTED if reason is not Reason.UNPARSABLE]
    counts = {reason: int(sum(step.get(column(reason), 0) for step in steps)) for reason in faults}
    unjudged, sampled = sum(counts.values()), int(sum(step["prompts_sampled"] for step in steps)) * samples_per_prompt
    if unjudged > ALWAYS_ALLOWED and unjudged > limit * sampled:
        reasons = ", ".join(f"{reason} {count}" for reason, count in counts.items() if count)
        raise UserError(
            f"{run}: step {len(steps)}: the grader failed on {unjudged} of {sampled} responses ({reasons}); accepted: "
            f"{ALWAYS_ALLOWED} responses, or {limit:.0%} of them (training.unjudged_limit)"
        )
