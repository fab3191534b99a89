"""verl's metrics under the local engine's names, and the display of a training from them."""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from torch import Tensor

from evals.core.errors import UserError
from evals.core.progress import Progress
from evals.core.run_spec import VerlRun
from rlvr.engines.verl.launch import Places
from rlvr.methods.rollout_batch import rollout_kl
from rlvr.runs.progress import write_metrics_so_far

PREFIX = "rlvr/"
"""The beginning of the names of metrics that this package hands to verl; the rest is the name of the column.

Whatever a method measures passes under it. verl puts ``actor/`` before the names of what its workers hand over.
"""

_OF_VERL: Mapping[str, str] = {
    "actor/grad_norm": "grad_norm",
    "actor/loss": "loss",
    "actor/lr": "learning_rate",
    "timing_s/gen": "seconds_rollout",
    "timing_s/update_actor": "seconds_update",
    "timing_s/update_weights": "seconds_weight_sync",
    "timing_s/save_checkpoint": "seconds_save",
    "timing_s/step": "seconds_step",
    "perf/mfu/actor": "model_flops_utilisation",
    "perf/throughput": "tokens_per_second_and_device",
}
"""Metrics of verl's own, which give way to a column of the same name from this package.

verl's loss means nothing where the loss goes through its gradient, and its learning rate is that of the step after.
"""


def read_metrics(files: Iterable[Path], updates_per_step: int) -> pd.DataFrame:
    """One row a step from the files of all attempts, oldest first; a step done again replaces what it was."""
    rows: dict[int, dict[str, float]] = {}
    for path in files:
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:  # the line that was being written when the process died
                continue
            step, data = int(entry["step"]), entry["data"]
            row = rows[step] = {"step": step}
            for name, value in data.items():
                own = name.removeprefix("actor/")
                column = own.removeprefix(PREFIX) if own.startswith(PREFIX) else _OF_VERL.get(name)
                overruled = name in _OF_VERL and f"actor/{PREFIX}{column}" in data
                if column and not overruled and isinstance(value, int | float) and math.isfinite(value):
                    row[column] = value
            if not math.isfinite(norm := data.get("actor/grad_norm", 0.0)):
                raise UserError(f"{path}: step {step}: grad_norm is {norm}; accepted: a finite number")
            row["optimizer_steps"] = updates_per_step
            row["peak_memory_bytes"] = int(data.get("actor/perf/max_memory_allocated_gb", 0.0) * 1024**3)
    return pd.DataFrame([rows[step] for step in sorted(rows)])


def token_metrics(log_probs: Tensor, rollout_log_probs: Tensor, entropies: Tensor, mask: Tensor) -> dict[str, float]:
    """Means over the tokens that are trained on, whatever the loss's own aggregation; all [B, T].

    The log-probs are those of the trainer before its updates, and those that the rollout engine gave while it sampled.
    """
    difference = (log_probs - rollout_log_probs)[mask].double()
    return {
        PREFIX + "entropy": float(entropies[mask].mean()),
        PREFIX + "rollout_log_prob_difference_mean": float(difference.abs().mean()),
        PREFIX + "rollout_kl": rollout_kl(log_probs[mask], rollout_log_probs[mask]),
    }


def check_rollout_kl(metrics: Mapping[str, Any], step: int, limit: float, top_p: float) -> None:
    """Check that the engine that samples has the policy that is trained, as far as :func:`token_metrics` can tell.

    vLLM's log-probs are of the distribution that it draws from, which ``top_p`` cuts. Where it keeps a mass m, the same
    policy has m - 1 - log m nats, and that is most for the smallest mass, ``top_p``.
    """
    most = limit + top_p - 1.0 - math.log(top_p)
    found = metrics.get(PREFIX + "rollout_kl")
    if found is not None and not found <= most:
        raise RuntimeError(
            f"step {step}: the KL divergence of vLLM's distribution from the trainer's is {found:.3g} nats a token; "
            f"accepted: {most:.3g} at most (cluster.rollout_kl_limit, and what top_p {top_p:g} leaves out)"
        )


class Display:
    """The steps of a run as they are done."""

    def __init__(self, run: VerlRun, places: Places, parameters: Mapping[str, Any], resumed: int) -> None:
        """Begin after step ``resumed``: what earlier attempts logged after it is lost, and not done yet."""
        self._run, self._places, self._parameters = run, places, parameters
        self.done = resumed
        self._progress = Progress(places.run, run.run, run.training.steps, resumed)
        self._write()

    def update(self) -> None:
        logged = self._read([self._places.metrics] if self._places.metrics.exists() else [])
        if len(logged) and logged["step"].iloc[-1] > self.done:
            self.done = int(logged["step"].iloc[-1])
            metrics = self._write()
            self._progress.report(self.done, reward_mean=float(metrics["reward_mean"].iloc[-1]))

    def _write(self) -> pd.DataFrame:
        metrics = self._read(metrics_files(self._places))
        metrics = metrics[metrics["step"] <= self.done] if len(metrics) else metrics
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
        number = len(metrics_files(places)) - 1
        places.metrics.rename(places.metrics.with_name(f"metrics.{number:04d}.jsonl"))
