"""The orders that studies give the same methods: Kendall's tau, what noise alone allows, and certain inversions.

Scores of a few seeds order methods that are equal by chance, so two studies of the same truth disagree. A correlation
between them says nothing without the one that a study would have with its own repetition, by other seeds. And only two
methods whose order is certain in both studies can be said to be inverted. Decision accuracy is tau in other units: the
share of pairs of methods that a small study orders as another one does.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt
from numpy.random import Generator

from evals.statistics.accuracy import FloatArray
from evals.statistics.difference import Arm, Bases, Difference
from evals.statistics.power import minimum_detectable_effect
from evals.statistics.resampling import holm

_PARTS = ("estimate", "problem_variance", "problem_freedom", "seed_variance", "seed_freedom")
"""The fields of a difference that its p-value is of."""


@dataclass(frozen=True)
class Means:
    """The mean scores [M] of a study's methods, their standard errors over seeds [M] and degrees of freedom [M].

    A mean varies as that of so many ``seeds`` [M]: fewer than there are, where base models have unlike numbers of them.
    """

    means: FloatArray
    errors: FloatArray
    freedoms: FloatArray
    seeds: FloatArray

    @classmethod
    def of(cls, study: Sequence[npt.ArrayLike], bases: Sequence[Bases] | None = None) -> "Means":
        """Take the scores [S] of the seeds of each method, two or more, and the ``bases`` that they started from.

        Base models have the same weight, and seeds vary around the mean of their own, one at least of which has two.
        """
        of_methods = []
        for scores, of in zip(study, bases or [None] * len(study), strict=True):
            arm = Arm([np.reshape(scores, (-1, 1))], bases=of)  # its one problem is the mean over benchmarks
            variance, freedom = arm.seed_variance(arm.strata[0][:, 0])
            if np.isnan(variance):
                raise ValueError("a method has one seed of each base model; two or more needed")
            sizes = [1.0 / arm.strata[0][mask].size for mask in arm.masks]
            of_methods.append((arm.means[0][0], np.sqrt(variance), freedom, len(sizes) ** 2 / sum(sizes)))
        return cls(*np.array(of_methods, dtype=np.float64).T)


def kendall_tau(one: npt.ArrayLike, other: npt.ArrayLike) -> FloatArray:
    """Kendall's tau [...] of values [..., M]: the share of pairs in the same order less that of pairs in the other.

    A pair that is equal on a side counts as neither (tau-a; Kendall 1938, Biometrika 30).
    """
    signs = [np.sign(values[..., :, None] - values[..., None, :]) for values in (np.asarray(one), np.asarray(other))]
    count = signs[0].shape[-1]
    return np.asarray((signs[0] * signs[1]).sum(axis=(-2, -1)) / (count * (count - 1)))


def repeated_tau(study: Means, generator: Generator, draws: int) -> tuple[float, float]:
    """The tau of a study with its own repetition by other seeds: the median, and what 95 % of repetitions exceed.

    Both have noise, the study that is at hand and its repetition: either's means are drawn, with Student's t.
    """
    noise = generator.standard_t(study.freedoms, size=(2, draws, len(study.means)))
    median, least = np.quantile(kendall_tau(*(study.means + study.errors * noise)), [0.5, 0.05])
    return float(median), float(least)


def decision_accuracy(
    study: Means, others: Sequence[Means], generator: Generator, draws: int
) -> tuple[float, tuple[float, float]]:
    """The share of pairs of methods that the other studies order as the study does, and what repetitions would find.

    A mean over the other studies (arXiv 2504.11393); a pair that is equal on a side counts as half. For the interval
    the means of every study are drawn, with Student's t: 95 % of repetitions of all of them lie in it. It is no
    confidence interval of the share of the true orders. It counts the noise twice, which is in the means already, and
    lies below that share where methods are nearly equal.
    """

    def share(means: FloatArray, of_others: Sequence[FloatArray]) -> FloatArray:
        return np.asarray(np.mean([(1.0 + kendall_tau(means, other)) / 2.0 for other in of_others], axis=0))

    def drawn(of: Means) -> FloatArray:
        return of.means + of.errors * generator.standard_t(of.freedoms, size=(draws, len(of.means)))

    low, high = np.quantile(share(drawn(study), [drawn(other) for other in others]), [0.025, 0.975])
    return float(share(study.means, [other.means for other in others])), (float(low), float(high))


def signal_to_noise(study: Means) -> float:
    """The largest difference between methods' means over the standard deviation between seeds, pooled over methods.

    After arXiv 2508.13144, whose noise is that of a run's last checkpoints; here it is that of other seeds. Without
    noise it is infinite, and NaN where the means are equal, too.
    """
    noise = math.sqrt(float(np.average(study.errors**2 * study.seeds, weights=study.freedoms)))
    signal = float(np.ptp(study.means))
    return signal / noise if noise else math.inf if signal else math.nan


def signal_of_equal_methods(study: Means, generator: Generator, draws: int) -> float:
    """The signal to noise that as many equal methods with as many seeds would have, the median of so many draws."""
    freedom = study.freedoms.sum()
    signals = np.ptp(generator.standard_normal((draws, len(study.means))) / np.sqrt(study.seeds), axis=1)
    return float(np.median(signals / np.sqrt(generator.chisquare(freedom, draws) / freedom)))


def inversions(studies: Sequence[Sequence[Difference]]) -> dict[tuple[int, int, int], float]:
    """The p-value of every inversion, corrected over all (Holm): (study, study, pair of methods) -> p-value.

    Every study has the differences of the same pairs, over problems and seeds. Methods that have one order in a study
    and the other in another are inverted if both differences are certain. The larger of their two-sided p-values holds
    the level whatever the truth is (an intersection-union test; Berger 1982, Technometrics 24). Methods in the same
    order have 1.
    """
    stacked = [Difference(*(np.array([getattr(pair, part) for pair in study]) for part in _PARTS)) for study in studies]
    known, larger = [study.p_values() for study in stacked], {}
    for one, other in combinations(range(len(studies)), 2):
        is_inverted = stacked[one].estimate * stacked[other].estimate < 0.0
        for pair, p_value in enumerate(np.where(is_inverted, np.maximum(known[one], known[other]), 1.0)):
            larger[one, other, pair] = float(p_value)
    return dict(zip(larger, holm([*larger.values()]).tolist(), strict=True))


def smallest_inversion(one: Difference, other: Difference, tests: int, alpha: float = 0.05) -> float:
    """The difference, one way in a study and the other way in another, that four of five such pairs of studies find.

    Both have to be certain at the level of the first of so many ``tests`` (Holm).
    """
    power = math.sqrt(0.8)  # each of the two
    return max(float(minimum_detectable_effect(pair, alpha / tests, power)) for pair in (one, other))
