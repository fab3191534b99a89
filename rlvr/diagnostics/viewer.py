"""Token tables as text: a page with problems' responses in colour, of a replayed step or of two checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from evals.core.errors import UserError
from evals.core.files import read_jsonl
from rlvr.diagnostics.coloured_text import write_coloured_text
from rlvr.diagnostics.comparison_table import is_comparison
from rlvr.diagnostics.comparison_view import comparison_view
from rlvr.diagnostics.step_view import step_view


def write_page(
    table: Path,
    step: int | None,
    problems: Sequence[str],
    count: int,
    responses: int | None,
    texts: Mapping[str, str],
    out: Path,
) -> None:
    """Write the page of some problems.

    Args:
        table: directory with ``tokens.parquet``, of a replayed run or of two checkpoints.
        step: which one of a replayed run's; a comparison has none.
        problems: ids of the problems to show; with none, the first ``count`` that have right and wrong responses.
        count: how many.
        responses: to show of each problem of a comparison; None for all.
        texts: id -> text of problems, as far as known.
        out: the HTML file.

    Raises:
        UserError: there is no such table, step or problem, or a number is out of range.
    """
    for option, value in (("--groups", count), ("--responses", responses)):
        if value is not None and value < 1:
            raise UserError(f"{option}: is {value}; accepted: 1 or more")
    compared = is_comparison(table)
    if compared and step is not None:
        raise UserError(f"--step: is {step}; accepted: none, for {table} compares two checkpoints")
    if not compared and responses is not None:
        raise UserError(f"--responses: is {responses}; accepted: with a comparison; {table} is of a replayed run")
    view, rows = (
        comparison_view(table, problems, count, responses) if compared else step_view(table, step, problems, count)
    )
    write_coloured_text(view, rows, texts, out)


def read_texts(path: Path) -> dict[str, str]:
    """Id -> text of the problems of a ``problems.jsonl``; a gated set has none.

    Raises:
        UserError: the file is missing or damaged.
    """
    return {str(row["id"]): str(row["problem"]) for row in read_jsonl(path, ("id",)) if "problem" in row}
