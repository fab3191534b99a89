"""Names under which the driver and the workers exchange what verl has no name for."""

from __future__ import annotations

ADVANTAGE = "rlvr_advantage"
"""[B] of each rollout, of whole groups."""
GROUP = "rlvr_group"
"""[B] int64, the prompt of each rollout."""
MINI_BATCH = "rlvr_mini_batch"
"""[B] int64."""
ROW = "rlvr_row"
"""[B] int64, the rollout's place in the batch, by which workers undo their own reordering."""
STEP = "rlvr_step"
"""The rollout step, from 1."""
FIRST_METRICS = "rlvr_first_metrics"
"""The weighting's metrics on the run's first batch."""

WEIGHT_METRICS = (
    "token_weight_mean",
    "token_weight_p05",
    "token_weight_p95",
    "positive_token_fraction",
    "negative_token_fraction",
    "token_weight_mean_positive",
    "token_weight_mean_negative",
    "margin_scale_positive",
    "margin_scale_negative",
    "selected_token_fraction",
    "seconds_token_weights",
    "hidden_state_recomputations",
)
"""Metrics of the weightings that workers compute; they travel as a row of numbers in this order, NaN for none."""
