"""A method's average over seeds and benchmarks, and the interval that knows of both."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from evals.statistics.clusters import Clusters
from evals.statistics.difference import Bases, base_masks, estimate_difference, mean_over_seeds
from evals.statistics.interval import suite_intervals
from evals.statistics.weighting import weighted_mean, weights_or_alike


@dataclass(frozen=True)
class Average:
    """A method's mean accuracy over benchmarks, in fractions of one."""

    value: float
    by_seed: tuple[float, ...]
    standard_error: float | None = None  # over problems and seeds; one seed cannot tell how seeds differ
    confidence_interval: tuple[float, float] | None = None  # None without an error, or if a handful of problems decides


def estimate_average(
    accuracies: Sequence[npt.ArrayLike],
    samples: Sequence[int],
    *,
    is_fixed: bool,
    confidence: float = 0.95,
    weights: Sequence[float] | None = None,
    clusters: Sequence[Clusters] | None = None,
    bases: Bases = None,
) -> Average:
    """Average of a method over benchmarks, which have ``weights`` or weigh the same.

    Problems and seeds both add variance, as in :mod:`evals.statistics.difference`. The critical value is Cochran and
    Cox's weighted mean, with one change: the problems' part takes the end points of
    :func:`~evals.statistics.interval.suite_intervals` in place of Student's quantile, for accuracies are skewed near 0
    and 1 where differences are not. With no variance between seeds it is that interval.

    ``accuracies`` [S, N] are of S seeds on each benchmark, from ``samples`` each, its problems in ``clusters``. The
    seeds are no sample of seeds (``is_fixed``) of the base model, or if the claim is about these very policies. The
    average is that of the very ``bases`` that the seeds started from.
    """
    strata = [np.asarray(values, dtype=np.float64) for values in accuracies]
    relative, known = weights_or_alike(weights, len(strata)), clusters or [None] * len(strata)
    by_seed = tuple(weighted_mean([values.mean(axis=1) for values in strata], relative).tolist())
    masks = base_masks(bases)
    nothing = [np.zeros((len(masks), values.shape[1])) for values in strata]
    options: dict[str, Any] = {"samples": (samples, samples), "bases": (bases, bases and sorted(set(bases)))}
    options |= {"weights": relative, "clusters": known, "treatment_is_fixed": is_fixed, "control_is_fixed": True}
    estimate = estimate_difference(strata, nothing, **options)
    value, error = float(estimate.estimate), float(estimate.standard_error)
    if np.isnan(error):
        return Average(value, by_seed)
    pooled = [mean_over_seeds(values, masks) for values in strata]
    counts = [len(by_seed) * count for count in samples]
    low, high = map(float, suite_intervals(pooled, counts, confidence, relative, known))
    problem_error = float(np.sqrt(estimate.problem_variance + estimate.noise))
    if np.isnan(low):
        return Average(value, by_seed, error)
    seed_share = float(estimate.seed_variance) / error**2
    seed_quantile = float(estimate.seed_critical_value(0.5 - confidence / 2.0))
    down, up = (
        error * ((1.0 - seed_share) * reach / problem_error + seed_share * seed_quantile)
        for reach in (value - low, high - value)
    )
    return Average(value, by_seed, error, (max(0.0, value - down), min(1.0, value + up)))
