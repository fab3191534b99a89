"""The base of the claims: what each measures and shows, and the files that are made of it."""

from __future__ import annotations

import importlib
import sys
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from evals.core.files import write_json, write_parquet
from evals.core.manifest import write_output_manifest
from evals.figures.style import new_figure, set_title, write_figure
from rlvr_claims.claims.base import Declaration, find_claim
from rlvr_claims.claims.findings import NOT_MEASURED, Estimate, Findings, Measurement, Summary, measure, unmeasured
from rlvr_claims.claims.inputs import Inputs
from rlvr_claims.claims.panels import Layout, draw_panels

_OF_CHECKPOINTS = "OfCheckpoints"


class Claim(ABC):
    """A claim of a paper, measured and drawn; its texts and measurements are declared under its module's name."""

    size: ClassVar[tuple[float, float]]  # width and height of the figure in inches
    columns: ClassVar[tuple[str, ...] | None] = None  # columns of the series; None for all keys of the rows

    @property
    def declared(self) -> Declaration:
        return find_claim(type(self).__module__.rpartition(".")[2], type(self).__name__.endswith(_OF_CHECKPOINTS))

    def say(self, words: str, *estimates: Estimate) -> str:
        """Fill in the constants of the claim's module, and estimates."""
        return words.format(*estimates, **vars(sys.modules[type(self).__module__]))

    def measure(self, inputs: Inputs) -> Findings:
        series = pd.DataFrame(list(self.rows(inputs)), columns=self.columns and list(self.columns))
        return Findings([*self.measurements(series)], series)

    @abstractmethod
    def rows(self, inputs: Inputs) -> Iterable[dict[str, Any]]:
        """Return the rows of the series."""

    def values(self, series: pd.DataFrame) -> Mapping[Any, Any]:
        """Return the numbers that the declared measurements name: of each unit one, NaN for none."""
        raise NotImplementedError

    def measurements(self, series: pd.DataFrame) -> Iterator[Measurement]:
        """Yield the measurements of the series, in the order of the table."""
        values, declared, none = self.values(series), self.declared, pd.Series(dtype=float)
        for each in declared.measured:
            numbers = values.get(self.say(each.of), none)
            numbers = numbers - values.get(self.say(each.less), none) if each.less else numbers
            if each.otherwise is None or not np.isnan(numbers).all():
                words = self.say(each.claim), self.say(each.quantity)
                yield measure(*words, numbers, declared.unit, each.null, each.side if each.claim else None)
            elif each.otherwise:
                yield unmeasured(each.claim, each.otherwise)

    @abstractmethod
    def panels(self, findings: Findings) -> Layout:
        """Return the lines of panels of the figure."""

    def title(self, findings: Findings) -> str:
        """Say what was found in a sentence, the title of the figure."""
        return self.say(self.declared.finding, *(Estimate(each.estimate) for each in findings.measurements))


def load_claim(declaration: Declaration) -> Claim:
    """Import the class that measures a claim."""
    name = declaration.name.title().replace("_", "") + (_OF_CHECKPOINTS if declaration.of_checkpoints else "")
    return cast("Claim", getattr(importlib.import_module(f"{__package__}.{declaration.name}"), name)())


def measure_claim(name: str, inputs: Inputs, out: Path, figure: Path) -> None:
    """Measure a claim and write ``{out}.json``, ``{out}.parquet``, ``{figure}.png``, ``{figure}.svg`` and manifests."""
    declaration = find_claim(name, of_checkpoints=inputs.comparison is not None)
    inputs.check(declaration)
    claim = load_claim(declaration)
    findings = claim.measure(inputs)
    series = out.with_name(f"{out.name}.parquet")
    write_parquet(series, findings.series)
    method, measurements = claim.say(declaration.method), tuple(findings.measurements)
    summary = Summary(title=declaration.title, method=method, measurements=measurements)
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
