"""The orders that studies give the same methods: Kendall's tau, what noise alone allows, and certain inversions.

Scores of a few seeds order methods that are equal by chance, so two studies of the same truth disagree. A correlation
between them says nothing without the one that a study would have with its own repetition, by other seeds. And only two
methods whose order is certain in both studies can be said to be inverted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt
from scipy.special import stdtr

from evals.statistics.accuracy import FloatArray
from evals.statistics.difference import pooled
from evals.statistics.resampling import holm
from evals.statistics.robust import percentile_interval


@dataclass(frozen=True)
class Means:
    """The mean scores [M] of a study's methods, their standard errors over seeds [M] and degrees of freedom [M]."""

    means: FloatArray
    errors: FloatArray
    freedoms: FloatArray

    @classmethod
    def of(cls, study: Sequence[npt.ArrayLike]) -> "Means":
        """Take the scores [S] of the seeds of each method, two or more."""
        values = [np.asarray(seeds, dtype=np.float64) for seeds in study]
        if min(map(len, values)) < 2:
            raise ValueError("a method has one seed; two or more needed")
        errors = [seeds.std(ddof=1) / np.sqrt(len(seeds)) for seeds in values]
        means, freedoms = [seeds.mean() for seeds in values], [len(seeds) - 1.0 for seeds in values]
        return cls(np.array(means), np.array(errors), np.array(freedoms))

    def pair(self, first: int, second: int) -> tuple[float, float]:
        """The difference of two methods as a t value, and its degrees of freedom (Welch); 0 without a spread."""
        rows = [first, second]
        variance, freedom = pooled([*(self.errors[rows] ** 2)], [*self.freedoms[rows]])
        difference = self.means[first] - self.means[second]
        return float(difference / np.sqrt(variance)) if variance > 0.0 else 0.0, float(freedom)


def kendall_tau(one: npt.ArrayLike, other: npt.ArrayLike) -> FloatArray:
    """Kendall's tau [...] of values [..., M]: the share of pairs in the same order less that of pairs in the other.

    A pair that is equal on a side counts as neither (tau-a; Kendall 1938, Biometrika 30).
    """
    signs = [np.sign(values[..., :, None] - values[..., None, :]) for values in (np.asarray(one), np.asarray(other))]
    count = signs[0].shape[-1]
    return np.asarray((signs[0] * signs[1]).sum(axis=(-2, -1)) / (count * (count - 1)))


def tau_interval(
    one: Means, other: Means, generator: np.random.Generator, draws: int, level: float
) -> tuple[float, float]:
    """The interval of the tau that two studies without noise would have.

    Of each study the true means are drawn: a mean plus its standard error times Student's t of its seeds. They are
    further apart than the truth, so that the interval lies low where methods are nearly equal.
    """
    drawn = [
        study.means + study.errors * generator.standard_t(study.freedoms, size=(draws, len(study.means)))
        for study in (one, other)
    ]
    low, high = percentile_interval(kendall_tau(*drawn), level)
    return float(low), float(high)


def repeated_tau(study: Means, generator: np.random.Generator, draws: int) -> tuple[float, float]:
    """The tau of a study with its own repetition by other seeds: the median, and what 95 % of repetitions exceed."""
    again = study.means + study.errors * generator.standard_normal((draws, len(study.means)))
    median, least = np.quantile(kendall_tau(study.means, again), [0.5, 0.05])
    return float(median), float(least)


def inversions(studies: Sequence[Means]) -> dict[tuple[int, int, int, int], float]:
    """The p-value of every inversion, corrected over all (Holm): (study, study, method, method) -> p-value.

    Methods that have one order in a study and the other in another are inverted if both differences are certain. The
    larger of their two-sided p-values holds the level whatever the truth is (an intersection-union test; Berger 1982,
    Technometrics 24). Methods in the same order have 1.
    """
    p_values = {}
    for one, other in combinations(range(len(studies)), 2):
        for first, second in combinations(range(len(studies[one].means)), 2):
            tests = [studies[study].pair(first, second) for study in (one, other)]
            is_inverted = tests[0][0] * tests[1][0] < 0.0
            larger = max(float(2.0 * stdtr(freedom, -abs(value))) for value, freedom in tests)
            p_values[one, other, first, second] = larger if is_inverted else 1.0
    return dict(zip(p_values, holm([*p_values.values()]).tolist(), strict=True))
