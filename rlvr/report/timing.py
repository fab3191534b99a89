"""Where the seconds of a training step go."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from evals.core.errors import UserError
from evals.core.files import read_parquet
from evals.core.records import BASE
from evals.results import Results
from evals.tables import numbers
from evals.tables.layout import Table

_PARTS = {
    "seconds_rollout": "Rollout",
    "seconds_reward": "Reward",
    "seconds_log_probs": "Log-probs",
    "seconds_token_weights": "Token weights",
    "seconds_update": "Update",
    "seconds_step": "Whole step",
}
_COLUMNS = [*_PARTS, "tokens_generated"]
_OF_EVERY_ENGINE = ("seconds_rollout", "seconds_step", "tokens_generated")
"""The engine verl, for one, grades while it samples: it has no seconds of the reward."""


def timing_table(results: Results, training: Path) -> Table:
    """Mean seconds a step and generated tokens a second, over the steps and seeds of every trained method.

    A part that the engine does not measure is a dash.

    Raises:
        UserError: a metrics file is missing or lacks a column.
    """
    rows = []
    for condition in results.conditions:
        if condition.method == BASE:
            continue
        steps = pd.concat([_read(training / run.run / "metrics.parquet") for run in condition.runs])
        means = [steps[part].mean() for part in _PARTS]
        rate = steps["tokens_generated"].sum() / steps["seconds_rollout"].sum()
        seconds = ["–" if pd.isna(mean) else f"{mean:.3f}" for mean in means]
        rows.append((condition.title, *seconds, numbers.whole(float(rate))))
    header = ("Method", *_PARTS.values(), "Tokens/s in rollout")
    return Table("timing", "Seconds of a training step, mean over steps and seeds", header, tuple(rows))


def _read(path: Path) -> pd.DataFrame:
    steps = read_parquet(path)
    lacking = [column for column in _OF_EVERY_ENGINE if column not in steps]
    if lacking:
        raise UserError(f"{path}: lacks the columns {', '.join(lacking)}")
    return steps.reindex(columns=_COLUMNS)
