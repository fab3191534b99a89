"""What two checkpoints say about each token of given responses, as coloured text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from evals.core.errors import UserError
from rlvr.diagnostics.coloured_text import Quantity, Row, View, numbers, visible
from rlvr.diagnostics.comparison_table import problems_and_rewards, read_comparison


def _of(key: str, title: str, column: str, sign: int = 1) -> Quantity:
    """A column, or its negative, that has no negative values."""
    return Quantity(key, title, lambda rows: sign * numbers(rows, column), " nats", one_sided=True)


QUANTITIES = (
    Quantity(
        "difference",
        "log-prob difference, trained less base",
        lambda rows: numbers(rows, "trained_log_prob") - numbers(rows, "base_log_prob"),
        " nats",
    ),
    _of("before", "base model's entropy", "base_entropy"),
    _of("after", "trained model's entropy", "trained_entropy"),
    _of("forward", "KL(trained, base)", "kl_trained_base"),
    _of("backward", "KL(base, trained)", "kl_base_trained"),
    _of("unlikely", "−log-prob of the base model", "base_log_prob", -1),
    _of("surprise", "−log-prob of the trained model", "trained_log_prob", -1),
)
_HEADER = (
    "token", "class", "base log-prob", "trained log-prob", "difference", "base entropy", "trained entropy",
    "KL(trained, base)", "KL(base, trained)",
)  # fmt: skip


def comparison_view(
    table: Path, problems: Sequence[str], count: int, responses: int | None
) -> tuple[View, pd.DataFrame]:
    """The view of some problems' responses, and their rows.

    Args:
        table: directory made by ``rlvr-bench tokens compare``.
        problems: ids of the problems to show; with none, the first ``count`` that have right and wrong responses, or
            the first ones where there are none of these or no grades.
        count: how many.
        responses: of each problem, the first so many; None for all.

    Raises:
        UserError: there is no such table or problem.
    """
    chosen = problems or _choose(table, count)
    frame = read_comparison(table, chosen)
    if unknown := [problem for problem in problems if problem not in set(frame["problem"])]:
        known = list(dict.fromkeys(problems_and_rewards(table)["problem"]))
        raise UserError(f"--problem: is {unknown[0]!r}, which is not compared; accepted: {', '.join(known[:5])} ...")
    if responses is not None:
        firsts = frame.drop_duplicates(["problem", "sample"]).groupby("problem").head(responses)
        frame = frame.merge(firsts[["problem", "sample"]])
    title = f"{table.resolve().name}: two checkpoints"
    return View(title, _EXPLANATION, QUANTITIES, _HEADER, _cells, _words, _heading), frame.assign(
        group=frame["problem"]
    )


_EXPLANATION = (
    "Both models read the same responses; blue in the log-prob difference is what training made more likely. Classes "
    "of tokens are known of generated problems, rewards of graded responses."
)


def _choose(table: Path, count: int) -> list[str]:
    frame = problems_and_rewards(table)
    problems = list(dict.fromkeys(frame["problem"]))
    if "reward" in frame:
        different = frame.groupby("problem")["reward"].nunique()
        mixed = [problem for problem in problems if different[problem] > 1]
        return mixed[:count] or problems[:count]
    return problems[:count]


def _heading(row: Row) -> tuple[str, str, str]:
    return f"Response {row['sample']}", f"reward {row['reward']:g}" if "reward" in row else "not graded", ""


def _cells(row: Row) -> tuple[str, ...]:
    return (
        visible(str(row["text"])),
        str(row.get("token_class", "–")),
        f"{row['base_log_prob']:.4f}",
        f"{row['trained_log_prob']:.4f}",
        f"{row['trained_log_prob'] - row['base_log_prob']:+.4f}",
        *(f"{row[name]:.4f}" for name in ("base_entropy", "trained_entropy", "kl_trained_base", "kl_base_trained")),
    )


def _words(row: Row) -> str:
    _, kind, before, after, difference, *others = _cells(row)
    words = "" if kind == "–" else f"{kind}, "
    words += f"log-prob {before} → {after} ({difference}), entropy {others[0]} → {others[1]}, "
    return words + f"KL(trained, base) {others[2]}, KL(base, trained) {others[3]}"
