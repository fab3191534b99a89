"""Compute-performance curves of training runs: a method's ceiling, apart from how fast it gets there.

    R(C) = R_0 + (A - R_0) / (1 + (C_mid / C)^B)

Khatri et al. 2025 (ScaleRL, arXiv 2510.13786, equation 1): R is the score on held-out problems of the training
distribution after a compute C, R_0 that of the base model, A the ceiling, C_mid the compute at which half of the gain
is made, and B how steeply it is made. Fits are least squares. Uncertainty is that of other problems (bootstrap) and of
other seeds (jackknife), each with its own degrees of freedom, as in :mod:`evals.statistics.difference`.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from evals.statistics.accuracy import FloatArray, IntArray
from evals.statistics.difference import Difference, pooled

FEATURES = ("ceiling", "log_exponent", "log_midpoint", "log_compute", "second_half_error")
"""What is estimated of a training course, in this order; ``log_compute`` is that to a given score."""
_EXPONENTS = np.log((0.3, 12.0))
_MIDPOINTS = np.log((0.2, 10.0))  # parts of the smallest and of the largest compute of a course
_GRID, _ZOOM, _ZOOMS = (36, 48), 7, 5
_LEAST_POINTS = 3  # of each seed in the first half of the compute: as many as the curve has parameters
_NEVER = np.log(100.0)  # a score that is not reached within 100 times the compute counts as reached there


@dataclass(frozen=True)
class Curves:
    """Curves with parameters [R]."""

    base: FloatArray
    ceiling: FloatArray
    log_exponent: FloatArray
    log_midpoint: FloatArray

    def scores(self, compute: npt.ArrayLike) -> FloatArray:
        """Scores [R, P] after each compute [P] above 0."""
        rise = _rise(self.log_exponent[:, None], self.log_midpoint[:, None], np.log(compute))
        return np.asarray(self.base[:, None] + (self.ceiling - self.base)[:, None] * rise)

    def log_compute(self, score: float) -> FloatArray:
        """The logarithm of the compute [R] after which a score is reached; infinite if it never is."""
        with np.errstate(divide="ignore", invalid="ignore"):
            odds = (score - self.base) / (self.ceiling - score)
            needed = self.log_midpoint + np.log(odds) / np.exp(self.log_exponent)
        return np.asarray(np.where(score >= self.ceiling, np.inf, np.where(score <= self.base, -np.inf, needed)))


def _rise(log_exponent: FloatArray, log_midpoint: FloatArray, log_compute: FloatArray) -> FloatArray:
    """The part of the gain that is made, 1 / (1 + (C_mid / C)^B)."""
    return np.asarray(1.0 / (1.0 + np.exp(np.exp(log_exponent) * (log_midpoint - log_compute))))


def fit_curves(compute: npt.ArrayLike, scores: npt.ArrayLike, base: npt.ArrayLike) -> Curves:
    """Fit a curve to each row of scores [R, P] after compute [P], with the score before training, ``base`` [R], given.

    The ceiling that fits best follows from exponent and midpoint by one division (it is kept within 0 and 1), so these
    two are searched: on a grid in their logarithms, then on finer ones around the best point of each row.
    """
    log_compute, start = np.log(np.asarray(compute, dtype=np.float64)), np.asarray(base, dtype=np.float64)
    gains = np.asarray(scores) - start[:, None]
    bounds = np.array([_EXPONENTS, (_MIDPOINTS[0] + log_compute.min(), _MIDPOINTS[1] + log_compute.max())])
    axes = [np.linspace(low, high, size) for (low, high), size in zip(bounds, _GRID, strict=True)]
    steps = np.array([axis[1] - axis[0] for axis in axes])
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
    rises = _rise(grid[:, :1], grid[:, 1:], log_compute)  # [G, P]
    _, errors = _amplitudes(gains @ rises.T, (rises**2).sum(axis=1), start)
    best = grid[errors.argmin(axis=1)]  # [R, 2]
    unit = np.stack(np.meshgrid(*2 * [np.linspace(-1, 1, _ZOOM)], indexing="ij"), axis=-1).reshape(-1, 2)
    for _ in range(_ZOOMS):
        near = np.clip(best[:, None] + unit * steps, bounds[:, 0], bounds[:, 1])  # [R, Z, 2]
        rises = _rise(near[..., :1], near[..., 1:], log_compute)  # [R, Z, P]
        amplitudes, errors = _amplitudes(np.einsum("rp,rzp->rz", gains, rises), (rises**2).sum(axis=-1), start)
        chosen = np.arange(len(best)), errors.argmin(axis=1)
        best, amplitude = near[chosen], amplitudes[chosen]
        steps = steps * 2.0 / (_ZOOM - 1)
    return Curves(start, start + amplitude, best[:, 0], best[:, 1])


def _amplitudes(products: FloatArray, squares: FloatArray, base: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The best gains A - R_0 [R, G], and the squared error they leave, up to a constant."""
    amplitudes = np.clip(products / squares, -base[:, None], 1.0 - base[:, None])
    return amplitudes, amplitudes**2 * squares - 2.0 * amplitudes * products


