"""Grading over standard streams: a case a line in, a verdict a line out, in the same order."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, TextIO

from evals.core.errors import UserError
from evals.grading.pool import GradingPool
from evals.grading.verdict import Case, Kind

_BATCH = 2_000  # cases between two writes


def grade_lines(source: Iterable[bytes], target: TextIO, pool: GradingPool) -> None:
    """Grade every line of ``source``; nothing is graded, and nothing written, if any line is malformed.

    Args:
        source: lines of JSON with id, pred, gold and, if wanted, kind and truncated.
        target: gets lines of JSON with id, correct, answer, reason and seconds.
        pool: what grades.

    Raises:
        UserError: a line is malformed.
    """
    cases = [_read_case(number, line) for number, line in enumerate(source, start=1) if line.strip()]
    for start in range(0, len(cases), _BATCH):
        batch = cases[start : start + _BATCH]
        verdicts = pool.grade(case for _, case in batch)
        for (identifier, _), verdict in zip(batch, verdicts, strict=True):
            row = {
                "id": identifier,
                "correct": verdict.correct,
                "answer": verdict.answer,
                "reason": verdict.reason.value,
                "seconds": round(verdict.seconds, 6),
            }
            target.write(json.dumps(row) + "\n")
        target.flush()


def _read_case(number: int, line: bytes) -> tuple[Any, Case]:
    where = f"standard input: line {number}"
    try:
        row = json.loads(line)
    except ValueError as error:
        raise UserError(f"{where} is not valid JSON ({error})") from None
    if not isinstance(row, dict):
        raise UserError(f"{where} is not an object")
    missing = [key for key in ("id", "pred", "gold") if key not in row]
    if missing:
        raise UserError(f"{where} lacks {', '.join(missing)}")
    for key in ("pred", "gold"):
        if not isinstance(row[key], str):
            raise UserError(f"{where}: {key} is {type(row[key]).__name__}; accepted: a string")
    truncated = row.get("truncated", False)
    if not isinstance(truncated, bool):
        raise UserError(f"{where}: truncated is {truncated!r}; accepted: true, false")
    try:
        kind = Kind(row.get("kind", Kind.COMPLETION))
    except ValueError:
        accepted = ", ".join(kind.value for kind in Kind)
        raise UserError(f"{where}: kind is {row['kind']!r}; accepted: {accepted}, mcq") from None
    return row["id"], Case(row["pred"], row["gold"], kind, truncated)
