"""Measurements with intervals and verdicts, and the base of the claims that make them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
import pandas as pd
from pydantic import BeforeValidator, ConfigDict, PlainSerializer, computed_field

from evals.core.files import write_json, write_parquet
from evals.core.record import Record
from evals.statistics.interval import t_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from rlvr.diagnostics.claims.inputs import Inputs

SUPPORTED, CONTRADICTED, UNDECIDED = "supported here", "contradicted here", "not distinguishable"
UPDATES = "updates (run, step)"
"""The usual unit. An update moves its tokens together, so single tokens are no independent evidence."""
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
        """Measure the claim.

        Raises:
            UserError: a file is missing or changed.
        """
        series = pd.DataFrame(list(self.rows(inputs)), columns=self.columns and list(self.columns))
        return Findings(self.measurements(series), series)

    @abstractmethod
    def rows(self, inputs: Inputs) -> Iterable[dict[str, Any]]:
        """Return the rows of the series."""

    @abstractmethod
    def measurements(self, series: pd.DataFrame) -> list[Measurement]:
        """Return the measurements of the series, in the order of the table."""

    @abstractmethod
    def draw(self, findings: Findings) -> Figure:
        """Draw the findings."""


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