@dataclass(frozen=True)
class Course:
    """The runs of a method: ``compute`` [S, T], and ``accuracies`` [S, 1 + T, N], the first before training."""

    compute: FloatArray
    accuracies: FloatArray

    def curve(self) -> Curves:
        means = self.accuracies.mean(axis=2)
        return fit_curves(self.compute.ravel(), means[:, 1:].reshape(1, -1), means[:, :1].mean(axis=0))


def _features(compute: FloatArray, scores: FloatArray, target: float) -> FloatArray:
    """The features [R, 5] of scores [R, S, 1 + T] after compute [S, T].

    The last one is what the fit to the first half of the compute says of the second half, less what is seen there; NaN
    with too few points to fit.
    """
    base, points, flat = scores[:, :, 0].mean(axis=1), scores[:, :, 1:].reshape(len(scores), -1), compute.ravel()
    curves = fit_curves(flat, points, base)
    needed = np.clip(curves.log_compute(target), np.log(flat.min()) - _NEVER, np.log(flat.max()) + _NEVER)
    early = flat <= flat.max() / 2.0
    error = np.full(len(scores), np.nan)
    if early.sum() >= _LEAST_POINTS * len(compute):
        predicted = fit_curves(flat[early], points[:, early], base).scores(flat[~early])
        error = (predicted - points[:, ~early]).mean(axis=1)
    return np.stack([curves.ceiling, curves.log_exponent, curves.log_midpoint, needed, error], axis=1)


@dataclass(frozen=True)
class CourseEstimate:
    """The features [5] of a method's training runs, for problems drawn anew [R, 5], and without each seed [S, 5]."""

    values: FloatArray
    replicates: FloatArray
    without_seed: FloatArray

    @property
    def seed_variance(self) -> FloatArray:
        """The jackknife variance [5] that other seeds would cause; NaN with one seed."""
        seeds = len(self.without_seed)
        if seeds < 2:
            return np.full(len(self.values), np.nan)
        return np.asarray((seeds - 1) * self.without_seed.var(axis=0))

    def less(self, other: Self | None, problems: int) -> Difference:
        """The features with their variances, of so many problems, less those of another method with the same draws."""
        arms = [self] if other is None else [self, other]
        values, replicates = self.values, self.replicates
        if other is not None:
            values, replicates = values - other.values, replicates - other.replicates
        freedoms_of_seeds = [max(len(arm.without_seed) - 1, 1) for arm in arms]
        seed_variance, freedom = pooled([arm.seed_variance for arm in arms], freedoms_of_seeds)
        freedoms = np.full(len(values), problems - 1.0)
        return Difference(values, replicates.var(axis=0, ddof=1), freedoms, seed_variance, freedom)


def estimate_course(course: Course, draws: IntArray, target: float) -> CourseEstimate:
    """Estimate the features of a method; ``draws`` [R, N] are problems drawn anew, the same for every method.

    ``target`` is the score of ``log_compute``.
    """
    seeds, _, problems = course.accuracies.shape
    means = course.accuracies.mean(axis=2)
    replicates = np.moveaxis(course.accuracies @ draws.T, 2, 0) / problems  # [R, S, 1 + T]
    whole = _features(course.compute, means[None], target)[0]
    without = [
        _features(np.delete(course.compute, seed, 0), np.delete(means, seed, 0)[None], target)[0]
        for seed in range(seeds if seeds > 1 else 0)
    ]
    return CourseEstimate(whole, _features(course.compute, replicates, target), np.array(without or [whole]))
