"""Comparisons that are looked at more than once: the level of each look, and intervals that hold at all of them.

A study that is looked at after 4, 6, 8 ... seeds, and stops as soon as its interval excludes 0, rejects a true null far
more often than one look does. Here the error is spent over the looks by a function of the share of the seeds that is
there (Lan and DeMets 1983, Biometrika 70), the one that is near to Pocock's constant bound, so that large differences
end early. A look's nominal level depends on this look and those before it alone, so later looks may be left out.

The levels are found by the recursive integration of Armitage, McPherson and Rowe (1969): with independent seeds the
sum of the differences is a random walk. The intervals at a look are those of any comparison (``difference.py``), at the
confidence of its nominal level: repeated confidence intervals (Jennison and Turnbull 1989). All of them hold together
with the probability that the comparison was given, whatever rule ends the study. The uncertainty of the problems, which
all looks share, makes the looks more alike than independent seeds do, and so errs on the safe side.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from typing import Self

import numpy as np
import numpy.typing as npt
from numpy.random import Generator
from scipy.optimize import brentq
from scipy.special import ndtr

from evals.statistics.accuracy import FloatArray
from evals.statistics.difference import Difference, pooled

_POINTS, _WEIGHTS = np.polynomial.legendre.leggauss(200)
_LARGEST_BOUND = 12.0
_REPETITIONS = 4000


def spent(share: float, level: float) -> float:
    """The part of ``level`` that is spent when a ``share`` of the seeds is there: level ln(1 + (e - 1) share)."""
    return level * float(np.log1p(np.expm1(1.0) * share))


@cache
def nominal_levels(looks: Sequence[int], at_most: int, level: float) -> tuple[float, ...]:
    """The two-sided level of each look, after so many seeds of ``at_most``: together they err in ``level``.

    With a true difference of 0 the probability that any look's interval excludes 0 is what is spent by the last look.
    """
    shares = [look / at_most for look in looks]
    levels: list[float] = []
    points, density = np.zeros(1), np.ones(1)  # of the sum's distribution among the studies that go on
    for before, share in pairwise([0.0, *shares]):
        target = spent(share, level) - spent(before, level)
        step = np.sqrt(share - before)

        excess = partial(_excess, target, points, density, step, float(np.sqrt(share)))
        bound = float(brentq(excess, 0.0, _LARGEST_BOUND, xtol=1e-12))
        levels.append(2.0 * float(ndtr(-bound)))
        edge = bound * np.sqrt(share)
        inner = edge * _POINTS
        kernel = np.exp(-0.5 * ((inner[:, None] - points[None, :]) / step) ** 2) / (step * np.sqrt(2.0 * np.pi))
        points, density = inner, edge * _WEIGHTS * (kernel @ density)
    return tuple(levels)


def _excess(target: float, points: FloatArray, density: FloatArray, step: float, root: float, bound: float) -> float:
    """The probability that a study that went on is beyond the bound now, less the ``target``."""
    beyond = ndtr((points - bound * root) / step) + ndtr((-points - bound * root) / step)
    return float(density @ beyond) - target


@dataclass(frozen=True)
class StoppingRule:
    """The rule by which a study ends a comparison: its looks, the level of each, and the margin of equivalence."""

    looks: Sequence[int]
    levels: Sequence[float]
    margin: float
    level: float = 0.05  # of all comparisons of the study together


@dataclass(frozen=True)
class Repetitions:
    """A comparison repeated with other seeds and problems, under its study's own rule: R times at L looks.

    The true variances are unknown: each repetition has those that the estimates leave possible, as in ``power.py``.
    """

    error: FloatArray  # [R, L] of the estimate at each look, both methods with as many seeds
    reach: FloatArray  # [R, L] of the interval at each look, to either side
    final_error: FloatArray  # [R, L] of the estimate of a study that ended at the look, with all seeds of the reference
    margin: float

    @classmethod
    def draw(
        cls,
        difference: Difference,
        seeds: tuple[int, int],
        rule: StoppingRule,
        of_method: Generator,
        of_reference: Generator,
    ) -> Self:
        """Repeat the comparison of ``difference``, which has so many ``seeds`` of the method and of the reference."""
        freedom, counts = float(difference.problem_freedom), np.array(rule.looks, dtype=np.float64)
        freedoms_at_look = counts - difference.bases  # seed s starts from base model (s - 1) mod bases + 1
        freedoms = sum(float(of_arm) for _, of_arm in difference.arms), freedom, freedom
        of_seeds, of_problems, again = (of_method.chisquare(df, (_REPETITIONS, 1)) / df for df in freedoms)
        problems = float(difference.problem_variance) / of_problems
        error = np.sqrt(problems) * of_method.standard_normal((_REPETITIONS, 1))
        final, variances = error, list[FloatArray]()
        arms = zip((1.0, -1.0), (of_method, of_reference), seeds, difference.arms, strict=True)
        for sign, generator, number, (variance, _) in arms:
            drawn = generator.standard_normal((_REPETITIONS, max(rule.looks[-1], *seeds)))
            drawn *= np.sqrt(float(variance) * number / of_seeds)
            sums, around = np.zeros(()), np.zeros(())
            for base in range(difference.bases):
                of_base = np.arange(drawn.shape[1]) % difference.bases == base
                alone, squares, seen = (
                    values.cumsum(axis=-1)[..., np.array(rule.looks) - 1]
                    for values in (drawn * of_base, (drawn * of_base) ** 2, of_base)
                )
                sums, around = sums + alone, around + squares - alone**2 / seen
            with np.errstate(divide="ignore", invalid="ignore"):  # a seed of each base model does not decide
                variances.append(around / freedoms_at_look / counts)
            error = error + sign * sums / counts
            ends_later = sign < 0.0 and seeds[1] > seeds[0]
            final = final + sign * (drawn[:, :number].mean(axis=1, keepdims=True) if ends_later else sums / counts)
        variance, seed_freedom = pooled(variances, (freedoms_at_look[None], freedoms_at_look[None]))
        seed_freedom[:, 0] = np.minimum(seed_freedom[:, 0], freedoms_at_look[0])  # the rule of the first look
        study = Difference(error, problems * again, difference.problem_freedom, variance, seed_freedom)
        return cls(error, study.critical_value(np.array(rule.levels) / 2.0) * study.standard_error, final, rule.margin)

    def end(self, effect: float) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_], FloatArray]:
        """End every repetition where ``effect`` is true: found better, not decided, and its estimate at the end [R]."""
        low, high = effect + self.error - self.reach, effect + self.error + self.reach
        equivalent = (low > -self.margin) & (high < self.margin)
        decided = equivalent | (low > 0.0) | (high < 0.0)
        is_open = ~decided.any(axis=1)
        last = np.arange(len(low)), np.where(is_open, low.shape[1] - 1, decided.argmax(axis=1))
        is_better = (~equivalent & (low > 0.0))[last]
        return is_better, np.asarray(is_open), effect + self.final_error[last]

    def detectable(self, power: float = 0.8) -> float:
        """The smallest true difference that the study finds, as better or as worse, in a part ``power`` of them."""
        high = float(np.nanmax(self.reach))
        return float(brentq(lambda effect: self.end(effect)[0].mean() - power, 0.0, 2.0 * high, xtol=1e-5))

    def median_unbiased(self, estimate: float) -> float:
        """The true difference with which half of the repetitions end above an ``estimate``."""
        width = float(np.nanmax(self.reach))
        ends = estimate - width, estimate + width
        return float(brentq(lambda effect: np.median(self.end(effect)[2]) - estimate, *ends, xtol=1e-5))
