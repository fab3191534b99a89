"""Measurements with intervals and verdicts, and the table of all claims."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
import pandas as pd
from pydantic import BeforeValidator, ConfigDict, PlainSerializer, computed_field

from evals.core.files import write_text
from evals.core.manifest import write_output_manifest
from evals.core.record import Record
from evals.statistics.interval import t_interval
from evals.tables.layout import Table, csv_text, markdown
from evals.tables.numbers import rounded

SUPPORTED, CONTRADICTED, UNDECIDED = "supported here", "contradicted here", "not distinguishable"
NOT_MEASURED = "not measured"
NO_RESULTS = "no token is of the class result"
UPDATES = "updates (run, step)"
"""The usual unit. An update moves its tokens together, so single tokens are no independent evidence."""
TITLE = "The papers' claims on this study's model"
EXPLANATION = (
    f'Verdicts are of the interval: `{SUPPORTED}` if it lies on the claim\'s side of "no effect", `{CONTRADICTED}` '
    f"if on the other, `{UNDECIDED}` if it holds it. Each is one comparison, not corrected for their number. "
    "Measurements without a verdict are beside the claims."
)
_HEADER = ("Claim", "Measured", "Estimate", "95 % interval", "No effect", "n", "Verdict")
_VERDICTS = (SUPPORTED, CONTRADICTED, UNDECIDED)
Direction = Literal["above", "below"]
Number = Annotated[
    float,
    BeforeValidator(lambda value: math.nan if value is None else value),
    PlainSerializer(lambda value: None if math.isnan(value) else value, return_type=float | None),
]
"""A number that may be NaN, which is null in JSON."""


class Measurement(Record):
    """One number that a claim says something about."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=True)

    statement: str  # the claimed sentence that the verdict answers; empty where nothing is claimed
    quantity: str  # name of the measured number, with its unit; why there is none, where nothing could be measured
    estimate: Number  # mean over units
    low: Number  # end of the interval; NaN where there is none
    high: Number
    null: Number  # the value that would mean "no such effect"
    direction: Direction | None  # the claimed side of ``null``; None where nothing is claimed or measured
    units: int  # number of independent units that the interval is over
    unit: str  # name of such a unit

    @computed_field  # type: ignore[prop-decorator]
    @property
    def verdict(self) -> str:
        """The interval's answer to the statement; empty where nothing is claimed."""
        if self.direction is None:
            return NOT_MEASURED if self.statement else ""
        sign = 1.0 if self.direction == "above" else -1.0
        low, high = sorted((sign * (self.low - self.null), sign * (self.high - self.null)))
        if math.isnan(low) or math.isnan(high):
            return UNDECIDED
        return SUPPORTED if low > 0 else CONTRADICTED if high < 0 else UNDECIDED


def measure(
    statement: str,
    quantity: str,
    values: Iterable[float],
    unit: str = UPDATES,
    null: float = 0.0,
    direction: Direction | None = "above",
) -> Measurement:
    """Return the mean of ``values``, one per unit (NaN for none), with Student's 95 % interval over units.

    Fewer than two units have no interval.
    """
    known = np.asarray([value for value in values if not math.isnan(value)], dtype=np.float64)
    low, high = mean_interval(known)
    return Measurement(
        statement=statement,
        quantity=quantity,
        estimate=float(known.mean()) if len(known) else math.nan,
        low=low,
        high=high,
        null=null,
        direction=direction,
        units=len(known),
        unit=unit,
    )


def beside(quantity: str, values: Iterable[float], unit: str = UPDATES, null: float = 0.0) -> Measurement:
    """Return a measurement that nothing is claimed of."""
    return measure("", quantity, values, unit, null, direction=None)


def unmeasured(statement: str, because: str) -> Measurement:
    """Return the line of a statement that could not be measured, and why."""
    return measure(statement, because, [], direction=None)


def mean_interval(values: np.ndarray) -> tuple[float, float]:
    """Return Student's interval of the mean of ``values`` [N]; NaN for fewer than two."""
    if len(values) < 2:
        return math.nan, math.nan
    low, high = t_interval(values)
    return float(low), float(high)


class Findings(NamedTuple):
    """The measurements of a claim, with and without a verdict, and the long table that its figure is drawn from."""

    measurements: Sequence[Measurement]
    series: pd.DataFrame


def select(series: pd.DataFrame, **wanted: object) -> pd.DataFrame:
    """Return the rows whose columns have the ``wanted`` values."""
    for column, value in wanted.items():
        series = series[series[column] == value]
    return series


