"""The estimators of methods, for bare arrays: what the tests say of two methods is put into an :class:`Arm` each."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from evals.statistics import difference, resampling
from evals.statistics.difference import Arm, Average, Difference
from evals.statistics.suite import Suite

Strata = Sequence[npt.ArrayLike]


def _sides(treatment: Strata, control: Strata, asked: dict[str, Any], samples: Any = None) -> tuple[Arm, Arm, Suite]:
    """The arms and the suite of two methods; ``asked`` loses their options."""
    fixed = [asked.pop(f"{side}_is_fixed", False) for side in ("treatment", "control")]
    of_arms, bases = samples or (None, None), asked.pop("bases", (None, None))
    one, other = map(Arm, (treatment, control), of_arms, bases, fixed)
    return one, other, Suite(asked.pop("weights", None), asked.pop("clusters", None))


def estimate_difference(treatment: Strata, control: Strata, *, samples: Any = None, **asked: Any) -> Difference:
    """Compare two methods by their accuracies on each benchmark [..., S, N]."""
    sides = _sides(treatment, control, asked, samples)
    return difference.estimate_difference(*sides, **asked)


def estimate_combination(
    methods: Sequence[Strata], coefficients: Any, *, samples: Any = None, clusters: Any = None, **asked: Any
) -> Difference:
    """Combine several methods by their accuracies."""
    arms = [Arm(method, of) for method, of in zip(methods, samples or [None] * len(methods), strict=True)]
    return difference.estimate_combination(arms, coefficients, Suite(asked.pop("weights", None), clusters), **asked)


def bootstrap_differences(
    treatment: Strata, control: Strata, draws: Any, generator: np.random.Generator, *, samples: Any = None, **asked: Any
) -> npt.NDArray[np.float64]:
    """The bootstrap distribution of the difference of two methods by their accuracies."""
    one, other, suite = _sides(treatment, control, asked)
    return resampling.bootstrap_differences(one, other, draws, generator, suite, samples, **asked)


def estimate_average(strata: Strata, samples: Sequence[int], *, is_fixed: bool, **asked: Any) -> Average:
    """The average of a method by its accuracies."""
    arm, suite = (
        Arm(strata, samples, asked.pop("bases", None), is_fixed),
        Suite(asked.pop("weights", None), asked.pop("clusters", None)),
    )
    return difference.estimate_average(arm, suite, **asked)
