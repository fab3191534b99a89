"""verl's metrics under the local engine's names, what was measured of a run's steps, and its display."""

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

import pandas as pd

from evals.core.errors import UserError
from evals.core.files import read_jsonl, write_jsonl
from evals.core.progress import Progress
from evals.core.run_spec import VerlRun
from rlvr.engines.verl.launch import Places
from rlvr.runs.job import write_metrics_so_far

PREFIX = "rlvr/"
"""The beginning of the names of metrics that this package hands to verl; the rest is the name of the column.

Whatever a method measures passes under it. verl puts ``actor/`` before the names of what its workers hand over.
"""
MEASURED = "measured.jsonl"
"""The metrics of every step, beside the states of a run; of a step in progress those from before its update."""
_OF_VERL: Mapping[str, str] = {
    "actor/grad_norm": "grad_norm",
    "actor/loss": "loss",
    "timing_s/gen": "seconds_rollout",
    "timing_s/ref": "seconds_reference",
    "timing_s/update_actor": "seconds_update",
    "timing_s/update_weights": "seconds_weight_sync",
    "timing_s/save_checkpoint": "seconds_save",
    "timing_s/step": "seconds_step",
    "perf/mfu/actor": "model_flops_utilisation",
    "perf/throughput": "tokens_per_second_and_device",
}
"""Metrics of verl's own. Its loss gives way to this package's, where the loss goes through its gradient."""
_MEMORY = "actor/perf/max_memory_allocated_gb"


def columns(data: Mapping[str, Any]) -> dict[str, float]:
    """The columns of metrics.parquet among verl's metrics of a step, ``data``."""
    row = {}
    for name, value in data.items():
        short = name.removeprefix("actor/")
        column = short.removeprefix(PREFIX) if short.startswith(PREFIX) else _OF_VERL.get(name)
        overruled = name in _OF_VERL and f"actor/{PREFIX}{column}" in data
        if column and not overruled and isinstance(value, Real) and math.isfinite(value):
            row[column] = float(value)
    return row | ({"peak_memory_bytes": data[_MEMORY] * 1024**3} if _MEMORY in data else {})


def read_steps(state: Path, steps: int) -> list[dict[str, float]]:
    """What was measured of the first ``steps`` steps; less where a run has not come so far."""
    path = state / MEASURED
    return read_jsonl(path)[:steps] if path.is_file() else []


def write_step(state: Path, step: int, row: Mapping[str, float]) -> list[dict[str, float]]:
    """Note what was measured of a ``step``, from 1; it and those before it are returned, and what was after it goes."""
    rows = [*read_steps(state, step - 1), {"step": step, **row}]
    write_jsonl(state / MEASURED, rows)
    return rows


def whole_metrics(state: Path, steps: int) -> pd.DataFrame:
    """The metrics of the first ``steps`` steps, a row each."""
    rows = read_steps(state, steps)
    if len(rows) < steps:
        raise UserError(f"{state / MEASURED}: metrics of {len(rows)} steps of {steps}")
    return pd.DataFrame(rows)


def check_rollout_kl(divergence: float, step: int, limit: float, top_p: float) -> None:
    """Check that the engine that samples has the policy that is trained, by their ``divergence`` in nats a token.

    vLLM's log-probs are of the distribution that it draws from, which ``top_p`` cuts. Where it keeps a mass m, the same
    policy has m - 1 - log m nats, and that is most for the smallest mass, ``top_p``.
    """
    most = limit + top_p - 1.0 - math.log(top_p)
    if not divergence <= most:
        raise RuntimeError(
            f"step {step}: the KL divergence of vLLM's distribution from the trainer's is {divergence:.3g} nats a "
            f"token; accepted: {most:.3g} at most (cluster.rollout_kl_limit, and what top_p {top_p:g} leaves out)"
        )


class Display:
    """The steps of a run as they are done."""

    def __init__(self, run: VerlRun, places: Places, parameters: Mapping[str, Any], resumed: int) -> None:
        """Begin after step ``resumed``."""
        self._run, self._places, self._parameters, self._done = run, places, parameters, resumed
        self._progress = Progress(places.run, run.run, run.training.steps, resumed)
        self._write(read_steps(places.state, resumed))

    def update(self) -> None:
        """Show the steps that are done since."""
        rows = [row for row in read_steps(self._places.state, self._run.training.steps) if "seconds_step" in row]
        if len(rows) > self._done:
            self._done = len(rows)
            self._write(rows)
            self._progress.report(self._done, reward_mean=rows[-1]["reward_mean"])

    def _write(self, rows: Sequence[Mapping[str, float]]) -> None:
        write_metrics_so_far(self._places.run, self._parameters, pd.DataFrame(rows))