def by_unit(series: pd.DataFrame, column: str = "value", **wanted: object) -> pd.Series:
    """Return a column of the rows that :func:`select` chooses, by their unit."""
    return select(series, **wanted).set_index("unit")[column]


class Summary(Record):
    """A claim's title, method and measurements, the content of ``{claim}.json``."""

    title: str
    method: str
    measurements: tuple[Measurement, ...]

    def table(self, number: int) -> Table:
        """Lay out every measurement of the claim, the ``number``-th."""
        rows = []
        for measurement in self.measurements:
            interval = (
                f"[{_number(measurement.low)}, {_number(measurement.high)}]" if not math.isnan(measurement.low) else "–"
            )
            null = _number(measurement.null) if measurement.direction else "–"
            numbers = (_number(measurement.estimate), interval, null, f"{measurement.units} {measurement.unit}")
            rows.append((measurement.statement or "–", measurement.quantity, *numbers, measurement.verdict or "–"))
        return Table("claim", f"{number}. {self.title}", _HEADER, tuple(rows))


def points(difference: float) -> str:
    """Return a difference of shares in words."""
    return f"{abs(100 * difference):.0f} points {'more' if difference > 0 else 'less'}"


def read_summaries(paths: Iterable[Path]) -> dict[str, Summary]:
    """Read files ``{claim}.json``, by claim."""
    return {path.stem: Summary.read(path) for path in paths}


def write_table(
    findings: Sequence[Path], figures: str, out: Path, notes: Sequence[str] = (), left_out: Sequence[str] = ()
) -> None:
    """Write the table of all claims, from their findings.

    Args:
        figures: where the figures lie, relative to the table.
        left_out: claims that were not measured, each with what it needs.
    """
    summaries = read_summaries(findings)
    parts = [f"# {TITLE}", "", *notes, "", EXPLANATION, "", markdown([summary_table(summaries.values(), left_out)])]
    rows = []
    for number, (name, summary) in enumerate(summaries.items(), start=1):
        table = summary.table(number)
        parts += [f"## {table.title}", "", *_markdown_lines(table)]
        parts += ["", f"![{summary.title}]({figures}/{name}.png)", "", summary.method, ""]
        rows += [{"claim": name, **measurement.to_json()} for measurement in summary.measurements]
    write_text(out.with_name(f"{out.name}.md"), "\n".join(parts))
    write_text(out.with_name(f"{out.name}.csv"), csv_text(pd.DataFrame(rows)))
    write_output_manifest("table", out, (".md", ".csv"), findings, {"table": "claims"})


def summary_table(claims: Collection[Summary], left_out: Sequence[str] = ()) -> Table:
    """Count each claim's statements by verdict, and name those that were contradicted or could not be measured.

    ``left_out`` are claims that were not measured, each with what it needs.
    """
    verdicts = [[measurement.verdict for measurement in claim.measurements] for claim in claims]
    counts = [[of_claim.count(verdict) for verdict in _VERDICTS] for of_claim in verdicts]
    titles = [*(f"{number}. {claim.title}" for number, claim in enumerate(claims, start=1)), "All"]
    totals = [sum(column) for column in zip(*counts, strict=True)]
    rows = tuple((title, *map(str, of_claim)) for title, of_claim in zip(titles, [*counts, totals], strict=True))
    against = [
        measurement.statement
        for of_claim in claims
        for measurement in of_claim.measurements
        if measurement.verdict == CONTRADICTED
    ]
    note = f"Contradicted here: {'; '.join(against) if against else 'none'}."
    every = [measurement for of_claim in claims for measurement in of_claim.measurements]
    lacking = [
        f"{measurement.statement}: {measurement.quantity}"
        for measurement in every
        if measurement.verdict == NOT_MEASURED
    ]
    notes = (note, *(f"Not measured: {measurement}." for measurement in (*left_out, *lacking)))
    return Table("verdicts", "Statements by verdict", ("Claim", *_VERDICTS), rows, notes)


def _number(value: float) -> str:
    return "–" if math.isnan(value) else rounded(value, ".3g")


def _markdown_lines(table: Table) -> list[str]:
    """Header, rule and rows in GitHub Markdown without padding, for long cells; no title and no notes."""
    rows = [[cell.replace("|", r"\|") for cell in row] for row in table.rows]
    return [f"| {' | '.join(cells)} |" for cells in (table.header, ["---"] * len(table.header), *rows)]
