"""Thresholds that make different criteria comparable: quantiles of their values along the driver's own text.

The paper tunes the thresholds of entropy and KL until they replace as many tokens as the log-prob difference, and does
not print them. Here every criterion's threshold is the quantile that a given fraction of the driver's tokens lies
beyond. What is replaced in the end differs a little, for the text changes as tokens are replaced; it is measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from evals.decoding.criteria import Criterion, history_values, log_prob_differences
from evals.decoding.evaluate import PairSampler
from evals.decoding.settings import Decoding, Driver, Mode

FloatArray = npt.NDArray[np.float64]


class _Values:
    """Collects every criterion's values at the tokens that the driver draws."""

    def __init__(self, criteria: Sequence[Criterion], driver: Driver) -> None:
        self._driver = driver
        self.collected: dict[Criterion, list[Tensor]] = {
            criterion: [] for criterion in criteria if criterion is not Criterion.RANDOM
        }

    def __call__(self, base: Tensor, trained: Tensor, row_of: Tensor, tokens: Tensor) -> None:
        for criterion, values in self.collected.items():
            if criterion.looks_at_token:
                found = log_prob_differences(base, trained, row_of, tokens)
            else:
                driver = base if self._driver is Driver.BASE else trained
                found = history_values(criterion, base, trained, driver)[row_of]
            values.append(found.cpu())


def criterion_values(
    sampler: PairSampler, criteria: Sequence[Criterion], driver: Driver, samples: int
) -> dict[Criterion, FloatArray]:
    """Values of every criterion but random at every token of the driver's own responses, [tokens] each.

    Args:
        sampler: the pair and its problems.
        criteria: which ones.
        driver: whose text it is.
        samples: responses a problem.
    """
    plan = sampler.plan
    collect = _Values(criteria, driver)
    never = Decoding(Mode.REPLACEMENT, driver, Criterion.RANDOM, 0.0)
    jobs = [(index, number) for index in range(len(plan.ids)) for number in range(samples) if plan.room[index]]
    size = plan.parameters["batch_size"]
    for start in range(0, len(jobs), size):
        requests = [plan.request(index, number) for index, number in jobs[start : start + size]]
        sampler.pair().generate(requests, never, collect)
    return {criterion: torch.cat(values).double().numpy() for criterion, values in collect.collected.items()}


def threshold(criterion: Criterion, fraction: float, values: Mapping[Criterion, FloatArray]) -> float:
    """The tau beyond which a fraction of the values lies; with a fraction of 1 everything fires, whatever its value."""
    if criterion is Criterion.RANDOM:
        return fraction
    below = criterion.looks_at_token
    if fraction == 1:
        return math.inf if below else -math.inf
    quantile = float(np.quantile(values[criterion], fraction if below else 1 - fraction))
    return float(f"{quantile:.4g}")  # what a table shows, and seldom a value itself, which rounding could tip over
