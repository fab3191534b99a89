"""What one step of a replayed run made of each token, as coloured text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from evals.core.errors import UserError
from rlvr.diagnostics.coloured_text import Quantity, Row, View, numbers, visible
from rlvr.diagnostics.token_columns import read_token_table

QUANTITIES = (
    Quantity("push", "advantage × weight", lambda rows: numbers(rows, "advantage") * numbers(rows, "weight")),
    Quantity("weight", "weight", lambda rows: numbers(rows, "weight"), middle=1.0),
    Quantity(
        "change",
        "log-prob change over the step",
        lambda rows: numbers(rows, "new_log_prob") - numbers(rows, "old_log_prob"),
        " nats",
    ),
    Quantity("gate", "gate", lambda rows: numbers(rows, "gate"), middle=1.0),
    Quantity("entropy", "entropy", lambda rows: numbers(rows, "entropy"), " nats", one_sided=True),
    Quantity(
        "surprise", "−log-prob when sampled", lambda rows: -numbers(rows, "old_log_prob"), " nats", one_sided=True
    ),
)
_HEADER = ("token", "class", "weight", "log-prob", "after the step", "change", "entropy", "ratio", "gate")


def step_view(table: Path, step: int | None, problems: Sequence[str], count: int) -> tuple[View, pd.DataFrame]:
    """The view of some groups of one step, and their rows.

    Args:
        table: directory with ``tokens.parquet`` of a replayed run.
        step: which one.
        problems: ids of the problems to show; with none, the first ``count`` that have rewarded and punished rollouts.
        count: how many.

    Raises:
        UserError: the table is missing or damaged, or has no such step or problem.
    """
    frame = read_token_table(table / "tokens.parquet")
    steps = sorted(frame["step"].unique())
    if step not in steps:
        given = "is missing" if step is None else f"is {step}"
        raise UserError(f"--step: {given}; accepted: {', '.join(map(str, steps))}")
    chosen = _choose(frame[frame["step"] == step], problems, count)
    title = f"{chosen['run'].iloc[0]}, step {step}"
    return View(title, _EXPLANATION, QUANTITIES, _HEADER, _cells, _words, _heading, _stopped), chosen


_EXPLANATION = "Struck through: the loss stopped the token's gradient."


def _choose(frame: pd.DataFrame, problems: Sequence[str], count: int) -> pd.DataFrame:
    """The rows of the groups wanted."""
    if problems:
        known = list(dict.fromkeys(frame["problem"]))
        unknown = [problem for problem in problems if problem not in known]
        if unknown:
            raise UserError(
                f"--problem: is {unknown[0]!r}, which is not in that step; accepted: {', '.join(known[:5])} ..."
            )
        return frame[frame["problem"].isin(problems)]
    sides = frame.groupby("group")["side"].agg(["min", "max"])
    mixed = sides.index[(sides["min"] < 0) & (sides["max"] > 0)]
    groups = list(mixed[:count]) or list(sides.index[:count])
    return frame[frame["group"].isin(groups)]


def _heading(row: Row) -> tuple[str, str, str]:
    outcome = f"reward {row['reward']:g}, advantage {row['advantage']:+.3f}"
    return f"Rollout {row['sample']}", outcome, f"optimizer step {row['mini_batch']}"


def _stopped(row: Row) -> bool:
    return bool(row["gate"] == 0)


def _cells(row: Row) -> tuple[str, ...]:
    return (
        visible(str(row["text"])),
        str(row["token_class"]),
        f"{row['weight']:.3f}",
        f"{row['old_log_prob']:.4f}",
        f"{row['new_log_prob']:.4f}",
        f"{row['new_log_prob'] - row['old_log_prob']:+.4f}",
        f"{row['entropy']:.4f}",
        f"{row['ratio']:.4f}",
        "–" if np.isnan(row["gate"]) else f"{row['gate']:.3f}",
    )


def _words(row: Row) -> str:
    _, kind, weight, before, after, change, entropy, ratio, gate = _cells(row)
    words = f"{kind}, weight {weight}, log-prob {before} → {after} ({change}), "
    return words + f"entropy {entropy}, ratio {ratio}, gate {gate}"
