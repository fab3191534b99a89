"""Measurements with intervals and verdicts, the base of the claims that make them, and the table of all claims."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
import pandas as pd
from pydantic import BeforeValidator, ConfigDict, PlainSerializer, computed_field

from evals.core.files import replacing, write_json, write_parquet, write_text
from evals.core.manifest import write_output_manifest
from evals.core.record import Record
from evals.statistics.interval import t_interval
from evals.tables.layout import Table, markdown, markdown_lines
from rlvr.diagnostics.claims.base import find_claim

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from rlvr.diagnostics.claims.inputs import Inputs

SUPPORTED, CONTRADICTED, UNDECIDED = "supported here", "contradicted here", "not distinguishable"
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
    """One number that a claim says something about.

    Attributes:
        statement: the claimed sentence that the verdict answers; empty where nothing is claimed.
        quantity: name of the measured number, with its unit.
        estimate: mean over units.
        low, high: ends of the interval; NaN where there is none.
        null: the value that would mean "no such effect".
        direction: the claimed side of ``null``; None where nothing is claimed.
        units: number of independent units that the interval is over.
        unit: name of such a unit.
    """

    model_config = ConfigDict(extra="ignore", allow_inf_nan=True)

    statement: str
    quantity: str
    estimate: Number
    low: Number
    high: Number
    null: Number
    direction: Direction | None
    units: int
    unit: str

    @computed_field  # type: ignore[prop-decorator]
    @property
    def verdict(self) -> str:
        """The interval's answer to the statement; empty where nothing is claimed."""
        if self.direction is None:
            return ""
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
    estimate = float(known.mean()) if len(known) else math.nan
    low, high = mean_interval(known)
    return Measurement(
        statement=statement,
        quantity=quantity,
        estimate=estimate,
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


def mean_interval(values: np.ndarray) -> tuple[float, float]:
    """Return Student's interval of the mean of ``values`` [N]; NaN for fewer than two."""
    if len(values) < 2:
        return math.nan, math.nan
    low, high = t_interval(values)
    return float(low), float(high)


@dataclass(frozen=True)
class Findings:
    """The measurements of a claim, with and without a verdict, and the long table that its figure is drawn from."""

    measurements: Sequence[Measurement]
    series: pd.DataFrame


class Claim(ABC):
    """A claim of a paper, measured and drawn.

    Attributes:
        method: paragraph on what is done, and what it leaves open.
        columns: columns of the series; None for all keys of the rows.
    """

    method: ClassVar[str]
    columns: ClassVar[tuple[str, ...] | None] = None

    def measure(self, inputs: Inputs) -> Findings:
        series = pd.DataFrame(list(self.rows(inputs)), columns=self.columns and list(self.columns))
        return Findings(self.measurements(series), series)

    @abstractmethod
    def rows(self, inputs: Inputs) -> Iterable[dict[str, Any]]:
        """Return the rows of the series."""

    @abstractmethod
    def measurements(self, series: pd.DataFrame) -> list[Measurement]:
        """Return the measurements of the series, in the order of the table."""

    @abstractmethod
    def draw(self, findings: Findings) -> Figure: ...


def select(series: pd.DataFrame, **wanted: object) -> pd.DataFrame:
    """Return the rows whose columns have the ``wanted`` values."""
    for column, value in wanted.items():
        series = series[series[column] == value]
    return series


class Summary(Record):
    """A claim's title, method and measurements, the content of ``{claim}.json``."""

    title: str
    method: str
    measurements: tuple[Measurement, ...]


def write_findings(title: str, method: str, findings: Findings, out: Path) -> None:
    """Write ``{out}.json`` and ``{out}.parquet``."""
    write_parquet(out.with_name(f"{out.name}.parquet"), findings.series)
    summary = Summary(title=title, method=method, measurements=tuple(findings.measurements))
    write_json(out.with_name(f"{out.name}.json"), summary.to_json())


def measure_claim(name: str, inputs: Inputs, out: Path, figure: Path) -> None:
    """Measure a claim and write ``{out}.json``, ``{out}.parquet``, ``{figure}.png``, ``{figure}.svg`` and manifests."""
    from evals.figures.style import ENDINGS, figure_style, save  # matplotlib, which the tables do without

    declaration = find_claim(name, of_checkpoints=inputs.comparison is not None)
    inputs.check(declaration)
    claim = declaration.load()
    findings = claim.measure(inputs)
    write_findings(declaration.title, claim.method, findings, out)
    with figure_style():
        save(claim.draw(findings), figure)
    write_output_manifest("findings", out, (".json", ".parquet"), inputs.files(), {"claim": name})
    write_output_manifest("figure", figure, ENDINGS, [out.with_name(f"{out.name}.parquet")], {"figure": name})


def write_table(findings: Mapping[str, Path], figures: str, notes: Sequence[str], out: Path) -> None:
    """Write ``{out}.md``, ``{out}.csv`` and a manifest.

    ``findings`` maps a claim's name to its ``{claim}.json``, ``figures`` is their directory as the table links to it.
    """
    found = {name: Summary.read(path) for name, path in findings.items()}
    summary = summary_table({each.title: each.measurements for each in found.values()})
    parts = [f"# {TITLE}", "", *notes, "", EXPLANATION, "", markdown([summary])]
    rows = []
    for number, (name, each) in enumerate(found.items(), start=1):
        table = claim_table(f"{number}. {each.title}", each.measurements)
        parts += [f"## {table.title}", "", *markdown_lines(table)]
        parts += ["", f"![{each.title}]({figures}/{name}.png)", "", each.method, ""]
        rows += [{"claim": name, **measurement.to_json()} for measurement in each.measurements]
    write_text(out.with_name(f"{out.name}.md"), "\n".join(parts))
    with replacing(out.with_name(f"{out.name}.csv")) as temporary:
        pd.DataFrame(rows).to_csv(temporary, index=False)
    write_output_manifest("table", out, (".md", ".csv"), list(findings.values()), {"table": "phenomena"})


def summary_table(claims: Mapping[str, Sequence[Measurement]]) -> Table:
    """Count each claim's statements by verdict, and name those that were contradicted."""
    verdicts = {title: [each.verdict for each in measurements] for title, measurements in claims.items()}
    counts = [[own.count(verdict) for verdict in _VERDICTS] for own in verdicts.values()]
    titles = [*(f"{number}. {title}" for number, title in enumerate(claims, start=1)), "All"]
    totals = [sum(column) for column in zip(*counts, strict=True)]
    rows = tuple((title, *map(str, own)) for title, own in zip(titles, [*counts, totals], strict=True))
    against = [each.statement for own in claims.values() for each in own if each.verdict == CONTRADICTED]
    note = f"Contradicted here: {'; '.join(against) if against else 'none'}."
    return Table("verdicts", "Statements by verdict", ("Claim", *_VERDICTS), rows, (note,))


def claim_table(title: str, measurements: Sequence[Measurement]) -> Table:
    """Lay out every measurement of a claim."""
    rows = []
    for each in measurements:
        interval = f"[{_number(each.low)}, {_number(each.high)}]" if not math.isnan(each.low) else "–"
        null = _number(each.null) if each.direction else "–"
        numbers = (_number(each.estimate), interval, null, f"{each.units} {each.unit}")
        rows.append((each.statement or "–", each.quantity, *numbers, each.verdict or "–"))
    return Table("claim", title, _HEADER, tuple(rows))


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3g}"
