"""Measurements with intervals and verdicts, and the table of all claims."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import pandas as pd
from pydantic import BeforeValidator, ConfigDict, PlainSerializer, computed_field

from evals.core.files import write_text
from evals.core.manifest import write_output_manifest
from evals.core.record import Record
from evals.statistics.interval import t_interval
from evals.tables.layout import Table, csv_text, markdown
from evals.tables.numbers import NOTHING, rounded
from rlvr_claims.claims.base import UPDATES, Direction

SUPPORTED, CONTRADICTED, UNDECIDED = "supported here", "contradicted here", "not distinguishable"
NOT_MEASURED = "not measured"
TITLE = "The papers' claims on this study's model"
EXPLANATION = (
    f'Verdicts are of the interval: `{SUPPORTED}` if it lies on the claim\'s side of "no effect", `{CONTRADICTED}` '
    f"if on the other, `{UNDECIDED}` if it holds it. Each is one comparison, not corrected for their number. "
    "Measurements without a verdict are beside the claims."
)
_HEADER = ("Claim", "Measured", "Estimate", "95 % interval", "No effect", "n", "Verdict")
_VERDICTS = (SUPPORTED, CONTRADICTED, UNDECIDED)
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
        above, below = (SUPPORTED, CONTRADICTED) if self.direction == "above" else (CONTRADICTED, SUPPORTED)
        return above if self.low > self.null else below if self.high < self.null else UNDECIDED


class Estimate(float):
    """A number in a sentence, without a minus before zero; formats are Python's, ``points`` (a share) and ``pp``."""

    def __format__(self, form: str) -> str:
        if form == "points":
            return f"{abs(100 * self):.0f} points {'more' if self > 0 else 'less'}"
        return rounded(100 * float(self), "+.0f") if form == "pp" else rounded(float(self), form)


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


def beside(quantity: str, values: Iterable[float], unit: str = UPDATES) -> Measurement:
    """Return a measurement that nothing is claimed of."""
    return measure("", quantity, values, unit, direction=None)


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


def by_name(series: pd.DataFrame, *names: str, value: str = "value", unit: str = "unit") -> dict[str, pd.Series]:
    """Gather the numbers of each unit, by the cells of the columns ``names`` joined by commas."""
    of_rows = [", ".join(cells) for cells in series[list(names)].itertuples(index=False)]
    rows = pd.DataFrame({"name": of_rows, "unit": series[unit], "value": series[value]})
    table = rows.drop_duplicates(["name", "unit"]).pivot(index="unit", columns="name", values="value")
    return {str(name): numbers for name, numbers in table.reindex(rows["unit"].unique()).items()}


class Summary(Record):
    """A claim's title, method and measurements, the content of ``{claim}.json``."""

    title: str
    method: str
    measurements: tuple[Measurement, ...]

    def table(self, number: int) -> Table:
        """Lay out every measurement of the claim, the ``number``-th."""
        rows = []
        for each in self.measurements:
            interval = f"[{_number(each.low)}, {_number(each.high)}]" if not math.isnan(each.low) else NOTHING
            null = _number(each.null) if each.direction else NOTHING
            numbers = (_number(each.estimate), interval, null, f"{each.units} {each.unit}")
            rows.append((each.statement or NOTHING, each.quantity, *numbers, each.verdict or NOTHING))
        return Table("claim", f"{number}. {self.title}", _HEADER, tuple(rows))


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
    every = [each for claim in claims for each in claim.measurements]
    counted = [(f"{number}. {claim.title}", claim.measurements) for number, claim in enumerate(claims, start=1)]
    rows = []
    for title, measurements in (*counted, ("All", every)):
        verdicts = [each.verdict for each in measurements]
        rows.append((title, *(str(verdicts.count(verdict)) for verdict in _VERDICTS)))
    against = [each.statement for each in every if each.verdict == CONTRADICTED]
    missing = [f"{each.statement}: {each.quantity}" for each in every if each.verdict == NOT_MEASURED]
    notes = [f"Contradicted here: {'; '.join(against) or 'none'}."]
    notes += [f"Not measured: {measurement}." for measurement in (*left_out, *missing)]
    return Table("verdicts", "Statements by verdict", ("Claim", *_VERDICTS), tuple(rows), tuple(notes))


def _number(value: float) -> str:
    return NOTHING if math.isnan(value) else rounded(value, ".3g")


def _markdown_lines(table: Table) -> list[str]:
    """Header, rule and rows in GitHub Markdown without padding, for long cells; no title and no notes."""
    rows = [[cell.replace("|", r"\|") for cell in row] for row in table.rows]
    return [f"| {' | '.join(cells)} |" for cells in (table.header, ["---"] * len(table.header), *rows)]
