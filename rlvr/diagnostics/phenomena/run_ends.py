"""What runs ended with, from the metrics that they wrote down."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from evals.core.errors import UserError
from evals.core.run_spec import LocalRun

LAST = 10
"""Rollout steps at the end of a run over which its reward and entropy are averaged; half of a shorter run."""


@dataclass(frozen=True)
class RunMetrics:
    """One finished run.

    Attributes:
        run: the resolved run.
        metrics: a row a rollout step.
    """

    run: LocalRun
    metrics: pd.DataFrame

    def end(self, column: str) -> float:
        """Mean of a metric over the last steps."""
        return float(self.metrics[column].tail(min(LAST, max(1, len(self.metrics) // 2))).mean())


def read_run(directory: Path) -> RunMetrics:
    """A finished run, from its directory.

    Raises:
        UserError: a file is missing.
    """
    run = LocalRun.read(directory / "run.json")
    if not (directory / "metrics.parquet").is_file():
        raise UserError(f"{directory / 'metrics.parquet'}: no such file; the run is not finished")
    return RunMetrics(run, pd.read_parquet(directory / "metrics.parquet"))
