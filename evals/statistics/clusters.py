"""Problems that are near copies of one another: clusters, whose members are no independent evidence.

A benchmark's clusters are a label for each problem [N], 0 to G - 1; None where every problem is one of its own.
"""

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from evals.statistics.accuracy import FloatArray, IntArray

Clusters = IntArray | None


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
