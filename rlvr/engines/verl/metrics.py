"""verl's metrics, by the local engine's names where there is one, so that runs of both stand in one chart."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path

import pandas as pd

OURS = "rlvr/"
"""Before the names of metrics that our pieces hand to verl; what follows is the local engine's name."""

NAMES: Mapping[str, str] = {
    "actor/clip_fraction": "clip_fraction",
    "actor/clip_fraction_lower": "clip_fraction_lower",
    "actor/clip_fraction_upper": "clip_fraction_upper",
    "actor/approximate_kl": "approximate_kl",
    "actor/grad_norm": "grad_norm",
    "actor/loss": "loss",
    "actor/coupled_loss": "loss",
    "actor/lr": "learning_rate",
    "actor/learning_rate": "learning_rate",
    "timing_s/gen": "seconds_rollout",
    "timing_s/update_actor": "seconds_update",
    "timing_s/update_weights": "seconds_weight_sync",
    "timing_s/save_checkpoint": "seconds_save",
    "timing_s/step": "seconds_step",
}
"""What verl logs of the actor, and its times."""

_OVERRULED: Mapping[str, str] = {
    "actor/loss": "actor/coupled_loss",  # verl's own, of a loss that goes through its gradient, means nothing
    "actor/lr": "actor/learning_rate",  # verl's own is that of the step after
}
"""Names of verl's that one of our engine's (engine.py) stands for where it is there."""

_GIGABYTE = 1024**3


def read_metrics(files: Iterable[Path], updates_per_step: int) -> pd.DataFrame:
    """One row a step from the files of all attempts, oldest first; a step done again replaces what it was."""
    rows: dict[int, dict[str, float]] = {}
    for path in files:
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:  # the line that was being written when the process died
                continue
            rows[int(entry["step"])] = _row(int(entry["step"]), entry["data"], updates_per_step)
    return pd.DataFrame([rows[step] for step in sorted(rows)])


def _row(step: int, data: Mapping[str, float], updates_per_step: int) -> dict[str, float]:
    row: dict[str, float] = {"step": step}
    for name, value in data.items():
        if _OVERRULED.get(name) in data:
            continue
        ours = NAMES.get(name) or (name.removeprefix(OURS) if name.startswith(OURS) else None)
        if ours is not None and isinstance(value, int | float) and math.isfinite(value):
            row[ours] = value
    row["optimizer_steps"] = updates_per_step
    row["peak_memory_bytes"] = int(data.get("actor/perf/max_memory_allocated_gb", 0.0) * _GIGABYTE)
    return row
