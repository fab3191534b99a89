"""The changes that a study makes of training settings and of methods, the doses that it gives them, and factorials."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import ConfigDict, Field, model_validator

from evals.core.config.settings import Settings
from evals.core.errors import NotAccepted
from evals.core.numbers import Count, InnerShare, Positive
from evals.core.record import partial
from evals.core.training_settings import LocalTraining, Rounding, VerlTraining
from evals.core.values import UNIQUE, MethodName, Name, Title

TrainingChanges = Annotated[dict[str, Any], partial(LocalTraining, VerlTraining)]
"""Some of the training settings; a study's, a model's and a method's are merged and then read as a whole."""


class MethodChanges(Settings):
    """The changes of a method's catalogue entry; ``{}`` takes it as it is.

    Every other key is one of the catalogue's (config/methods.yaml).
    """

    model_config = ConfigDict(extra="allow")

    training: TrainingChanges = Field(default={}, description="training settings of this method alone")
    learning_rate_factor: Positive = Field(default=1.0, description="factor of the learning rate, on every model")

    @property
    def of_entry(self) -> dict[str, Any]:
        """The changes of the catalogue's entry, which knows nothing of training settings."""
        return dict(self.model_extra or {})


Methods = dict[MethodName, MethodChanges]


class Doses(Settings):
    """Doses of `training.sampler`: every method but controls is trained under each of them too.

    Each kind has its doses from the smallest on. The names are those of the methods, `dapo_stale_4` of `dapo`.
    """

    weights: Annotated[tuple[Rounding, ...], *UNIQUE] = Field(default=(), description="roundings of the weights")
    stale: Annotated[tuple[Count, ...], *UNIQUE] = Field(default=(), description="rollout steps behind")
    top_p: Annotated[tuple[InnerShare, ...], *UNIQUE] = Field(default=(), description="shares that are drawn from")
    noise: Annotated[tuple[Positive, ...], *UNIQUE] = Field(default=(), description="standard deviations on logits")


class Level(MethodChanges):
    """A level of a factor: its name, and what it changes of the method.

    Every other key is one of the catalogue's; `training` changes training settings. Changes of the factors are made in
    their order, those of a later one on top.
    """

    level: Name = Field(description="its name")


class Factor(Settings):
    """A factor of a factorial."""

    name: Name = Field(description="its name")
    levels: Annotated[tuple[Level, ...], Field(min_length=2)] = Field(
        description="its levels; effects are differences to the first"
    )


class Factorial(Settings):
    """A factorial: methods that combine levels of several factors, and the effects of these (docs/evaluation.md).

    The study has one method, which the cells change; the cell of all first levels keeps its name.
    """

    factors: Annotated[tuple[Factor, ...], Field(min_length=2)] = Field(description="what is varied")
    generators: dict[Name, Annotated[tuple[Name, ...], Field(min_length=2), *UNIQUE]] = Field(
        default={},
        description="a fraction of all combinations: a factor of two levels, and those whose product it is",
    )
    excluded: tuple[Annotated[dict[Name, Name], Field(min_length=2)], ...] = Field(
        default=(), description="combinations that no method can have, as factor: level"
    )
    parts: dict[Title, dict[Name, Name]] = Field(
        default={},
        description="combinations of levels by title, whose difference is divided among the factors",
    )

    @model_validator(mode="after")
    def _check_names(self) -> "Factorial":
        levels: dict[str, list[str]] = {}
        for factor in self.factors:
            key, names = f"factors.{factor.name}", [level.level for level in factor.levels]
            if factor.name in levels or len(set(names)) < len(names):
                raise NotAccepted("is given twice, or has a level twice", "each name once", key)
            levels[factor.name] = names
        of_two = [name for name, names in levels.items() if len(names) == 2 and name not in self.generators]
        for name, members in self.generators.items():
            if len(levels.get(name, ())) != 2 or not set(members) <= set(of_two):
                accepted = f"a factor of two levels, and two or more of {', '.join(of_two)}"
                raise NotAccepted(f"is {', '.join(members)}", accepted, f"generators.{name}")
        for key, combinations in (("excluded", self.excluded), ("parts", self.parts.values())):
            for combination in combinations:
                self._check_levels(key, combination, levels)
        return self

    @staticmethod
    def _check_levels(key: str, combination: Mapping[str, str], levels: Mapping[str, list[str]]) -> None:
        for name, level in combination.items():
            if level not in levels.get(name, ()):
                accepted = "; ".join(f"{name}: {', '.join(names)}" for name, names in levels.items())
                raise NotAccepted(f"has {name}: {level}", accepted, key)
        if all(level == levels[name][0] for name, level in combination.items()):
            raise NotAccepted("has the first level of every factor that it names", "a level that is not", key)
