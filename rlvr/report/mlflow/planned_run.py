"""The record of an MLflow run that should exist, and how its parameters and metrics are read from result files."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, Self

import pandas as pd
from mlflow.entities import Metric

from evals.core.files import fingerprint
from evals.core.records import ProblemFile
from rlvr.report.mlflow.models import PlannedModel

NOTE_TAG = "mlflow.note.content"  # the tag that MLflow renders as a run's description
UNJUDGED = "train/unjudged_responses"  # of a whole training, where its metrics count them

# Part of every content hash: raise it when this package shows the same files differently.
_VERSION = 3
_LONGEST_NOTE = 8000  # characters of a tag that MLflow keeps
_METRICS_PER_CALL = 900  # MLflow takes 1,000 metrics and tags together


@dataclass(frozen=True)
class PlannedRun:
    """An MLflow run that should exist."""

    result: str  # identity within the experiment, such as "run tiny-dapo-s1"
    name: str
    content: str  # hash of what was found; a run with another one is written again
    tags: Mapping[str, str]  # beside those that this package adds by itself
    started: int | None  # milliseconds since the epoch, as are all times
    ended: int | None  # None while it may go on
    parent: str | None = None  # result of the run that this one is nested under, which is planned before it
    params: Mapping[str, str] = field(default_factory=dict)
    metrics: Sequence[Metric] = ()  # in the order of their steps; none of them is NaN
    problems: ProblemFile | None = None
    artifacts: Mapping[Path, str] = field(default_factory=dict)  # files -> the run's folder that they are copied to
    status: str = "FINISHED"  # or RUNNING, KILLED
    growing: bool = False  # later steps are added to the run that shows the earlier ones, instead of writing it again
    final_tags: Mapping[str, str] = field(default_factory=dict)  # written when everything else is
    model: PlannedModel | None = None  # the policy that it makes; a nested run without one measures its parent's
    table: Callable[[], pd.DataFrame] | None = None  # reads what MLflow shows as the run's table of responses

    @classmethod
    def at_once(cls, result: str, name: str, tags: Mapping[str, str], time: int, *content: Any, **shown: Any) -> Self:
        """A run of one moment, ``time``, whose fingerprint is the hash of its tags and ``content``."""
        identity = content_hash(tags, *content)
        return cls(result, name, identity, {**tags, "fingerprint": identity}, time, time, **shown)

    def batches(self, after: int) -> Iterator[list[Metric]]:
        """The metrics of the steps behind ``after``, as many whole steps at once as MLflow takes in a call."""
        batch: list[Metric] = []
        new = [metric for metric in self.metrics if metric.step > after]
        for _, metrics in groupby(new, key=lambda metric: metric.step):
            of_step = list(metrics)
            if batch and len(batch) + len(of_step) > _METRICS_PER_CALL:
                yield batch
                batch = []
            batch += of_step
        if batch:
            yield batch

    @cached_property
    def history_hashes(self) -> dict[int, str]:
        """Step -> a hash of all metrics up to it; the time of measurement does not count."""
        hashes, before = {}, ""
        for step, metrics in groupby(self.metrics, key=lambda metric: metric.step):
            hashes[step] = before = fingerprint([before, [(metric.key, repr(metric.value)) for metric in metrics]])
        return hashes


def content_hash(*parts: Any) -> str:
    """The hash that decides whether a run is up to date."""
    return fingerprint([_VERSION, *parts])


def note(markdown: Path, sections: int) -> str:
    """The title and the first ``sections`` sections of a Markdown file, as far as MLflow keeps them."""
    return "\n## ".join(markdown.read_text(encoding="utf-8").split("\n## ")[:sections])[:_LONGEST_NOTE]


def flatten(value: Any, prefix: str = "") -> dict[str, str]:
    """Nested settings as dotted keys: ``{"training": {"steps": 60}}`` -> ``{"training.steps": "60"}``."""
    if not isinstance(value, Mapping) or not value:
        return {prefix: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}
    flat: dict[str, str] = {}
    for key, inner in value.items():
        flat |= flatten(inner, f"{prefix}.{key}" if prefix else str(key))
    return flat


def metrics_of_steps(frame: pd.DataFrame, ended: int) -> list[Metric]:
    """Every number of every step, timed so that the last step is at ``ended``; NaN (not measured) makes no metric.

    MLflow draws the metrics of a section, ``train/`` or ``time/``, together.
    """
    frame = frame.sort_values("step", kind="stable")
    seconds = frame["seconds_step"].fillna(0.0) if "seconds_step" in frame else frame["step"] * 0.0
    times = (ended - 1000 * (seconds.sum() - seconds.cumsum())).round().astype(int).tolist()
    columns = frame.drop(columns="step").select_dtypes("number").astype(float)
    names = [metric_name(str(name)) for name in columns]
    rows = zip(frame["step"].astype(int).tolist(), times, columns.to_numpy().tolist(), strict=True)
    return [
        Metric(name, value, time, step)
        for step, time, values in rows
        for name, value in zip(names, values, strict=True)
        if not math.isnan(value)
    ]


def metric_name(column: str) -> str:
    """The name of a column of ``metrics.parquet`` in MLflow: ``train/reward_mean``, ``time/seconds_step``."""
    return f"{'time' if column.startswith(('seconds_', 'peak_memory')) else 'train'}/{column}"


def single_metrics(values: Mapping[str, float | None], time: int) -> list[Metric]:
    """Values that were measured once, at step 0, which MLflow draws as bars; None makes no metric."""
    return [Metric(key, float(value), time, 0) for key, value in values.items() if value is not None]
