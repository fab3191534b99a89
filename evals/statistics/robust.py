"""Summaries that a single seed does not decide: falls, interquartile means, performance profiles.

Interquartile mean, stratified bootstrap and profiles are those of Agarwal et al. 2021 (arXiv 2108.13264) and their
library rliable 1.2.0: tests hold them to its numbers. ``scores`` are [S, M] of S seeds on M benchmarks.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from numpy.random import Generator
from scipy.special import betaincinv

from evals.core.comparisons import FALL, Fall
from evals.statistics.accuracy import FloatArray, IntArray
from evals.statistics.difference import Arm, estimate_difference
from evals.statistics.suite import ALIKE, Suite

_SHORTEST_WINDOW = 5
_REPLICATES_AT_ONCE = 500


def fell_in_training(rewards: npt.ArrayLike, rule: Fall = FALL, window: int | None = None) -> npt.NDArray[np.bool_]:
    """Return whether runs [...] lost a share of what they had gained, and at least some points, by rewards [..., T].

    ``max_t R_t - R_end >= max(points / 100, share * (max_t R_t - R_0))``, where R is the moving mean of the rewards
    over ``window`` steps, by default a tenth of them, at least 5, R_0 the first and R_end the last of them.
    """
    values = np.asarray(rewards, dtype=np.float64)
    steps = values.shape[-1]
    width = min(steps, window or max(_SHORTEST_WINDOW, -(-steps // 10)))
    means = np.lib.stride_tricks.sliding_window_view(values, width, axis=-1).mean(axis=-1)
    best = means.max(axis=-1)
    return np.asarray(best - means[..., -1] >= np.maximum(rule.points / 100, rule.share * (best - means[..., 0])))


def fell_below(
    accuracies: Sequence[npt.ArrayLike], base: Sequence[npt.ArrayLike], suite: Suite = ALIKE, confidence: float = 0.95
) -> bool:
    """Return whether a policy is worse than its base model: the paired interval over problems lies below 0.

    Both have for each benchmark the accuracies [1, N] of the same problems.
    """
    policy, before = Arm(accuracies, is_fixed=True), Arm(base, is_fixed=True)
    return bool(estimate_difference(policy, before, suite).interval(confidence)[1] < 0.0)


def share_interval(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """The exact interval of a share (Clopper and Pearson 1934, Biometrika 26), which never covers less than it says."""
    failures, tail = trials - successes, (1.0 - confidence) / 2.0
    low = betaincinv(successes, failures + 1, tail) if successes else 0.0
    high = betaincinv(successes + 1, failures, 1.0 - tail) if failures else 1.0
    return float(low), float(high)


def falls_p_value(fell: int, runs: int, against_fell: int, against_runs: int) -> float:
    """The two-sided p-value of two shares that fell: Boschloo's exact test (1970, Statistica Neerlandica 24).

    It is Fisher's without the condition that as many fall in all, which makes that one lose half of its power here.
    """
    from scipy.stats import boschloo_exact  # slow to import

    if fell + against_fell in (0, runs + against_runs):
        return 1.0
    table = [[fell, against_fell], [runs - fell, against_runs - against_fell]]
    return min(1.0, float(boschloo_exact(table).pvalue))


def interquartile_mean(scores: npt.ArrayLike) -> FloatArray:
    """The mean [...] of the middle half of all scores [..., S, M] (rliable's ``aggregate_iqm``).

    A quarter of the S * M values is cut off at either end, rounded down to a whole number of them.
    """
    values = np.asarray(scores, dtype=np.float64)
    ordered = np.sort(values.reshape(*values.shape[:-2], -1))
    cut = ordered.shape[-1] // 4
    return np.asarray(ordered[..., cut : ordered.shape[-1] - cut].mean(axis=-1))


def performance_profile(scores: npt.ArrayLike, thresholds: npt.ArrayLike) -> FloatArray:
    """The share [..., K] of scores [..., S, M] above each threshold [K] (rliable's score distribution)."""
    values = np.asarray(scores)
    above = values.reshape(*values.shape[:-2], 1, -1) > np.asarray(thresholds)[:, None]
    return np.asarray(above.mean(axis=-1))


def draw_seeds(shape: tuple[int, int], generator: Generator, resamples: int, *, together: bool) -> IntArray:
    """Seeds drawn with replacement [R, S, M]: for each benchmark by itself, as rliable does, or ``together`` for all.

    A seed is one policy on every benchmark, so its scores go up and down together. Drawn for each benchmark alone they
    cancel, and the interval comes out too short.
    """
    seeds, benchmarks = shape
    drawn = generator.integers(seeds, size=(resamples, seeds, 1 if together else benchmarks))
    return np.broadcast_to(drawn, (resamples, seeds, benchmarks))


def stratified_bootstrap(
    scores: npt.ArrayLike, statistic: Callable[[FloatArray], FloatArray], draws: IntArray
) -> FloatArray:
    """A statistic [R, ...] of scores [S, M] whose seeds were drawn anew [R, S, M]."""
    values = np.asarray(scores, dtype=np.float64)
    columns = np.arange(values.shape[1])
    parts = (draws[start : start + _REPLICATES_AT_ONCE] for start in range(0, len(draws), _REPLICATES_AT_ONCE))
    return np.concatenate([statistic(values[part, columns]) for part in parts])


def percentile_interval(replicates: FloatArray, confidence: float = 0.95) -> tuple[FloatArray, FloatArray]:
    """Both ends [...] of the percentile interval of bootstrap replicates [R, ...]."""
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(replicates, [tail, 1.0 - tail], axis=0)
    return low, high
