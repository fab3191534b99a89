"""The power of comparisons: detectable differences, and the problems or samples that a difference needs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
from scipy.special import chdtri, ndtr

from evals.statistics.accuracy import FloatArray
from evals.statistics.difference import Difference, pooled

MOST = 10_000_000  # beyond this many problems or samples the answer is: none suffices


_DRAWS = (0.5 + np.outer(np.arange(1, 4097), 1.1347241384015194 ** -np.arange(1.0, 6.0))) % 1.0
"""Evenly spread points [4096, 5] in the unit cube (Roberts's sequence): the same on every machine."""


def minimum_detectable_effect(
    difference: Difference, alpha: float = 0.05, power: float = 0.8, *, planned: bool = False
) -> FloatArray:
    """Smallest true difference [...] that a two-sided test at ``alpha`` finds in a part ``power`` of new studies.

    A new study estimates its variances anew: its statistic is noncentral t, or what that is with the critical value of
    two parts. If the variances of ``difference`` are ``planned``, they are the true ones. Otherwise they are estimates
    too, and the power is the mean over the true ones that they leave possible, by the chi-squared distribution of
    such estimates; methods whose seeds vary count as varying alike. With many degrees of freedom both are 2.8 standard
    errors, with two of the seeds alone 5.7 and 8.8. It is for one comparison; Holm over M benchmarks asks for more, at
    worst what ``alpha / M`` gives.
    """
    arms = difference.arms or ((difference.seed_variance, difference.seed_freedom),)
    variances, freedoms = zip((difference.problem_variance, difference.problem_freedom), *arms, strict=True)
    shape = np.broadcast_shapes(*map(np.shape, variances))
    columns = (np.broadcast_to(part, shape).ravel() for part in (*variances, *freedoms))
    effects = [
        _detectable(np.array(row[: len(variances)]), np.array(row[len(variances) :]), alpha, power, planned)
        for row in zip(*columns, strict=True)
    ]
    return np.asarray(effects).reshape(shape)


def _detectable(variances: FloatArray, freedoms: FloatArray, alpha: float, power: float, planned: bool) -> float:
    """The effect for the variances [1 + A] of the problems and of each method's seeds; NaN where one is.

    ``freedoms`` [1 + A] are those of their estimates.
    """
    total = float(variances.sum())
    if not total > 0.0:
        return total
    varying = variances[1:] > 0.0
    of_seeds = freedoms[1:][varying]
    true = np.tile([variances[0], variances[1:].sum()], (len(_DRAWS), 1))
    if not planned:
        freedom = np.array([freedoms[0], max(of_seeds.sum(), 1.0)])
        true /= chdtri(freedom, _DRAWS[:, :2]) / freedom
    shares = 1.0 / (of_seeds + 1.0)
    parts = np.column_stack([true[:, :1], true[:, 1:] * shares / max(shares.sum(), 1e-300)])
    freedom = np.append(freedoms[:1], of_seeds)
    problems, *arms = (parts * chdtri(freedom, _DRAWS[:, 2 : 2 + len(freedom)]) / freedom).T
    nothing = np.zeros(len(_DRAWS))
    study = Difference(nothing, problems, freedom[0], *pooled(arms or [nothing], of_seeds.tolist() or [1.0]))
    error = np.sqrt(true.sum(axis=1))
    reach = study.critical_value(alpha / 2.0) * study.standard_error / error
    low, high = 0.0, float(np.sqrt(total))
    while ndtr(high / error - reach).mean() < power:
        high *= 2.0
    for _ in range(40):
        middle = (low + high) / 2.0
        low, high = (middle, high) if ndtr(middle / error - reach).mean() < power else (low, middle)
    return high


@dataclass(frozen=True)
class Design:
    """The variances that a paired comparison of two methods meets."""

    effect_sd: float  # standard deviation over problems of the true per-problem difference
    sampling_variance: float  # mean over problems of p (1 - p), summed over the two methods: the variance of one sample
    seed_sd: float = 0.0  # standard deviation of a method's mean accuracy over training seeds
    seeds: int = 0  # training seeds of each method; 0 compares two given policies

    def __post_init__(self) -> None:
        if min(self.effect_sd, self.sampling_variance, self.seed_sd, self.seeds) < 0:
            raise ValueError(f"variances and seeds must not be negative: {self}")
        if self.seeds == 1:
            raise ValueError("one seed says nothing about a method: give 0 (two given policies) or at least 2")

    @classmethod
    def from_accuracies(
        cls, treatment: npt.ArrayLike, control: npt.ArrayLike, samples: int, seed_sd: float = 0.0, seeds: int = 0
    ) -> Self:
        """Estimate the variances from a pilot: two policies' per-problem accuracies [N] from ``samples`` each."""
        if samples < 2:  # one cannot tell sampling noise from difficulty
            raise ValueError("a pilot needs at least two samples per problem")
        a, b = np.asarray(treatment, dtype=np.float64), np.asarray(control, dtype=np.float64)
        unbiased = samples / (samples - 1)
        sampling_variance = float(unbiased * (a * (1.0 - a) + b * (1.0 - b)).mean())
        effect_variance = float((a - b).var(ddof=1)) - sampling_variance / samples
        return cls(float(np.sqrt(max(effect_variance, 0.0))), sampling_variance, seed_sd, seeds)

    def expected_difference(self, problems: int, samples: int) -> Difference:
        """The variances to expect with N ``problems`` and k ``samples`` each, as a :class:`Difference` around 0."""
        if problems < 2 or samples < 1:
            raise ValueError(f"needs at least 2 problems and 1 sample, got {problems} and {samples}")
        # With seeds every policy draws its own samples, and that noise enters both parts: of one sample it cannot be
        # estimated and stays in both, as in the comparison's variance.
        noise = self.sampling_variance / (samples * problems * max(self.seeds, 1))
        problem_variance = self.effect_sd**2 / problems + (0.0 if self.seeds and samples > 1 else noise)
        seed_variance = 2.0 * self.seed_sd**2 / self.seeds + noise if self.seeds else 0.0
        parts = (0.0, problem_variance, problems - 1.0, seed_variance, max(2.0 * (self.seeds - 1), 1.0))
        estimate, problem, problem_freedom, seed, seed_freedom = map(np.asarray, parts)
        arm = seed / 2.0, max(self.seeds - 1, 1)
        return Difference(estimate, problem, problem_freedom, seed, seed_freedom, arms=(arm, arm))


def problems_needed(design: Design, effect: float, samples: int, alpha: float = 0.05, power: float = 0.8) -> int | None:
    """Fewest problems with which ``effect`` is detectable; None where no number suffices, for the seeds are too few."""
    return _fewest(2, lambda problems: design.expected_difference(problems, samples), effect, alpha, power)


def samples_needed(design: Design, effect: float, problems: int, alpha: float = 0.05, power: float = 0.8) -> int | None:
    """Fewest samples per problem with which ``effect`` is detectable; None where the problems or seeds are too few."""
    return _fewest(1, lambda samples: design.expected_difference(problems, samples), effect, alpha, power)


def _fewest(least: int, expected: Callable[[int], Difference], effect: float, alpha: float, power: float) -> int | None:
    """Smallest number from ``least`` on with which ``effect`` is detectable, by doubling and bisection."""
    if effect <= 0.0:
        raise ValueError(f"the effect to detect must be positive, got {effect}")

    def detects(number: int) -> bool:
        return bool(minimum_detectable_effect(expected(number), alpha, power, planned=True) <= effect)

    high = least
    while not detects(high):
        if high >= MOST:
            return None
        high *= 2
    low = max(least, high // 2)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if detects(middle) else (middle + 1, high)
    return high
