"""How two models decode together: who drives, what fires, what a token that fires is drawn from instead."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from torch import Tensor

from evals.core.errors import UserError
from evals.decoding.criteria import Criterion


class Mode(StrEnum):
    """What a token that fires is drawn from."""

    REPLACEMENT = "replacement"
    """The other model."""
    EXTRAPOLATION = "extrapolation"
    """The trained model, pushed by gamma beyond it in the direction from base to trained."""


class Driver(StrEnum):
    """Whose tokens are kept where nothing fires."""

    BASE = "base"
    TRAINED = "trained"


@dataclass(frozen=True)
class Decoding:
    """One way of decoding with a base and a trained model.

    A token y is drawn from the driver. If the criterion fires it is drawn again, from
    log pi = w_driver log pi_driver + w_assistant log pi_assistant + constant, with the temperature and top-p of all.

    Attributes:
        mode: replacement has weights (0, 1); extrapolation (-gamma, 1 + gamma) with the base driving, (1 + gamma,
            -gamma) with the trained model driving.
        driver: the model that draws first.
        criterion: what fires.
        tau: threshold: the log-prob difference fires at or below it, random with this probability, the others at or
            above it.
        gamma: of extrapolation; 0 in a replacement.
    """

    mode: Mode
    driver: Driver
    criterion: Criterion
    tau: float
    gamma: float = 0.0

    def __post_init__(self) -> None:
        if math.isnan(self.tau):
            raise UserError("--tau: is NaN; accepted: a number, inf or -inf")
        if self.criterion is Criterion.RANDOM and not 0 <= self.tau <= 1:
            raise UserError(f"--tau: is {self.tau} with criterion random; accepted: a probability, 0 to 1")
        if not (math.isfinite(self.gamma) and self.gamma >= 0):
            raise UserError(f"--gamma: is {self.gamma}; accepted: 0 or more")
        if self.mode is Mode.REPLACEMENT and self.gamma:
            raise UserError(f"--gamma: is {self.gamma} with --mode replacement; accepted: 0, or --mode extrapolation")

    @property
    def weights(self) -> tuple[float, float]:
        """Weights of the driver's and of the assistant's logits where the criterion fires."""
        if self.mode is Mode.REPLACEMENT:
            return 0.0, 1.0
        if self.driver is Driver.BASE:
            return -self.gamma, 1.0 + self.gamma
        return 1.0 + self.gamma, -self.gamma

    @property
    def is_driver_alone(self) -> bool:
        """Whether a token that fires would be drawn from the driver's own distribution: then none is drawn again.

        (Drawing it again would be another method: one that rejects tokens the trained model likes less.)
        """
        return self.weights == (1.0, 0.0)

    def fires(self, values: Tensor) -> Tensor:
        """Where values [R] of the criterion fire."""
        match self.criterion:
            case Criterion.LOG_PROB_DIFFERENCE:
                return values <= self.tau
            case Criterion.RANDOM:
                return values < self.tau
            case _:
                return values >= self.tau

    def as_json(self) -> dict[str, str | float]:
        """For files; infinities, which JSON does not have, as words."""
        return {
            "mode": self.mode.value,
            "driver": self.driver.value,
            "criterion": self.criterion.value,
            "tau": self.tau if math.isfinite(self.tau) else str(self.tau),
            "gamma": self.gamma,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Decoding:
        """From :meth:`as_json`."""
        return cls(
            Mode(content["mode"]),
            Driver(content["driver"]),
            Criterion(content["criterion"]),
            float(content["tau"]),
            float(content["gamma"]),
        )


def mixture(driver: Tensor, assistant: Tensor, weights: tuple[float, float]) -> Tensor:
    """Logits [R, V] of the distribution with log-probabilities in these proportions.

    Each model's normaliser is a constant of its row, which a softmax takes out again: logits serve as log-probabilities
    do, and a weight of one beside a weight of zero leaves that model's logits as they are, bit for bit.
    """
    return weights[0] * driver.float() + weights[1] * assistant.float()
