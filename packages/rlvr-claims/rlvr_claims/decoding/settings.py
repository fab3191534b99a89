"""Ways of decoding with two models, sweeps over them, and what a sweep chooses; read and written as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from evals.core.errors import InvalidInput
from evals.core.files import located, write_json
from evals.core.manifest import verify_outputs, write_output_manifest
from evals.core.record import Record
from rlvr_claims.decoding import SCHEMES
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


def read_sweeps(paths: Sequence[Path]) -> dict[str, Sweep]:
    """Read the sweeps of several pairs, by the name of the trained model's directory, which is also the sweep's.

    UserError if one is missing, changed, or no sweep, or they have different points.
    """
    sweeps: dict[str, Sweep] = {}
    for path in paths:
        verify_outputs(path.parent / "manifest.json", "decoding_sweep")
        run = located(path).parent.name
        if run in sweeps:
            raise InvalidInput(str(path), "", f"is a second sweep of {run}", "sweeps of different trained models")
        sweeps[run] = Sweep.read(path)
    names = [[point.name for point in sweep.points] for sweep in sweeps.values()]
    for path, grid in zip(paths, names, strict=True):
        if grid != names[0]:
            raise InvalidInput(str(path), "points", f"are others than those of {paths[0]}", "sweeps of one grid")
    return sweeps


def choose(sweeps: Mapping[str, Sweep]) -> Choices:
    """Choose for every row of the table the fraction and gamma with the highest average over the sweeps.

    A fraction is a threshold for each pair, its own quantile. Equal averages are settled by the smaller fraction, then
    the smaller gamma. A fraction of 1 is never chosen: with every token replaced it is the trained model, which has a
    row of its own.
    """
    import numpy as np  # after code paths of arithmetic are chosen

    chosen = {}
    for scheme in SCHEMES:
        candidates: dict[tuple[float, float], dict[str, SweepPoint]] = {}
        for run, sweep in sweeps.items():
            for point in sweep.points:
                if point.decoding.scheme == scheme and point.fraction is not None and point.fraction < 1:
                    candidates.setdefault((point.fraction, point.decoding.gamma), {})[run] = point
        averages = {key: float(np.mean([swept.average for swept in of.values()])) for key, of in candidates.items()}
        if averages:
            fraction, gamma = best = min(averages, key=lambda key: (-averages[key], *key))
            by_run = {run: point.decoding for run, point in candidates[best].items()}
            chosen[scheme] = Choice(fraction=fraction, gamma=gamma, average=averages[best], by_run=by_run)
    return Choices(chosen=chosen)


def write_choice(sweeps: Sequence[Path], out: Path) -> None:
    """Choose the best thresholds and gammas of sweeps."""
    write_json(out, choose(read_sweeps(sweeps)).to_json())
    write_output_manifest("decoding_choice", out.with_suffix(""), [out.suffix], sweeps, {})


def chosen_decoding(path: Path, scheme: str, run: str) -> Decoding:
    """The way of decoding that was chosen for a row of the table and a run; InvalidInput if there is none."""
    chosen = Choices.read(path).chosen
    if scheme not in chosen or run not in chosen[scheme].by_run:
        raise InvalidInput(str(path), "", f"has no {scheme} for {run}", f"{', '.join(chosen)}, and the runs swept")
    return chosen[scheme].by_run[run]
