"""How far verl is, from the metrics that it writes: for the terminal, and for whoever watches the run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from evals.core.run_spec import VerlRun
from rlvr.engines.verl.launch import Places
from rlvr.engines.verl.metrics import read_metrics
from rlvr.runs.progress import Progress, write_metrics_so_far


class Display:
    """The steps of a run as they are done."""

    def __init__(self, run: VerlRun, places: Places, parameters: Mapping[str, Any], resumed: int) -> None:
        """Begin after step ``resumed``: what earlier attempts logged after it is lost, and not done yet."""
        self._run, self._places, self._parameters = run, places, parameters
        self._done = resumed
        self._progress = Progress(places.run, run.run, run.training.steps, resumed)
        self._write()

    def look(self) -> None:
        """Tell what is new, if anything is."""
        logged = _last_step(self._read([self._places.metrics] if self._places.metrics.exists() else []))
        if logged > self._done:
            self._done = logged
            metrics = self._write()
            self._progress.report(logged, reward_mean=float(metrics["reward_mean"].iloc[-1]))

    def _write(self) -> pd.DataFrame:
        metrics = self._read(metrics_files(self._places))
        metrics = metrics[metrics["step"] <= self._done] if len(metrics) else metrics
        write_metrics_so_far(self._places.run, self._parameters, metrics)
        return metrics

    def _read(self, files: list[Path]) -> pd.DataFrame:
        return read_metrics(files, self._run.training.updates_per_step)


def metrics_files(places: Places) -> list[Path]:
    """Files of all attempts, oldest first."""
    kept = sorted(places.metrics.parent.glob("metrics.*.jsonl"))
    return [*kept, places.metrics] if places.metrics.exists() else kept


def keep_metrics(places: Places) -> None:
    """Put the metrics of the attempt before aside: verl starts its file anew."""
    if places.metrics.exists():
        number = len(list(places.metrics.parent.glob("metrics.*.jsonl")))
        places.metrics.rename(places.metrics.with_name(f"metrics.{number:04d}.jsonl"))


def _last_step(metrics: pd.DataFrame) -> int:
    return int(metrics["step"].iloc[-1]) if len(metrics) else 0
