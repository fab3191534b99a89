"""The metrics of a run, step by step, from the entries of its logs."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from evals.core.errors import InvalidInput, UserError
from rlvr_curves.formats import WALL, Log, read_log
from rlvr_curves.names import NAMES, REWARD, SHOWN, STEPS, Name, columns_of, parse_names
from rlvr_curves.sources import FILES, Source, few, find_sources

_LARGEST = 1e15
_SAME = 1e-5

Series = dict[str, dict[float, float]]
"""Metric -> step -> value."""


@dataclass(frozen=True)
class Run:
    """A run of a method.

    Attributes:
        path: what a message calls it; ``files`` are what was read.
        metrics: a row for each step with a reward: ``steps``, and the columns of ``names``.
        names: a column, such as ``tokens: responses`` -> the row of the table, and the name in the log.
        unmapped: names of the log that the table lacks.
        first: the first step that was logged; ``gap`` the steps from one to the next.
        lost: how many steps have a reward that is no number.
    """

    method: str
    path: Path
    files: Sequence[Path]
    metrics: pd.DataFrame
    names: Mapping[str, tuple[Name, str]]
    unmapped: Sequence[str]
    first: float
    gap: float
    lost: int

    @property
    def steps(self) -> float:
        """How many steps the log covers."""
        return float(self.metrics["steps"].iloc[-1]) - self.first + _first_interval(self.first, self.gap)

    def axes(self, quantity: str) -> list[str]:
        """The columns that can be an axis: they have a value in every row, and never fall."""
        columns = [name for name in self.names if name.startswith(f"{quantity}: ")]
        return [
            name for name in columns if self.metrics[name].notna().all() and self.metrics[name].is_monotonic_increasing
        ]


def read_runs(words: Sequence[str], names: str = "") -> list[Run]:
    """Read the runs ``METHOD=PATH``; what is no run of its own, and so no seed, is an error.

    Args:
        words: as of the command.
        names: names of metrics that come before the table's, as ``--names``.
    """
    given = parse_names(names)
    runs = [_run(sources, logs, [*given, *NAMES]) for sources, logs in _joined(find_sources(words))]
    used = {row.name for run in runs for row, _ in run.names.values()}
    for row in given:
        if row.name not in used:
            raise InvalidInput("", "--names", f"{row.quantity}={row.name} is in no run", ", ".join(runs[0].unmapped))
    for method in dict.fromkeys(run.method for run in runs):
        _check_seeds([run for run in runs if run.method == method])
    return runs


def _joined(sources: Sequence[Source]) -> Iterator[tuple[list[Source], list[Log]]]:
    """Read the logs of every run; those of one id are the parts of a run that was resumed."""
    by_identity: dict[object, list[tuple[Source, list[Log]]]] = {}
    for source in sources:
        logs = [read_log(part) for part in source.parts]
        by_identity.setdefault(logs[0].identity or source, []).append((source, logs))
    for parts in by_identity.values():
        of_run = [source for source, _ in parts]
        if len({source.method for source in of_run}) > 1:
            raise UserError(
                f"{of_run[1].path}: is the run of {of_run[0].path}, by its id; accepted: one method for both"
            )
        parts.sort(key=lambda part: _time(part[1][0]))
        yield of_run, [log for _, logs in parts for log in logs]


def _time(log: Log) -> float:
    times = [values.get("_timestamp", values.get(WALL)) for _, values in log.entries[:1]]
    return next((float(time) for time in times if isinstance(time, int | float)), 0.0)


def _run(sources: Sequence[Source], logs: Sequence[Log], table: Sequence[Name]) -> Run:
    source, parts = sources[0], dict[str, list[Series]]()
    series, step, row = Series(), "", table[0]
    for log in logs:
        row, step = log.find_step(table)
        parts.setdefault(log.directory, []).append(_gather(log.by_step(step, log.reward(table)), step))
    for of_directory in parts.values():
        series |= _join(of_directory, source.path, table)
    if not series:
        raise UserError(f"{source.path}: has no step with a number; accepted: {', '.join(FILES)}")
    columns = columns_of(table, series)
    if REWARD not in columns:
        accepted = ", ".join(name.name for name in table if name.quantity == "reward")
        message = f"has no metric of the reward, but {few(name for name in series if not name.startswith('_'))}"
        raise InvalidInput(str(source.path), "", message, f"{accepted}; --names")
    frame = pd.DataFrame(series).sort_index()
    rewards = series[columns[REWARD][1]]
    first, gap = _spacing(rewards)
    metrics = pd.DataFrame({"steps": frame.index.to_numpy(dtype=float)}, index=frame.index)
    names = {"steps": (row, step)}
    for (quantity, counts), (name, column) in columns.items():
        key = f"{quantity}: {counts}" if counts else quantity
        names[key], metrics[key] = (name, column), _values(name.form, frame[column])
    metrics = metrics[metrics["reward"].notna()].reset_index(drop=True)
    if metrics.empty:
        raise InvalidInput(str(source.path), columns[REWARD][1], "is no number in any step")
    known = {column for _, column in names.values()} | {WALL, "_timestamp", "_runtime"}
    files = [file for each in sources for file in each.files]
    lost = sum(math.isnan(value) for value in rewards.values())
    return Run(source.method, source.path, files, metrics, names, sorted(series.keys() - known), first, gap, lost)


def _gather(entries: Iterator[tuple[str, Any, Mapping[str, Any]]], step_name: str) -> Series:
    """Gather the numbers of a log: of entries in a row with one step the mean, of others the last."""
    series, last = Series(), dict[str, tuple[float, int]]()
    for where, step, values in entries:
        if not isinstance(step, int | float) or isinstance(step, bool) or not 0 <= step <= _LARGEST:
            raise InvalidInput(where, step_name, f"is {str(step)[:40]}", "a number from 0 on")
        for name, value in values.items():
            if not isinstance(value, int | float) or isinstance(value, bool) or name == step_name or name in STEPS:
                continue
            name = name.encode("utf-8", "replace").decode()  # half a surrogate pair, which no table holds, becomes "?"
            value = value if not isinstance(value, float) or math.isfinite(value) else math.nan
            if abs(value) > _LARGEST:
                raise InvalidInput(where, name, f"is {str(value)[:12]}", f"up to {_LARGEST:g}")
            if name == WALL and step in series.get(name, ()):  # of the first metric of a step
                continue
            before, count = last.get(name, (-1.0, 0))
            count, of_metric = count + 1 if before == step else 1, series.setdefault(name, {})
            of_metric[float(step)] = value if count == 1 else of_metric[step] + (value - of_metric[step]) / count
            last[name] = (float(step), count)
    return series


def _join(parts: Sequence[Series], path: Path, table: Sequence[Name]) -> Series:
    """Join the parts of a run that was resumed: from its first reward on each is in the place of what was there.

    What it logged before that, such as the time of an evaluation at step 0, is not of the run's steps.
    """
    series, rewards = Series(), [columns_of(table, part).get(REWARD, (None, ""))[1] for part in parts]
    starts = [min(part[reward]) for part, reward in zip(parts, rewards, strict=True) if reward]
    for part, reward in zip(parts, rewards, strict=True):
        if not reward and starts and part and min(map(min, part.values())) > min(starts):
            continue  # a restart that ended before its first reward
        if (before := series.get(reward)) and min(part[reward]) <= min(before):
            accepted = "one; of a resumed run a metric with its step, --names step=NAME"
            raise UserError(
                f"{path}: holds two runs that begin at step {min(before):g}, by {reward}; accepted: {accepted}"
            )
        is_first = not series
        for name in [*series] if reward else []:  # also of metrics that the part lacks
            series[name] = {step: value for step, value in series[name].items() if step < min(part[reward])}
        for name, values in part.items():
            first = min(part.get(reward, values))
            kept = {step: value for step, value in series.get(name, {}).items() if step < first}
            series[name] = kept | {step: value for step, value in values.items() if is_first or step >= first}
    return {name: values for name, values in series.items() if values}


def _spacing(values: Mapping[float, float]) -> tuple[float, float]:
    """The first step that was logged, and the median of steps from one to the next."""
    steps = sorted(values)
    return steps[0], float(np.median(np.diff(steps))) if len(steps) > 1 else max(steps[0], 1.0)


def _first_interval(first: float, gap: float) -> float:
    """The steps that the first entry is for: with entries at 5, 10 ... five, at 1, 5 ... one."""
    return first if 0 < first <= gap else gap


def _values(form: str, values: pd.Series) -> pd.Series:
    """A metric as it is drawn: of what is logged for each step the sum so far, of a clock the time since its start."""
    known = values.dropna()
    if form == "time":
        return known - known.iloc[0] if len(known) else known
    if form == "each step":  # the mean over the steps since the entry before
        steps = known.index.to_numpy(dtype=float)
        between = np.diff(steps, prepend=steps[:1] - _first_interval(*_spacing(dict(known)))) if len(steps) else steps
        return (known * between).cumsum()
    return values


def _check_seeds(runs: Sequence[Run]) -> None:
    """Refuse what is no seed of its own: the rest of a resumed run, and a run by two of its files."""
    earliest = min(runs, key=lambda run: run.first)
    for index, run in enumerate(runs):
        if run.first - earliest.first > max(run.gap, earliest.gap):
            found = f"begins at step {run.first:g}, {earliest.path} at {earliest.first:g}"
            raise UserError(f"{run.path}: {found}; accepted: the parts of a resumed run, {run.method}=FIRST+REST")
        for other in runs[:index]:
            if _are_same(run, other):
                found = f"has the rewards of {other.path} at every step that both have"
                raise UserError(f"{run.path}: {found}; accepted: every seed's own run, once")


def _are_same(run: Run, other: Run) -> bool:
    """Whether all metrics of two runs are equal, up to the rounding of a tracker, where there are some that change."""
    shared = [name for name in SHOWN if name in run.metrics and name in other.metrics]
    both = run.metrics.merge(other.metrics, on="steps", suffixes=("", " of the other"))
    first, second = both[shared].to_numpy(), both[[f"{name} of the other" for name in shared]].to_numpy()
    changes = len(both) > 1 and both["reward"].nunique() > 1
    return bool(changes and np.allclose(first, second, rtol=_SAME, atol=0.0, equal_nan=True))
