"""The weights of benchmarks in a mean over them: benchmarks alike, problems alike, or numbers of one's own."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from evals.core.errors import InvalidInput
from evals.core.records import Weighting
from evals.statistics.accuracy import FloatArray

ACCEPTED = "benchmarks (all alike), problems (all alike), or a weight above 0 for each: aime_2025=2,math_500=1"


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


def weights_or_alike(weights: Sequence[float] | None, benchmarks: int) -> Sequence[float]:
    """The weights of benchmarks; without any, all the same. They need not add up to 1."""
    return [1.0] * benchmarks if weights is None else weights


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
