"""The token table: one row per response token of a rollout step, with the same columns for every method."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from rlvr.diagnostics.token_classes import classes_of
from rlvr.diagnostics.token_columns import COLUMNS
from rlvr.engines.local.learner import PreparedStep


@dataclass(frozen=True)
class StepRecord:
    """What only a step itself knows, beside what was prepared for it; all [B, T], anything at padding.

    Attributes:
        new_log_probs: after all optimizer steps on the rollout batch.
        update_log_probs: under the policy that the token's own optimizer step started from.
        slopes: derivative of the sum of the token losses with respect to ``update_log_probs``.
    """

    new_log_probs: Tensor
    update_log_probs: Tensor
    slopes: Tensor


def token_rows(
    run: str, step: int, prepared: PreparedStep, problems: list[str], texts: dict[int, str], record: StepRecord
) -> pd.DataFrame:
    """The rows of one step, rollout by rollout.

    Args:
        run: the run's id.
        step: 1 for the run's first.
        prepared: the rollout batch and its weights.
        problems: the problem of each rollout.
        texts: token -> its text.
        record: what the step did.
    """
    batch = prepared.batch
    mask = batch.response_mask
    row, position = (index.numpy() for index in mask.cpu().nonzero(as_tuple=True))

    def packed(values: Tensor) -> np.ndarray:
        return np.asarray(values.detach().cpu()[mask.cpu()])

    tokens = packed(batch.token_ids)
    token_texts = [texts[token] for token in tokens.tolist()]
    weighted = packed(batch.advantages[:, None] * prepared.weights)
    old, update = packed(batch.old_log_probs), packed(record.update_log_probs)
    with np.errstate(divide="ignore", invalid="ignore"):
        # At ratio 1 every loss here has slope -A w: the gate is what is left of it, 0 for a token that is stopped.
        gate = np.where(weighted == 0, np.nan, -packed(record.slopes) / weighted)
    advantages = batch.advantages.cpu().numpy()[row]
    frame = pd.DataFrame(
        {
            "run": run,
            "step": step,
            "problem": np.array(problems, dtype=object)[row],
            "group": batch.group_ids.cpu().numpy()[row],
            "sample": numbers_within_groups(batch.group_ids.cpu()).numpy()[row],
            "position": position,
            "token": tokens,
            "text": token_texts,
            "token_class": classes_of(row, token_texts),
            "reward": prepared.rewards.numpy()[row],
            "advantage": advantages,
            "side": np.sign(advantages),
            "weight": packed(prepared.weights),
            "mini_batch": batch.mini_batch_ids.cpu().numpy()[row],
            "old_log_prob": old,
            "new_log_prob": packed(record.new_log_probs),
            "entropy": packed(batch.entropies),
            "ratio": np.exp(np.clip(update - old, -20, 20)),
            "gate": gate,
        }
    )
    return frame.astype(COLUMNS)[list(COLUMNS)]


def numbers_within_groups(group_ids: Tensor) -> Tensor:
    """[B] 0, 1, 2 ... within each group, in the order of the rollouts."""
    same = group_ids[:, None] == group_ids[None]
    return torch.tril(same, diagonal=-1).sum(dim=1)
