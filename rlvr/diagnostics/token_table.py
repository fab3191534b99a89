"""The token table: one row per response token of a rollout step, with the same columns for every method."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as parquet
import torch
from torch import Tensor

from evals.errors import UserError
from rlvr.diagnostics.token_classes import token_class
from rlvr.engines.local.learner import PreparedStep

COLUMNS = {
    "run": "string",
    "step": "int32",
    "problem": "string",
    "group": "int32",
    "sample": "int32",
    "position": "int32",
    "token": "int32",
    "text": "string",
    "token_class": "string",
    "reward": "float32",
    "advantage": "float32",
    "side": "int8",
    "weight": "float32",
    "mini_batch": "int32",
    "old_log_prob": "float32",
    "new_log_prob": "float32",
    "entropy": "float32",
    "ratio": "float32",
    "gate": "float32",
}
"""Column -> type. docs/diagnostics.md says what each holds."""


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


def classes_of(rollouts: np.ndarray, texts: list[str]) -> list[str]:
    """The class of each token, from its text and the texts before it in its rollout."""
    classes: list[str] = []
    previous, line = -1, ""
    for rollout, text in zip(rollouts.tolist(), texts, strict=True):
        line = "" if rollout != previous else line
        classes.append(token_class(line, text))
        line, previous = ("" if text == "\n" else line + text), rollout
    return classes


def read_token_table(path: Path) -> pd.DataFrame:
    """A token table.

    Raises:
        UserError: the file is missing, no parquet, or has other columns.
    """
    try:
        frame: pd.DataFrame = parquet.read_table(path).to_pandas()
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except Exception as error:  # pyarrow raises several types on a damaged file
        raise UserError(f"{path}: is not a parquet file ({error})") from error
    missing = [column for column in COLUMNS if column not in frame]
    if missing:
        raise UserError(f"{path}: lacks the column {missing[0]}; accepted: {', '.join(COLUMNS)}")
    return frame[list(COLUMNS)]
