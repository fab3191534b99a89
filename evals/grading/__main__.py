"""Grading from the shell.

``python -m evals.grading < cases.jsonl > verdicts.jsonl`` reads lines ``{"id", "pred", "gold", "kind"?, "truncated"?}``
and writes lines ``{"id", "correct", "answer", "reason", "seconds"}``, one for each, in the same order.
``python -m evals.grading file ...`` grades a study's samples.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TextIO

from evals.core.errors import UserError
from evals.core.single_writer import single_writer
from evals.grading.grade_file import grade_file
from evals.grading.pool import DEFAULT_MEMORY_LIMIT, DEFAULT_TIME_LIMIT, GradingPool
from evals.grading.verdict import CODE, Case, Kind, Reason

_BATCH = 2_000  # cases between two writes to standard output
_MEBIBYTE = 1024**2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status: 0, or 2 after an error that the user can mend."""
    options = _parser().parse_args(arguments)
    try:
        limits = {"time_limit": options.time_limit, "memory_limit": int(options.memory_limit * _MEBIBYTE)}
        with GradingPool(options.workers, **limits) as pool:
            if options.command == "file":
                with single_writer(options.out / ".writer", "grades into this directory"):
                    reasons = _grade_file(options, pool)
                counts = ", ".join(f"{reason.value} {reasons[reason]}" for reason in Reason if reasons[reason])
                print(f"{options.out}: {reasons.total()} samples graded: {counts or 'none'}", file=sys.stderr)
            else:
                _grade_lines(sys.stdin.buffer, sys.stdout, pool)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m evals.grading",
        description="Grade cases from standard input, or a file of samples. Rules: docs/grading.md.",
    )
    _add_limits(parser)
    parser.set_defaults(workers=None, time_limit=DEFAULT_TIME_LIMIT, memory_limit=DEFAULT_MEMORY_LIMIT / _MEBIBYTE)
    commands = parser.add_subparsers(dest="command", title="commands")
    file = commands.add_parser("file", help="grade a study's samples")
    _add_limits(file)
    file.add_argument("--samples", type=Path, required=True, help="samples.jsonl, with its manifest.json beside it")
    file.add_argument("--problems", type=Path, required=True, help="problems.jsonl")
    file.add_argument("--out", type=Path, required=True, help="directory for grades.jsonl and manifest.json")
    file.add_argument(
        "--kind",
        choices=[*(kind.value for kind in Kind), CODE],
        default=Kind.COMPLETION.value,
        help=f"how the samples are read (default: completion); {CODE}: programs, which are run in a sandbox against "
        "tests.jsonl beside the problems, with limits of their own",
    )
    return parser


def _add_limits(parser: argparse.ArgumentParser) -> None:
    """Options that stand before or after the command's name; the defaults are set once, on the main parser."""
    unset = argparse.SUPPRESS
    parser.add_argument("--workers", type=int, default=unset, help="worker processes (default: one per available core)")
    parser.add_argument(
        "--time-limit", type=float, default=unset, help=f"seconds per comparison (default: {DEFAULT_TIME_LIMIT:g})"
    )
    megabytes = DEFAULT_MEMORY_LIMIT // _MEBIBYTE
    parser.add_argument("--memory-limit", type=float, default=unset, help=f"MiB per worker (default: {megabytes})")


def _grade_file(options: argparse.Namespace, pool: GradingPool) -> Counter[Reason]:
    if options.kind != CODE:
        return grade_file(options.samples, options.problems, options.out, pool, Kind(options.kind))
    from evals.grading.code.grade_file import grade_programs

    return grade_programs(options.samples, options.problems, options.out, pool.workers)


def _grade_lines(source: Iterable[bytes], target: TextIO, pool: GradingPool) -> None:
    """Grade every line of ``source``; nothing is graded, and nothing written, if any line is malformed."""
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


if __name__ == "__main__":
    sys.exit(main())
