"""How far a score would move: with other problems, or with other samples of the same problems."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from evals.statistics.accuracy import FloatArray, check_counts


def clustered_standard_error(accuracies: npt.ArrayLike) -> FloatArray:
    """Standard error of the mean accuracy [...], from per-problem accuracies [..., N], with problems as the clusters.

    ``sqrt(sum (p_i - p)^2 / (N (N - 1)))``: problems were drawn from a population of problems, and the samples of one
    problem are no independent evidence about that population (Miller 2024, arXiv 2411.00640, section 2.2). Sampling
    noise is already inside, for it widens the spread of the p_i.

    Raises:
        ValueError: there are fewer than two problems.
    """
    values = np.asarray(accuracies, dtype=np.float64)
    if values.shape[-1] < 2:
        raise ValueError("a standard error over problems needs at least two problems")
    return np.asarray(values.std(axis=-1, ddof=1) / np.sqrt(values.shape[-1]))


def sampling_standard_error(correct_counts: npt.ArrayLike, samples: int) -> FloatArray:
    """Standard error of avg@k on exactly these problems [...], from counts [..., N]: new samples, same problems.

    ``sqrt(sum p_i (1 - p_i) / (k - 1)) / N``. It says how well k samples pin down this benchmark's score, not how well
    the benchmark pins down the model.

    Raises:
        ValueError: fewer than two samples per problem, or the counts are not counts.
    """
    counts = check_counts(correct_counts, samples)
    if samples < 2:
        raise ValueError("the sampling standard error needs at least two samples per problem")
    accuracies = counts / samples
    variance = (accuracies * (1.0 - accuracies)).sum(axis=-1) / (samples - 1)
    return np.asarray(np.sqrt(variance) / counts.shape[-1])
