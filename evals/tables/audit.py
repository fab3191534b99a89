"""What stands behind every score: how much could not be judged, and how far a second grader agrees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from evals.core.errors import UserError
from evals.core.files import read_json
from evals.core.records import Run
from evals.tables import numbers
from evals.tables.layout import Table

_COUNTS = ("samples", "correct", "truncated", "no_answer", "timeouts", "unparsable", "other_failures")
_SECOND = ("compared", "failed", "only_ours", "only_second")


@dataclass(frozen=True)
class Audit:
    """One run on one benchmark, in samples; the second grader's counts are None where it was not asked."""

    run: str
    benchmark: str
    samples: int
    correct: int
    truncated: int
    no_answer: int
    timeouts: int
    unparsable: int
    other_failures: int
    no_second_because: str | None
    compared: int | None
    failed: int | None
    only_ours: int | None
    only_second: int | None

    @property
    def disagreement(self) -> float | None:
        """Fraction of the samples judged by both on which they differ."""
        if not self.compared or self.only_ours is None or self.only_second is None:
            return None
        return (self.only_ours + self.only_second) / self.compared


@dataclass(frozen=True)
class Audits:
    """Every run of a study on every benchmark, in the study's order."""

    rows: tuple[Audit, ...]
    second_grader: str

    @property
    def benchmarks(self) -> tuple[str, ...]:
        """Their names, in order."""
        return tuple(dict.fromkeys(row.benchmark for row in self.rows))


def read_audits(paths: Sequence[Path], runs: Sequence[Run]) -> Audits:
    """Read ``audits/{benchmark}.json`` of every benchmark.

    Raises:
        UserError: a file is missing or malformed, or lacks a run.
    """
    rows: list[Audit] = []
    graders: set[str] = set()
    for path in paths:
        content = read_json(path)
        try:
            benchmark, grader = content["benchmark"], content["second_grader"]
            found = {row["run"]: _audit(benchmark, row) for row in content["audits"]}
            graders.add(f"{grader['name']} {grader['version']}")
        except (KeyError, TypeError) as error:
            raise UserError(f"{path}: is not an audit (rlvr-bench stage audit): lacks {error}") from None
        missing = [run.run for run in runs if run.run not in found]
        if missing:
            raise UserError(f"{path}: audits: none of {', '.join(missing)}, which the study has")
        rows += [found[run.run] for run in runs]
    return Audits(tuple(rows), ", ".join(sorted(graders)))


def _audit(benchmark: str, row: Mapping[str, Any]) -> Audit:
    second: Mapping[str, Any] = row["second"] or dict.fromkeys(_SECOND)
    return Audit(
        run=row["run"],
        benchmark=benchmark,
        no_second_because=row["no_second_because"],
        **{key: row[key] for key in _COUNTS},
        **{key: second[key] for key in _SECOND},
    )


def audit_tables(audits: Audits) -> list[Table]:
    """All runs of each benchmark together, then one table per benchmark with a row per run."""
    together = [_together([row for row in audits.rows if row.benchmark == name]) for name in audits.benchmarks]
    note = (
        "Per cent of the samples, but for counts. No answer includes truncated samples without one. Not judged: "
        "unparsable, timed out, or another failure (memory, a killed process, an unreadable gold); all count as wrong. "
        f"Second grader: {audits.second_grader} on the whole text, which also takes an unmarked last number for an "
        "answer. It is not asked where texts may not be kept (withheld) or programs were run (code)."
    )
    summary = Table("audit", "Audit of the grades", _header("Benchmark"), _cells(together, "benchmark"), (note,))
    return [summary, *(_benchmark_table(audits, name) for name in audits.benchmarks)]


def _benchmark_table(audits: Audits, benchmark: str) -> Table:
    rows = [row for row in audits.rows if row.benchmark == benchmark]
    return Table(f"audit_{benchmark}", f"{benchmark}: audit of every run", _header("Run"), _cells(rows, "run"))


def _header(first: str) -> tuple[str, ...]:
    own = ("Samples", "Correct", "Truncated", "No answer", "Unparsable", "Timed out", "Other failures")
    return (first, *own, "Compared", "Disagree", "Only ours (count)", "Only second (count)", "Second failed (count)")


def _cells(rows: Sequence[Audit], name: str) -> tuple[tuple[str, ...], ...]:
    return tuple((getattr(row, name), *_row(row)) for row in rows)


def _row(row: Audit) -> tuple[str, ...]:
    own = (row.correct, row.truncated, row.no_answer, row.unparsable, row.timeouts, row.other_failures)
    rates = [numbers.percent(value / row.samples) for value in own]
    counts = [numbers.whole(value) for value in (row.only_ours, row.only_second, row.failed)]
    compared = row.no_second_because or numbers.whole(row.compared)
    return (str(row.samples), *rates, compared, numbers.percent(row.disagreement), *counts)


def _together(rows: Sequence[Audit]) -> Audit:
    """The sum over the runs of one benchmark, which are all asked about or all not."""
    first = asdict(rows[0])
    summed = {
        key: None if any(getattr(row, key) is None for row in rows) else sum(getattr(row, key) for row in rows)
        for key in (*_COUNTS, *_SECOND)
    }
    return Audit(**(first | summed))


def audit_frame(audits: Audits) -> pd.DataFrame:
    """One row per run and benchmark: counts, and the fraction on which the graders differ."""
    frame = pd.DataFrame([asdict(row) | {"disagreement": row.disagreement} for row in audits.rows])
    return frame.astype(dict.fromkeys(_SECOND, "Int64"))  # nullable: not asked about withheld texts
