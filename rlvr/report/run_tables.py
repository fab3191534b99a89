"""The report's tables of training runs: what their metrics recorded, and the seconds of their steps."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pandas as pd

from evals.core.files import read_parquet
from evals.core.records import BASE, Condition
from evals.results import Results
from evals.tables import numbers
from evals.tables.layout import Table
from rlvr.report.provenance import read_run_manifest

_UNJUDGED = "unjudged_"
_NO_SETTINGS = ("run", "method_name", "seed", "contrast.")
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


def _steps(results: Results, training: Path) -> Iterator[tuple[Condition, pd.DataFrame]]:
    """Every trained method, and the steps of its seeds below one another."""
    for condition in results.conditions:
        if condition.method != BASE:
            paths = [training / run.run / "metrics.parquet" for run in condition.runs]
            yield condition, pd.concat([read_parquet(path, _OF_EVERY_ENGINE) for path in paths])


def _unjudged(steps: pd.DataFrame) -> str:
    """How many responses nobody could judge, by reason."""
    counts = steps.filter(regex=f"^{_UNJUDGED}").sum().astype(int)
    told = [f"{str(name).removeprefix(_UNJUDGED)} {count}" for name, count in counts.items() if count]
    return numbers.NOTHING if counts.empty else ", ".join(told) or "0"


def _mean(column: str, form: str) -> Callable[[pd.DataFrame], str]:
    """The mean of a column over all steps and seeds, and of the tokens that a method weighs, where it weighs any."""

    def text(steps: pd.DataFrame) -> str:
        means = [steps[name].mean() for name in (column, f"{column}_weighted") if name in steps]
        told = [f"{mean:{form}}" for mean in means if not pd.isna(mean)]
        return " / ".join(told) or numbers.NOTHING

    return text


def _passes(steps: pd.DataFrame) -> str:
    """How often the training problems were used when the longest training ended."""
    return f"{steps['training_passes'].max():.2g}" if "training_passes" in steps else numbers.NOTHING


_RECORDED: dict[str, Callable[[pd.DataFrame], str]] = {
    "Responses nobody could judge": _unjudged,
    "Passes over the training problems": _passes,
    "Sampler against trainer (nats)": _mean("sampler_difference_mean", ".1e"),
    "largest (nats)": _mean("sampler_difference_max", ".1e"),
    "outside 0.8 to 1.28": _mean("sampler_outside_clip", ".2%"),
    "Clipped": _mean("clip_fraction", ".2%"),
}
"""Title -> text of a column of the table, from the steps of all seeds."""
_NOTICEABLE = 0.1
"""What the sampler rounds, as a share of what the updates do, from which on it is told."""
_NOTHING = 1e-6
"""A share, or a divergence in nats, that float32 may make."""


def _sampler_note(title: str, steps: pd.DataFrame) -> list[str]:
    """Warn where what the sampler rounds is of the size of what the updates do, by which methods differ.

    Of a loss without a clip the divergences of both are compared.
    """
    if "clip_fraction" in steps:
        rounded = max(steps.filter(regex="^sampler_outside_clip").mean(), default=0.0)
        done = steps["clip_fraction"].mean()
        text = f"probabilities put {rounded:.2%} of the tokens outside of 0.8 to 1.28 of the trainer's"
        text += f"; the updates clip {done:.2%}"
    elif {"rollout_kl", "approximate_kl"} <= set(steps):
        rounded, done = steps["rollout_kl"].mean(), steps["approximate_kl"].mean()
        text = f"divergence from the trainer is {rounded:.1e} nats a token; that of the updates is {done:.1e}"
    else:
        return []
    if not rounded > max(_NOTHING, _NOTICEABLE * done):
        return []
    return [f"{title}: before any update the sampler's {text}. Differences between methods may come from rounding."]


def _base_kl(paths: Sequence[Path]) -> str:
    """KL to the base model in nats a token after the last step, mean over the seeds whose scores along it have it."""
    tables = [read_parquet(path) for path in paths if path.is_file()]
    ends = [table["base_kl"].iloc[-1] for table in tables if "base_kl" in table]
    return f"{sum(ends) / len(ends):.2g}" if ends else numbers.NOTHING


def recorded_table(results: Results, training: Path) -> Table:
    """Make the table of what runs recorded that can change what a comparison means; a dash: it was not recorded."""
    explanation = (
        "Sampler against trainer: differences of the sampled tokens' log-probabilities before any update; after the "
        "stroke, of the tokens that the method weighs most. KL: of held-out prompts, in nats a token."
    )
    rows, notes = [], [explanation]
    for condition, steps in _steps(results, training):
        kl = _base_kl([training / run.run / "validation.parquet" for run in condition.runs])
        rows.append((condition.title, *(text(steps) for text in _RECORDED.values()), kl))
        notes += _sampler_note(condition.title, steps)
    title, header = "What the training runs recorded, over the steps and seeds", (*_RECORDED, "KL to the base model")
    return Table("recorded", title, ("Method", *header), tuple(rows), tuple(notes))


def timing_table(results: Results, training: Path) -> Table:
    """Mean seconds of a step's phases and generated tokens a second, over the steps and seeds of every trained method.

    A phase that the engine does not measure is a dash.
    """
    rows = []
    for condition, steps in _steps(results, training):
        means = steps.reindex(columns=[*_PHASES]).mean()
        seconds = [numbers.NOTHING if pd.isna(mean) else f"{mean:.3f}" for mean in means]
        rate = steps["tokens_generated"].sum() / steps["seconds_rollout"].sum()
        rows.append((condition.title, *seconds, numbers.whole(float(rate))))
    header = ("Method", *_PHASES.values(), "Tokens/s in rollout")
    return Table("timing", "Seconds of a training step, mean over steps and seeds", header, tuple(rows))


def settings_table(results: Results, directory: Path) -> Table:
    """Every setting in which runs of two methods differ, a column for each method; of its first seed."""
    conditions = [condition for condition in results.conditions if condition.method != BASE]
    parameters = [dict(read_run_manifest(condition.runs[0], directory).parameters) for condition in conditions]
    frame = pd.json_normalize(parameters).astype(object)
    texts = frame.where(frame.notna(), numbers.NOTHING).astype(str)
    settings = [key for key in map(str, texts) if not key.startswith(_NO_SETTINGS)]
    differing = [key for key in settings if texts[key].nunique() > 1]
    rows = tuple((key, *texts[key]) for key in differing)
    note = (
        f"By the first seed of each; {numbers.NOTHING}: the default. Choose two methods to see their differences alone."
    )
    header = ("Setting", *(condition.title for condition in conditions))
    return Table("settings", "Settings in which the methods differ", header, rows, (note,))
