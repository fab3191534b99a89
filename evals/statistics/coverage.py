"""The coverage of intervals, measured on simulated benchmarks whose true accuracy is known.

Problems are drawn anew from a population for every simulated benchmark, and every problem is answered by independent
samples: what an interval over problems promises to cover.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import expit, ndtri

from evals.core.errors import UserError
from evals.statistics import interval

Counts = npt.NDArray[np.int64]
Intervals = Callable[[Counts, int], interval.Ends]
INTERVALS: dict[str, Intervals] = {
    "ours": interval.score_intervals,
    "t": lambda counts, samples: interval.t_interval(counts / samples),
    "Wilson": lambda counts, samples: interval.wilson_interval(counts / samples, samples),
    "Hall": lambda counts, samples: interval.hall_interval(counts / samples),
}
_BAND = (0.93, 0.97)


@dataclass(frozen=True)
class Population:
    """A population that the problems of a benchmark are drawn from.

    ``beta``: Beta(m c, (1 - m) c) with concentration c, from all or nothing (0.1) to equally hard (1e6); ``normal``:
    normal logits with standard deviation s; ``two``: half of the problems at m + d, half at m - d, with
    d = s min(m, 1 - m); ``impossible``: a part of the problems is never solved, the others at level s.
    """

    family: str
    spread: float  # c or s
    accuracy: float  # the mean m, which an interval is to cover

    def draw(self, problems: int, samples: int, benchmarks: int, generator: np.random.Generator) -> Counts:
        """Counts of correct samples [benchmarks, problems]."""
        mean, spread, shape = self.accuracy, self.spread, (benchmarks, problems)
        if self.family == "beta":
            accuracies = generator.beta(mean * spread, (1.0 - mean) * spread, shape)
        elif self.family == "normal":
            grid = ndtri((np.arange(20_000) + 0.5) / 20_000)
            centre = brentq(lambda logit: expit(logit + spread * grid).mean() - mean, -60.0, 60.0)
            accuracies = expit(float(centre) + spread * generator.normal(size=shape))
        elif self.family == "two":
            distance = spread * min(mean, 1.0 - mean)
            accuracies = mean + distance * generator.choice([-1.0, 1.0], shape)
        elif self.family == "impossible":
            accuracies = np.where(generator.random(shape) < mean / spread, spread, 0.0)
        else:
            raise ValueError(f"family is {self.family!r}; accepted: beta, normal, two, impossible")
        return generator.binomial(samples, accuracies)


@dataclass(frozen=True)
class Coverage:
    """The share of benchmarks that got an interval, and of these the share that covers the truth, NaN of none."""

    given: float
    covered: float


def measure_coverage(
    population: Population,
    intervals: Intervals = interval.score_intervals,
    *,
    problems: int = 30,
    samples: int = 32,
    benchmarks: int = 10_000,
    seed: int = 0,
) -> Coverage:
    """Simulate benchmarks and count how often the interval covers; the same seed gives the same benchmarks."""
    key = [seed, round(1e4 * population.accuracy), round(100 * population.spread), *population.family.encode()]
    counts = population.draw(problems, samples, benchmarks, np.random.default_rng(key))
    low, high = intervals(counts, samples)
    known = ~(np.isnan(low) | np.isnan(high))
    covered = ((low <= population.accuracy) & (population.accuracy <= high))[known]
    return Coverage(float(known.mean()), float(covered.mean()) if known.any() else np.nan)


def populations() -> list[Population]:
    """The populations that the documented coverage is measured on."""
    means = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995)
    families = {
        "beta": ((0.1, 0.3, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 50.0, 1e6), means),
        "normal": ((0.5, 1.0, 1.5, 2.0, 3.0, 4.0), means),
        "two": ((0.3, 0.7, 1.0), means),
        "impossible": ((0.5,), (0.02, 0.05, 0.1, 0.2, 0.3, 0.45)),
    }
    return [
        Population(family, spread, mean)
        for family, (spreads, accuracies) in families.items()
        for spread in spreads
        for mean in accuracies
    ]


def coverage_table(
    problems: int = 30, samples: int = 32, benchmarks: int = 10_000, seed: int = 0, least_given: float = 0.1
) -> Iterator[str]:
    """Simulate benchmarks of known accuracy, and count how often 95 % intervals cover it.

    Prints a Markdown table: how often a score gets an interval, and how often it covers the true accuracy, in per cent,
    over populations of problems from all or nothing to equally hard.

    Args:
        problems: problems of a benchmark.
        samples: samples of a problem.
        benchmarks: simulated ones each.
        seed: of the random numbers.
        least_given: leave out populations in which fewer of the scores than this get an interval.
    """
    least = {"problems": interval.MINIMUM_INFORMATIVE_PROBLEMS, "samples": 1, "benchmarks": 100, "seed": 0}
    given = {"problems": problems, "samples": samples, "benchmarks": benchmarks, "seed": seed}
    for name, value in given.items():
        if value < least[name]:
            raise UserError(f"--{name}: is {value}; accepted: {least[name]} or more")
    yield f"| population | accuracy | given | {' | '.join(INTERVALS)} |"
    yield "|---|---|---|" + "---|" * len(INTERVALS)
    ours = []
    for population in populations():
        measured = {name: measure_coverage(population, intervals, **given) for name, intervals in INTERVALS.items()}
        if measured["ours"].given < least_given:
            continue
        ours.append(measured["ours"].covered)
        spread = "∞" if population.spread >= 1e6 else f"{population.spread:g}"
        cells = [f"{100 * each.covered:.1f}" if each.given else "–" for each in measured.values()]
        if measured["ours"].given and not _BAND[0] <= ours[-1] <= _BAND[1]:
            cells[0] = f"**{cells[0]}**"
        share = f"{100 * measured['ours'].given:.0f} %"
        yield f"| {population.family} {spread} | {population.accuracy:g} | {share} | {' | '.join(cells)} |"
    if not ours:
        raise UserError("--least-given: no population has so many intervals")
    inside = sum(_BAND[0] <= covered <= _BAND[1] for covered in ours)
    covers = f"ours covers {100 * min(ours):.1f} to {100 * max(ours):.1f} %"
    yield f"\n{len(ours)} populations: {covers}, {inside} of them within 93 to 97 %"
