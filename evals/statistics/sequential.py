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
from functools import cache, partial
from itertools import pairwise

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr

from evals.statistics.accuracy import FloatArray

_POINTS, _WEIGHTS = np.polynomial.legendre.leggauss(200)
_LARGEST_BOUND = 12.0


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
