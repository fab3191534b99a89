"""Methods over one axis: bands over seeds, the ceiling-and-efficiency fit, and the difference at equal cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from evals.core.errors import InvalidInput, UserError
from evals.statistics.accuracy import FloatArray
from evals.statistics.difference import Difference, pooled
from evals.statistics.resampling import holm_of_known
from evals.statistics.scaling import FEATURES, Course, estimate_course
from rlvr_curves.names import NAMES
from rlvr_curves.runs import Run

LEAST_STEPS = 10
"""Logged steps of a run that a curve with three parameters is fitted to."""
_POINTS = 200
_LAST = 0.9
_ROUNDING = 1e-6  # of TensorBoard's numbers


@dataclass(frozen=True)
class Methods:
    """Runs by method, over an axis that all of them have: ``steps``, or what tokens or seconds count."""

    runs: Mapping[str, Sequence[Run]]
    axis: str

    @property
    def unit(self) -> str:
        """The axis in words, such as ``tokens (prompts and responses)``."""
        quantity, _, counts = self.axis.partition(": ")
        return f"{quantity} ({counts})" if counts else quantity

    def over(self, method: str, metric: str) -> tuple[FloatArray, FloatArray] | None:
        """The axis [P] as far as all seeds reached, and a metric [S, P] there; None where a seed lacks it."""
        courses = []
        for run in self.runs[method]:
            if metric not in run.metrics:
                return None
            known = run.metrics[run.metrics[metric].notna()]
            courses.append((known[self.axis].to_numpy(), known[metric].to_numpy()))
        if not all(len(x) for x, _ in courses):
            return None
        first, last = max(x[0] for x, _ in courses), min(x[-1] for x, _ in courses)
        points = np.linspace(first, max(first, last), _POINTS)
        return points, np.array([np.interp(points, *course) for course in courses])

    @cached_property
    def end(self) -> float:
        """Where the shortest run ends."""
        return float(min(run.metrics[self.axis].iloc[-1] for runs in self.runs.values() for run in runs))

    def at_end(self, method: str) -> FloatArray:
        """The rewards [S] there: means over the last tenth of the axis before, or of the step before."""
        rewards = []
        for run in self.runs[method]:
            before = run.metrics[run.metrics[self.axis] <= self.end * (1 + _ROUNDING)]
            before = run.metrics.iloc[:1] if before.empty else before
            last = before[before[self.axis] >= min(_LAST * self.end, before[self.axis].iloc[-1])]
            rewards.append(float(last["reward"].mean()))
        return np.array(rewards)

    def difference(self, method: str, other: str | None = None) -> Difference:
        """The reward there, less that of another method, with the variance that other seeds would cause."""
        arms = [self.at_end(name) for name in (method, other) if name is not None]
        variances = [np.asarray(arm.var(ddof=1) / len(arm) if len(arm) > 1 else np.nan) for arm in arms]
        variance, freedom = pooled(variances, [max(len(arm) - 1, 1) for arm in arms])
        value = arms[0].mean() - sum(arm.mean() for arm in arms[1:])
        return Difference(np.asarray(value), np.zeros(()), np.ones(()), variance, freedom)

    def p_values(self, reference: str) -> dict[str, float | None]:
        """The p-values of all others against a method, after Holm; None where a seed alone has no variance."""
        others = [method for method in self.runs if method != reference]
        values = [float(self.difference(method, reference).p_values()) for method in others]
        return dict(zip(others, holm_of_known([None if np.isnan(p) else p for p in values]), strict=True))

    def fit(self, method: str) -> "Fit | str":
        """Fit the ceiling-and-efficiency curve to a method's rewards, or say why none is fitted.

        The first step's rollouts are the policy's before training; those of a step are of the compute before it.
        """
        runs = [run.metrics for run in self.runs[method]]
        steps = min(len(metrics) for metrics in runs)
        if steps < LEAST_STEPS:
            return f"fewer than {LEAST_STEPS} logged steps"
        if (first := max(run.first for run in self.runs[method])) > 1:
            return f"the first reward is that of step {first:g}, so the one before training is not known"
        rewards = np.array([metrics["reward"].to_numpy()[:steps] for metrics in runs])
        compute = np.array([metrics[self.axis].to_numpy()[: steps - 1] for metrics in runs])
        if self.axis == "steps":  # counted from 0 or 1: what was spent after a step is that many and one
            compute = compute - compute[:, :1] + 1
        if rewards.min() < 0 or rewards.max() > 1:
            return "rewards outside of 0 to 1"
        if compute.min() <= 0:
            return f"{self.axis.partition(': ')[0]} begin at 0; --axis steps"
        course = Course(compute, rewards[:, :, None])
        estimate = estimate_course(course, np.zeros((1, 1), dtype=np.int64), float(rewards[:, -1].mean()))
        variance, freedom = pooled([estimate.seed_variance], [max(len(runs) - 1, 1)])
        nothing = np.zeros(len(FEATURES))
        return Fit(Difference(estimate.values, nothing, nothing + 1, variance, freedom), float(compute.max()))


@dataclass(frozen=True)
class Fit:
    """The parameters of a curve, with intervals over seeds, of a run of some compute."""

    features: Difference
    compute: float

    @property
    def is_identified(self) -> bool:
        """Whether the rewards bend enough to say where they end: the ceiling is below 1, and half is made."""
        return bool(self.features.estimate[0] < 1 - 1e-9 and np.exp(self.features.estimate[2]) <= self.compute)

    def parameter(self, name: str) -> tuple[float, tuple[float, float] | None]:
        """The value of a parameter, and its interval where there are seeds."""
        index = FEATURES.index(name)
        values = [float(each[index]) for each in (self.features.estimate, *self.features.interval())]
        value, low, high = np.clip(values, 0, 1).tolist() if name == "ceiling" else np.exp(values).tolist()
        return value, None if np.isnan(low) else (low, high)


def methods_of(runs: Sequence[Run], axis: str) -> Methods:
    """Gather the runs of each method; an axis that not all have, or that counts not the same in all, is an error."""
    gathered: dict[str, list[Run]] = {}
    for run in runs:
        gathered.setdefault(run.method, []).append(run)
    if axis == "steps":
        return Methods(gathered, axis)
    for run in runs:
        if not run.axes(axis):
            known = ", ".join(dict.fromkeys(["steps", *(other for other in ("tokens", "seconds") if run.axes(other))]))
            names = ", ".join(row.name for row in NAMES if row.quantity == axis)
            found = "is in no step, or not in every one, or falls"
            raise InvalidInput(str(run.path), axis, found, f"--axis {known}, or a metric {names}")
    shared = [column for column in runs[0].axes(axis) if all(column in run.axes(axis) for run in runs)]
    if not shared:
        counted = {column: run for run in runs for column in run.axes(axis)}
        found = "; ".join(f"{run.path} has {column} ({run.names[column][1]})" for column, run in counted.items())
        raise UserError(f"--axis {axis}: {found}; accepted: runs that count the same, or --axis steps")
    order = [f"{row.quantity}: {row.counts}" for row in NAMES]
    return Methods(gathered, min(shared, key=order.index))
