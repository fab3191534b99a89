"""verl's metrics, by the local engine's names where there is one, so that runs of both stand in one chart."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path

import pandas as pd

NAMES: Mapping[str, str] = {
    "batch/reward_mean": "reward_mean",
    "batch/response_length_mean": "response_length_mean",
    "batch/longest_fraction": "truncation_rate",
    "batch/groups_mixed_fraction": "groups_mixed_fraction",
    "batch/groups_whole_fraction": "groups_whole_fraction",
    "batch/tokens": "tokens_generated",
    "batch/prompts_sampled": "prompts_sampled",
    "batch/rollouts_discarded_fraction": "rollouts_discarded_fraction",
    "actor/entropy": "entropy",
    "actor/clip_fraction": "clip_fraction",
    "actor/clip_fraction_lower": "clip_fraction_lower",
    "actor/clip_fraction_upper": "clip_fraction_upper",
    "actor/approximate_kl": "approximate_kl",
    "actor/grad_norm": "grad_norm",
    "actor/loss": "loss",
    "actor/lr": "learning_rate",
    "training/rollout_probs_diff_mean": "rollout_probability_difference_mean",
    "rollout_corr/log_ppl_abs_diff": "rollout_log_perplexity_difference",
    "timing_s/gen": "seconds_rollout",
    "timing_s/old_log_prob": "seconds_log_probs",
    "timing_s/adv": "seconds_advantages",
    "timing_s/update_actor": "seconds_update",
    "timing_s/update_weights": "seconds_weight_sync",
    "timing_s/save_checkpoint": "seconds_save",
    "timing_s/step": "seconds_step",
}
_PREFIXES = ("batch/token_weight", "batch/margin_scale", "batch/positive_", "batch/negative_", "batch/selected_")
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
        ours = NAMES.get(name) or (name.removeprefix("batch/") if name.startswith(_PREFIXES) else None)
        if ours is not None and isinstance(value, int | float) and math.isfinite(value):
            row[ours] = value
    row["optimizer_steps"] = updates_per_step
    row["peak_memory_bytes"] = int(data.get("actor/perf/max_memory_allocated_gb", 0.0) * _GIGABYTE)
    return row
