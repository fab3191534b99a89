"""What looking at one claim leaves behind: measurements, the series behind its figure, and what was done in words."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from evals.core.errors import UserError
from evals.core.files import read_json, write_json, write_parquet
from rlvr.diagnostics.interval import Measurement


@dataclass(frozen=True)
class Findings:
    """One claim looked at.

    Attributes:
        title: of the claim, for a heading.
        method: a paragraph on what was done, and what it leaves open.
        measurements: those with a verdict and those beside them.
        series: long table behind the figure; its columns are the claim's own.
    """

    title: str
    method: str
    measurements: Sequence[Measurement]
    series: pd.DataFrame

    def write(self, out: Path) -> None:
        """Write ``{out}.json`` and ``{out}.parquet``."""
        write_parquet(out.with_name(f"{out.name}.parquet"), self.series)
        write_json(
            out.with_name(f"{out.name}.json"),
            {
                "title": self.title,
                "method": self.method,
                "measurements": [
                    {key: _plain(value) for key, value in dataclasses.asdict(each).items()} | {"verdict": each.verdict}
                    for each in self.measurements
                ],
            },
        )


def _plain(value: Any) -> Any:
    """JSON has no NaN: null stands for it."""
    return None if isinstance(value, float) and math.isnan(value) else value


def read_findings(path: Path) -> tuple[str, str, list[Measurement]]:
    """Title, method and measurements of a ``{claim}.json``.

    Raises:
        UserError: the file is missing or has other keys.
    """
    content = read_json(path)
    try:
        rows: list[dict[str, Any]] = [
            {key: value for key, value in row.items() if key != "verdict"} for row in content["measurements"]
        ]
        for row in rows:
            row |= {key: math.nan for key in _FLOATS if row[key] is None}
        measurements = [Measurement(**row) for row in rows]
        return content["title"], content["method"], measurements
    except (KeyError, TypeError) as error:
        raise UserError(f"{path}: is no finding of rlvr-bench claim ({error})") from error


_FLOATS = ("estimate", "low", "high", "null")
