"""The report's tables of trainings: what their metrics recorded, and the seconds of their steps."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd

from evals.core.files import read_parquet
from evals.core.records import BASE
from evals.results import Results
from evals.tables import numbers
from evals.tables.layout import Table

_UNJUDGED = "unjudged_"
_PHASES = {
    "seconds_rollout": "Rollout",
    "seconds_reward": "Reward",
    "seconds_log_probs": "Log-probs",
    "seconds_token_weights": "Token weights",
    "seconds_update": "Update",
    "seconds_step": "Whole step",
}
_OF_EVERY_ENGINE = ("seconds_rollout", "seconds_step", "tokens_generated")
"""The engine verl, for one, grades while it samples: it has no seconds of the reward."""


def _steps(results: Results, training: Path) -> Iterator[tuple[str, pd.DataFrame]]:
    """The title of every trained method, and the steps of its seeds below one another."""
    for condition in results.conditions:
        if condition.method != BASE:
            paths = [training / run.run / "metrics.parquet" for run in condition.runs]
            yield condition.title, pd.concat([read_parquet(path, _OF_EVERY_ENGINE) for path in paths])


def _unjudged(steps: pd.DataFrame) -> str:
    """How many responses nobody could judge, by reason."""
    columns = [name for name in steps if str(name).startswith(_UNJUDGED)]
    if not columns:
        return numbers.NOTHING
    counts = {str(name).removeprefix(_UNJUDGED): int(steps[name].sum()) for name in columns}
    return ", ".join(f"{reason} {count}" for reason, count in counts.items() if count) or "0"


_RECORDED: dict[str, Callable[[pd.DataFrame], str]] = {"Responses nobody could judge": _unjudged}
"""Title -> text of a column of the table, from the steps of all seeds."""


def recorded_table(results: Results, training: Path) -> Table:
    """What trainings recorded that can change what a comparison means; a dash where an engine did not record it."""
    rows = [(title, *(text(steps) for text in _RECORDED.values())) for title, steps in _steps(results, training)]
    return Table(
        "recorded", "What the trainings recorded, over the steps and seeds", ("Method", *_RECORDED), tuple(rows)
    )


def timing_table(results: Results, training: Path) -> Table:
    """Mean seconds of a step's phases and generated tokens a second, over the steps and seeds of every trained method.

    A phase that the engine does not measure is a dash.
    """
    rows = []
    for title, steps in _steps(results, training):
        means = [steps[phase].mean() if phase in steps else None for phase in _PHASES]
        seconds = [numbers.NOTHING if pd.isna(mean) else f"{mean:.3f}" for mean in means]
        rate = steps["tokens_generated"].sum() / steps["seconds_rollout"].sum()
        rows.append((title, *seconds, numbers.whole(float(rate))))
    header = ("Method", *_PHASES.values(), "Tokens/s in rollout")
    return Table("timing", "Seconds of a training step, mean over steps and seeds", header, tuple(rows))
