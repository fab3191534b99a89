"""The base of the claims: what each measures and shows, and the files that are made of it."""

from __future__ import annotations

import importlib
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar, cast

import pandas as pd
from matplotlib.figure import Figure

from evals.core.files import write_json, write_parquet
from evals.core.manifest import write_output_manifest
from evals.figures.style import new_figure, set_title, write_figure
from rlvr_claims.claims.base import Declaration, find_claim
from rlvr_claims.claims.findings import NOT_MEASURED, Findings, Measurement, Summary
from rlvr_claims.claims.inputs import Inputs
from rlvr_claims.claims.panels import Layout, draw_panels


class Claim(ABC):
    """A claim of a paper, measured and drawn."""

    method: ClassVar[str]  # paragraph on what is done, and what it leaves open
    size: ClassVar[tuple[float, float]]  # width and height of the figure in inches
    columns: ClassVar[tuple[str, ...] | None] = None  # columns of the series; None for all keys of the rows

    def measure(self, inputs: Inputs) -> Findings:
        series = pd.DataFrame(list(self.rows(inputs)), columns=self.columns and list(self.columns))
        return Findings([*self.measurements(series)], series)

    @abstractmethod
    def rows(self, inputs: Inputs) -> Iterable[dict[str, Any]]:
        """Return the rows of the series."""

    @abstractmethod
    def measurements(self, series: pd.DataFrame) -> Iterator[Measurement]:
        """Yield the measurements of the series, in the order of the table."""

    @abstractmethod
    def panels(self, findings: Findings) -> Layout:
        """Return the lines of panels of the figure."""

    @abstractmethod
    def title(self, findings: Findings) -> str:
        """Say what was found in a sentence, the title of the figure."""


def load_claim(declaration: Declaration) -> Claim:
    """Import the class that measures a claim."""
    module = importlib.import_module(f"{__package__}.{declaration.name}")
    return cast("Claim", getattr(module, declaration.measured_by)())


def measure_claim(name: str, inputs: Inputs, out: Path, figure: Path) -> None:
    """Measure a claim and write ``{out}.json``, ``{out}.parquet``, ``{figure}.png``, ``{figure}.svg`` and manifests."""
    declaration = find_claim(name, of_checkpoints=inputs.comparison is not None)
    inputs.check(declaration)
    claim = load_claim(declaration)
    findings = claim.measure(inputs)
    series = out.with_name(f"{out.name}.parquet")
    write_parquet(series, findings.series)
    summary = Summary(title=declaration.title, method=claim.method, measurements=tuple(findings.measurements))
    write_json(out.with_name(f"{out.name}.json"), summary.to_json())
    write_output_manifest("findings", out, (".json", ".parquet"), inputs.files(), {"claim": name})
    write_figure(name, lambda: draw_claim(claim, findings), figure, [series])


def draw_claim(claim: Claim, findings: Findings) -> Figure:
    """Draw the panels below the finding, and below them the meaning of the bars and the number of units."""
    figure = new_figure(*claim.size)
    width = figure.get_figwidth()
    # 13 and 16 characters an inch.
    set_title(figure, textwrap.fill(claim.title(findings), int(width * 13)), fontsize=9.5)
    draw_panels(figure, claim.panels(findings))
    counted: dict[str, list[int]] = {}
    for measurement in findings.measurements:
        if measurement.verdict != NOT_MEASURED:
            counted.setdefault(measurement.unit, []).append(measurement.units)
    ranges = {unit: sorted({min(counts), max(counts)}) for unit, counts in counted.items()}
    units = "; ".join(f"n = {' to '.join(map(str, counts))} {unit}" for unit, counts in ranges.items())
    note = textwrap.fill(f"Bars and bands: 95 % intervals of the mean over units, {units}.", int(width * 16))
    figure.supxlabel(note, x=0.01, ha="left", fontsize=7.5, color="#4d4d4d")
    return figure
