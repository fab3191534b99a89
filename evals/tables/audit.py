"""The table of the audits: how much could not be judged, and how far a second grader agrees."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from operator import attrgetter
from pathlib import Path

import pandas as pd

from evals.core.errors import InvalidInput
from evals.core.records import Audit, BenchmarkAudit, Run, SecondOpinion, extraction_note, read_runs
from evals.tables import numbers
from evals.tables.layout import Column, Table, field_of, make_table, write_table

_COUNTS = ("samples", "correct", "truncated", "no_answer", "timeouts", "unparsable", "other_failures")
_SECOND = ("compared", "failed", "only_ours", "only_second")


@dataclass(frozen=True)
class Audits:
    """The audits of a study: benchmark -> the audit of every run."""

    by_benchmark: dict[str, list[Audit]]
    files: list[Path]
    note: str  # what the table's columns count
    extraction_note: str  # on benchmarks graded by the last statement


def read_audits(results: Path, benchmarks: Sequence[str], runs: Sequence[Run]) -> Audits:
    """Read ``audit.json`` of every run and benchmark below ``results``."""
    files: dict[Path, BenchmarkAudit] = {}
    for name, run in product(benchmarks, runs):
        path = results / "grades" / run.run / name / "audit.json"
        content = files[path] = BenchmarkAudit.read(path)
        if (content.benchmark, content.audit.run) != (name, run.run):
            raise InvalidInput(str(path), "", f"is of {content.audit.run} on {content.benchmark}", f"{run.run}, {name}")
    read = list(files.values())
    by_benchmark = {name: [each.audit for each in read if each.benchmark == name] for name in benchmarks}
    graders = {f"{each.second_grader.name} {each.second_grader.version}" for each in read}
    share = min((each.audit.second.share for each in read if each.audit.second), default=1.0)
    stated = [each.benchmark for each in read if each.extraction]
    return Audits(by_benchmark, list(files), _note(", ".join(sorted(graders)), share), extraction_note(stated))


def write_audit_table(benchmarks: Sequence[str], directory: Path, runs: Path, out: Path) -> None:
    """Write how much was not judged, and where a second grader differs; ``directory`` is results/."""
    audits = read_audits(directory, benchmarks, read_runs(runs))
    rows = [
        {"run": row.run, "benchmark": benchmark}
        | {key: getattr(row, key) for key in (*_COUNTS, "no_second_because")}
        | {key: getattr(row.second, key, None) for key in _SECOND}
        | {"disagreement": _disagreement(row)}
        for benchmark, members in audits.by_benchmark.items()
        for row in members
    ]
    frame = pd.DataFrame(rows).astype(dict.fromkeys(_SECOND, "Int64"))  # nullable: not asked about withheld texts
    write_table(out, audit_tables(audits), frame, [runs, *audits.files])


def audit_tables(audits: Audits) -> list[Table]:
    """Lay out all runs of each benchmark together, then one table per benchmark with a row per run."""
    together = [_together(name, rows) for name, rows in audits.by_benchmark.items()]
    notes = [audits.note, audits.extraction_note]
    tables = [make_table("audit", "Audit of the grades", _columns("Benchmark"), together, notes)]
    for name, rows in audits.by_benchmark.items():
        tables.append(make_table(f"audit_{name}", f"{name}: audit of every run", _columns("Run"), rows, notes[1:]))
    return tables


def sentence(audits: Audits) -> str:
    """How often the graders disagree, and how many samples could not be judged, in words."""
    rows = [_together(name, rows) for name, rows in audits.by_benchmark.items()]
    judged = [row.second for row in rows if row.second is not None]
    apart = sum(second.only_ours + second.only_second for second in judged)
    failed = sum(row.unparsable + row.timeouts + row.other_failures for row in rows)
    compared = sum(second.compared for second in judged)
    words = f"A second grader disagrees on {apart:,} of {compared:,} samples."
    asked, total = words if judged else "No second grader was asked.", sum(row.samples for row in rows)
    return f"{asked} Of all {total:,} samples {failed:,} could not be judged, and count as wrong."


def own_audit_table(audits: Sequence[Audit], second_grader: str, extraction: str = "") -> Table:
    """Lay out the audits of files of one's own, a row per file, and then the samples on which the graders differ."""
    ours = "Ours: our grader, asked now; a file's own verdicts are not looked at."
    notes = [_note(second_grader, 1.0), ours, extraction]
    for row in audits:
        if differing := row.second.disagreements if row.second else ():
            listed = "; ".join(f"{one.problem_id} {one.sample}: {one.ours}, {one.second}" for one in differing)
            notes.append(f"{row.run}, where they differ (problem, sample: ours, second): {listed}.")
    return make_table("audit", "Audit of the grades", _columns("Run"), audits, notes)


def _note(second_grader: str, share: float) -> str:
    drawn = f"It is asked about {100 * share:g} % of the samples whose answer is a number, a letter or absent, "
    return (
        "Per cent of the samples, but for counts. No answer includes truncated samples without one. Not judged: "
        "unparsable, timed out, or another failure (memory, a killed process, an unreadable gold); all count as wrong. "
        f"Second grader: {second_grader} on the whole text, which also takes an unmarked last number for an "
        f"answer. {drawn + 'and about all others. ' if share < 1 else ''}"
        "It is not asked where texts may not be kept (withheld) or programs were run (code)."
    )


def _columns(first: str) -> list[Column[Audit]]:
    def share(count: str) -> Column[Audit]:
        def text(row: Audit) -> str:
            number = getattr(row, count)
            return numbers.percent(None if number is None else number / row.samples)

        return Column({"timeouts": "Timed out"}.get(count, count.replace("_", " ").capitalize()), text)

    def second(header: str, count: str) -> Column[Audit]:
        return Column(header, field_of(attrgetter("second"), count), numbers.whole)

    compared = second("Compared", "compared")
    return [
        Column(first, attrgetter("run")),
        Column("Samples", attrgetter("samples")),
        *map(share, ("correct", "truncated", "no_answer", "unparsable", "timeouts", "other_failures")),
        Column("Compared", lambda row: row.no_second_because or numbers.whole(compared.value(row))),
        Column("Disagree", _disagreement, numbers.percent),
        second("Only ours (count)", "only_ours"),
        second("Only second (count)", "only_second"),
        second("Second failed (count)", "failed"),
    ]


def _disagreement(audit: Audit) -> float | None:
    """Fraction of the samples judged by both graders on which they differ."""
    second = audit.second
    return (second.only_ours + second.only_second) / second.compared if second and second.compared else None


def _together(benchmark: str, rows: Sequence[Audit]) -> Audit:
    """The sum over the runs of a benchmark; the second grader was asked about all of them or about none."""
    opinions = [row.second for row in rows if row.second is not None]
    second = {key: sum(getattr(opinion, key) for opinion in opinions) for key in _SECOND}
    return Audit(
        run=benchmark,
        **{key: sum(getattr(row, key) or 0 for row in rows) for key in _COUNTS},
        no_second_because=rows[0].no_second_because,
        second=SecondOpinion(**second) if len(opinions) == len(rows) else None,
    )
