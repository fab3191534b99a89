"""Ways of decoding with two models, sweeps over them, and what a sweep chooses; read and written as JSON."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from evals.core.record import Record
from rlvr_claims.settings import Criterion, DecodingConfig

if TYPE_CHECKING:
    from torch import Tensor


Mode = Literal["replacement", "extrapolation"]
"""The source of a token that fires: the other model, or the trained one pushed by gamma away from the base."""
Driver = Literal["base", "trained"]
"""The model whose tokens are kept where nothing fires."""
DRIVERS: tuple[Driver, ...] = ("base", "trained")
Threshold = Annotated[
    float,
    Field(allow_inf_nan=True),
    BeforeValidator(lambda value: float(value) if value in ("inf", "-inf") else value),
    PlainSerializer(lambda value: value if math.isfinite(value) else str(value)),
]
"""A number in nats; infinities, which JSON has not, are written as words."""


class Decoding(Record):
    """One way of decoding with a base and a trained model.

    A token y is drawn from the driver. If the criterion fires it is drawn again, from
    log pi = w_driver log pi_driver + w_assistant log pi_assistant + constant, with the temperature and top-p of all.
    Replacement has weights (0, 1); extrapolation (-gamma, 1 + gamma) with the base driving, (1 + gamma, -gamma) with
    the trained model driving. The log-prob difference fires at or below the threshold tau, random with this
    probability, the others at or above it.
    """

    mode: Mode
    driver: Driver  # the model that draws first
    criterion: Criterion  # decides which tokens are drawn again
    tau: Threshold
    gamma: float = Field(default=0.0, ge=0)  # of extrapolation; 0 in a replacement

    @model_validator(mode="after")
    def _check(self) -> Decoding:
        if math.isnan(self.tau):
            raise ValueError("tau is NaN; accepted: a number, inf or -inf")
        if self.criterion == "random" and not 0 <= self.tau <= 1:
            raise ValueError(f"tau is {self.tau} with criterion random; accepted: a probability, 0 to 1")
        if self.mode == "replacement" and self.gamma:
            raise ValueError(f"gamma is {self.gamma} with mode replacement; accepted: 0, or mode extrapolation")
        return self

    @classmethod
    def alone(cls, driver: Driver) -> Decoding:
        """The driver's own text: no token is ever drawn again."""
        return cls(mode="replacement", driver=driver, criterion="random", tau=0.0)

    @property
    def weights(self) -> tuple[float, float]:
        """Weights of the driver's and of the assistant's logits where the criterion fires."""
        if self.mode == "replacement":
            return 0.0, 1.0
        return (-self.gamma, 1.0 + self.gamma) if self.driver == "base" else (1.0 + self.gamma, -self.gamma)

    @property
    def is_driver_alone(self) -> bool:
        """True if a token that fires would be drawn from the driver's own distribution: then none is drawn again.

        (Drawing it again would be another method: one that rejects tokens the trained model likes less.)
        """
        return self.weights == (1.0, 0.0)

    @property
    def scheme(self) -> str | None:
        """The row of the table that this could fill: none unless the log-prob difference decides."""
        if self.criterion != "log_prob_difference":
            return None
        return "replacement" if self.mode == "replacement" else f"extrapolation_{self.driver}"

    def fires(self, values: Tensor) -> Tensor:
        """A mask [R] of the values of the criterion that fire."""
        match self.criterion:
            case "log_prob_difference":
                return values <= self.tau
            case "random":
                return values < self.tau
            case _:
                return values >= self.tau


Fraction = Annotated[float, Field(gt=0, le=1)]


class Grid(Record):
    """The ways of decoding that a sweep tries."""

    criteria: tuple[Criterion, ...]  # of replacement with the base driving
    fractions: tuple[Fraction, ...]  # of the base's tokens that the thresholds of replacement are set at
    # of the driver's tokens that the log-prob difference is set at in extrapolation
    extrapolation_fractions: tuple[Fraction, ...] = ()
    gammas: tuple[float, ...] = ()  # of extrapolation

    @classmethod
    def of(cls, settings: DecodingConfig) -> Self:
        """The ways that a file of the package asks for."""
        return cls(**{name: getattr(settings, name) for name in cls.model_fields})


class SweepPoint(Record):
    """One way of decoding in a sweep, in a directory of its name, and how well it did."""

    name: str
    decoding: Decoding
    fraction: float | None  # of the driver's tokens that its threshold was set at; None for a model alone
    replaced: float  # fraction of the tokens that were drawn again
    average: float  # mean accuracy
    correct_counts: tuple[int, ...]  # correct samples of each problem, aligned with ``problem_ids`` of the sweep
    mean_tokens: float  # of a response


class Sweep(Record):
    """The content of a pair's ``sweep.json``; ``base`` and ``trained`` are directories."""

    base: str
    trained: str
    problem_ids: tuple[str | int, ...]
    samples_per_problem: int
    points: tuple[SweepPoint, ...]


class Choice(Record):
    """The fraction and gamma that did best for one row of the table, with their mean accuracy over the sweeps.

    ``by_run`` has each run's way of decoding, with the threshold of that pair.
    """

    fraction: float
    gamma: float
    average: float
    by_run: dict[str, Decoding]


class Choices(Record):
    """The content of ``chosen.json``: scheme -> choice."""

    chosen: dict[str, Choice]
