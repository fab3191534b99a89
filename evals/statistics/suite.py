"""The benchmarks of a mean: the weight of each, and clusters of problems that are near copies of one another.

Members of a cluster are no independent evidence. A benchmark's clusters are a label for each problem [N], 0 to G - 1;
None where every problem is one of its own.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evals.core.errors import InvalidInput
from evals.core.records import Weighting
from evals.statistics.accuracy import FloatArray, IntArray

Clusters = IntArray | None
ACCEPTED = "benchmarks (all alike), problems (all alike), or a weight above 0 for each: aime_2025=2,math_500=1"


@dataclass(frozen=True)
class Suite:
    """The benchmarks of a mean: their weights, alike if there are none, and the clusters of their problems."""

    weights: Sequence[float] | None = None  # they need not add up to 1
    clusters: Sequence[Clusters] | None = None

    def relative(self, benchmarks: int) -> Sequence[float]:
        """The weights of so many benchmarks."""
        return [1.0] * benchmarks if self.weights is None else self.weights

    def mean(self, values: Sequence[npt.ArrayLike]) -> FloatArray:
        """The mean [...] of each benchmark's value [...]."""
        return weighted_mean(values, self.relative(len(values)))


ALIKE = Suite()


def parse_weighting(text: str) -> Weighting:
    """Read the option ``--weighting``: ``benchmarks``, ``problems``, or ``NAME=NUMBER,NAME=NUMBER``."""
    if text == "benchmarks":
        return "benchmarks"
    if text == "problems":
        return "problems"
    weights: dict[str, float] = {}
    for part in text.split(","):
        name, _, number = part.rpartition("=")
        try:
            weights[name] = float(number)
        except ValueError:
            raise InvalidInput("--weighting", "", f"is {text!r}", ACCEPTED) from None
        if not name or not 0.0 < weights[name] < np.inf:
            raise InvalidInput("--weighting", "", f"is {text!r}", ACCEPTED)
    return weights


def weights_of(weighting: Weighting, problems: Mapping[str, int]) -> list[float]:
    """The weights of benchmarks, in the order of ``problems``, their numbers of problems; they need not add up to 1."""
    if weighting == "benchmarks":
        return [1.0] * len(problems)
    if weighting == "problems":
        return [float(count) for count in problems.values()]
    if set(weighting) != set(problems):
        raise InvalidInput("--weighting", "", f"has weights of {', '.join(weighting)}", f"of {', '.join(problems)}")
    return [weighting[name] for name in problems]


def weighting_text(weighting: Weighting) -> str:
    """The end of a sentence that begins with "mean over benchmarks,"."""
    if weighting == "benchmarks":
        return "each with the same weight"
    if weighting == "problems":
        return "each with the weight of its number of problems"
    return f"with the weights {', '.join(f'{name} {weight:g}' for name, weight in weighting.items())}"


def weighted_mean(values: Iterable[npt.ArrayLike], weights: Iterable[float]) -> FloatArray:
    """The mean [...] of each benchmark's value [...]."""
    pairs = [(weight, np.asarray(value, dtype=np.float64)) for weight, value in zip(weights, values, strict=True)]
    return np.asarray(sum(weight * value for weight, value in pairs) / sum(weight for weight, _ in pairs))


def label(problem_ids: Sequence[str | int], groups: Collection[Collection[str | int]]) -> Clusters:
    """Label problems by the groups that they are in; one in none is a cluster of its own. None without groups.

    A single cluster of all problems leaves no error to estimate: they are taken as independent, None.
    """
    leader = {str(problem): str(next(iter(group))) for group in groups for problem in group}
    names, labels = np.unique([leader.get(str(id_), str(id_)) for id_ in problem_ids], return_inverse=True)
    return labels.astype(np.int64) if groups and len(names) > 1 else None


def cluster_sums(values: npt.ArrayLike, clusters: Clusters) -> FloatArray:
    """The sum of each cluster [..., G] of values of problems [..., N]."""
    array = np.asarray(values, dtype=np.float64)
    if clusters is None:
        return array
    return np.asarray(array @ np.eye(clusters.max() + 1)[clusters])


def cluster_values(accuracies: npt.ArrayLike, clusters: Clusters) -> FloatArray:
    """A value for each cluster [..., G], from the accuracies of problems [..., N], with the same mean.

    ``p + G / N * sum_(i in g) (p_i - p)``, where p is the mean. The variance of their mean is the cluster-robust one of
    the mean over problems, ``G / (G - 1) * sum_g (sum_(i in g) (p_i - p))^2 / N^2`` (Cameron and Miller 2015, Journal
    of Human Resources 50, section 2), and what holds of independent problems holds of them. They may leave [0, 1].
    """
    values = np.asarray(accuracies, dtype=np.float64)
    if clusters is None:
        return values
    mean = values.mean(axis=-1, keepdims=True)
    scale = (clusters.max() + 1) / values.shape[-1]
    return np.asarray(mean + scale * cluster_sums(values - mean, clusters))
