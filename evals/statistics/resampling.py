"""Bootstrap and sign-flip permutation by problem, and Holm's correction for several hypotheses."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from numpy.random import Generator

from evals.statistics.accuracy import FloatArray, IntArray
from evals.statistics.difference import Arm
from evals.statistics.suite import ALIKE, Clusters, Suite

EXACT_PROBLEMS = 20  # up to this many problems all sign flips are enumerated
_FLIPS_AT_ONCE = 2_000


def draw_problems(problems: int, generator: Generator, resamples: int, clusters: Clusters = None) -> IntArray:
    """Draw problems with replacement: their counts in each bootstrap replicate [resamples, N]; rows sum to N.

    Of problems in ``clusters`` as many clusters are drawn as there are, each as a whole; rows then sum to about N.
    """
    units = problems if clusters is None else int(clusters.max()) + 1
    drawn = generator.multinomial(units, np.full(units, 1.0 / units), size=resamples)
    return drawn if clusters is None else drawn[:, clusters]


def bootstrap_differences(
    treatment: Arm,
    control: Arm,
    draws: Sequence[IntArray],
    generator: Generator,
    suite: Suite = ALIKE,
    samples: Sequence[int] | None = None,
) -> FloatArray:
    """Bootstrap distribution [R] of the difference of two methods, stratified by benchmark.

    Seeds are drawn first, among those of each base model, once for all benchmarks and for each method on its own; then
    problems within each benchmark, the same ones for both methods; then, if ``samples`` is given, each policy's samples
    within each problem drawn. With S seeds the spread of their share comes out too small by sqrt((S - 1) / S): use it
    beside :class:`~evals.statistics.difference.Difference`, not instead of it.

    ``draws`` are for each benchmark the problems drawn [R, N], from :func:`draw_problems`.
    """
    resamples = len(draws[0])
    total = np.zeros(resamples)
    relative, counts = suite.relative(len(draws)), [None] * len(draws) if samples is None else samples
    for sign, arm in ((1.0, treatment), (-1.0, control)):
        of_seeds = np.empty((resamples, arm.strata[0].shape[0]))
        for mask in arm.masks:
            seeds = of_seeds[0, mask].size
            alike = np.full(seeds, 1.0 / seeds)
            drawn = alike if arm.is_fixed else generator.multinomial(seeds, alike, size=resamples) / seeds
            of_seeds[:, mask] = drawn / len(arm.masks)
        for weight, values, problems, count in zip(relative, arm.strata, draws, counts, strict=True):
            total += sign * weight * (of_seeds * _resampled_means(values, problems, generator, count)).sum(axis=1)
    return total / sum(relative)


def _resampled_means(accuracies: FloatArray, drawn: IntArray, generator: Generator, samples: int | None) -> FloatArray:
    """Mean accuracy of each seed in each replicate [R, S], for accuracies [S, N] and drawn problems [R, N]."""
    if samples is None:
        return np.asarray(drawn @ accuracies.T / drawn.sum(axis=1, keepdims=True))
    # A problem drawn c times is answered by c independent sets of resampled samples.
    totals = [generator.binomial(samples * drawn, seed).sum(axis=1) for seed in accuracies]
    return np.asarray(np.stack(totals, axis=1) / (samples * drawn.sum(axis=1, keepdims=True)))


def choice_variance(
    held_out: npt.ArrayLike, means: npt.ArrayLike, generator: Generator, resamples: int = 2_000
) -> float:
    """The variance of the mean [K] that is chosen, by the best of the scores ``held_out`` [K, S, N] on other problems.

    Seeds and problems are drawn anew, and choose each time; of equals the first.
    """
    values = np.asarray(held_out, dtype=np.float64)
    draws = (generator.multinomial(size, np.full(size, 1.0 / size), size=resamples) for size in values.shape[1:])
    scores = np.einsum("rs,ksn,rn->rk", next(draws), values, next(draws), optimize=True)
    return float(np.asarray(means)[scores.argmax(axis=1)].var())


def sign_flip_p_values(contributions: npt.ArrayLike, generator: Generator, permutations: int) -> FloatArray:
    """Two-sided p-values [...] of sign-flip permutation by problem.

    If the two methods are exchangeable within a problem, the sign of each problem's difference is a coin toss. The
    statistic is the absolute sum. Entries with up to :data:`EXACT_PROBLEMS` problems that differ are enumerated; the
    others share ``permutations`` random assignments and get ``(1 + hits) / (1 + permutations)`` (Phipson and Smyth
    2010, Statistical Applications in Genetics and Molecular Biology 9), so that no p-value is 0.

    ``contributions``: each problem's difference times its weight in the mean [..., N].
    """
    values = np.asarray(contributions, dtype=np.float64)
    flat = values.reshape(-1, values.shape[-1])
    exact = np.count_nonzero(flat, axis=1) <= EXACT_PROBLEMS
    p_values = np.empty(len(flat))
    p_values[exact] = [_exact_p_value(row[row != 0.0]) for row in flat[exact]]
    if not exact.all():
        p_values[~exact] = _monte_carlo_p_values(flat[~exact], generator, permutations)
    return np.asarray(p_values.reshape(values.shape[:-1]))


def _threshold(contributions: FloatArray) -> FloatArray:
    """The least flipped sum that counts: ties count, and rounding must not hide them."""
    return np.asarray(np.abs(contributions.sum(axis=-1)) - 1e-9 * np.abs(contributions).sum(axis=-1))


def _exact_p_value(contributions: FloatArray) -> float:
    """Share of all sign assignments [N] whose absolute sum is as large; half of them suffice, by symmetry."""
    sums = contributions[:1].copy() if len(contributions) else np.zeros(1)
    for contribution in contributions[1:]:
        sums = np.concatenate([sums + contribution, sums - contribution])
    return float(np.mean(np.abs(sums) >= _threshold(contributions)))


def _monte_carlo_p_values(contributions: FloatArray, generator: Generator, permutations: int) -> FloatArray:
    """p-values from random sign assignments, common to all rows [M, N]."""
    threshold = _threshold(contributions)
    hits = np.zeros(len(contributions))
    for start in range(0, permutations, _FLIPS_AT_ONCE):
        rows = min(_FLIPS_AT_ONCE, permutations - start)
        bits = generator.integers(2, size=(rows, contributions.shape[1]), dtype=np.int8)
        # Flipping the ones among the bits takes their contributions away twice.
        sums = contributions.sum(axis=1) - 2.0 * (bits.astype(np.float64) @ contributions.T)
        hits += (np.abs(sums) >= threshold).sum(axis=0)
    return np.asarray((1 + hits) / (1 + permutations))


def holm(p_values: npt.ArrayLike) -> FloatArray:
    """Holm's adjusted p-values [..., M], in the order given, along the last axis.

    ``max over l <= j of min(1, (M - l + 1) p_(l))`` for the j-th smallest (Holm 1979, Scandinavian Journal of
    Statistics 6). Rejecting where the adjusted value is at most alpha keeps the chance of any false rejection at
    alpha, whatever the dependence between the tests.
    """
    values = np.asarray(p_values, dtype=np.float64)
    if not ((values >= 0.0) & (values <= 1.0)).all():
        raise ValueError("p-values must lie in [0, 1]")
    order = np.argsort(values)  # ties get the same value in any order
    factors = np.arange(values.shape[-1], 0, -1)
    ascending = np.minimum(1.0, factors * np.take_along_axis(values, order, axis=-1))
    adjusted = np.empty_like(values)
    np.put_along_axis(adjusted, order, np.maximum.accumulate(ascending, axis=-1), axis=-1)
    return adjusted


def holm_of_known(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's adjusted p-values in the order given, corrected over those that are known."""
    adjusted = iter(holm([value for value in p_values if value is not None]).tolist())
    return [None if value is None else next(adjusted) for value in p_values]
