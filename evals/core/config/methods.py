"""The changes that a study makes of training settings and of methods, the doses that it gives them, and factorials."""

from typing import Annotated, Any

from pydantic import ConfigDict, Field

from evals.core.errors import refuse
from evals.core.numbers import Count, InnerShare, Positive
from evals.core.record import Settings, partial, setting
from evals.core.training_settings import LocalTraining, Rounding, VerlTraining
from evals.core.values import UNIQUE, MethodName, Name, Title

TrainingChanges = Annotated[dict[str, Any], partial(LocalTraining, VerlTraining)]
"""Some of the training settings; a study's, a model's and a method's are merged and then read as a whole."""


class MethodChanges(Settings):
    """The changes of a method's catalogue entry; ``{}`` takes it as it is.

    Every other key is one of the catalogue's (config/methods.yaml).
    """

    model_config = ConfigDict(extra="allow")

    training: TrainingChanges = setting("training settings of this method alone", {})
    learning_rate_factor: Positive = setting("factor of the learning rate, on every model", 1.0)

    @property
    def of_entry(self) -> dict[str, Any]:
        """The changes of the catalogue's entry, which knows nothing of training settings."""
        return dict(self.model_extra or {})


Methods = dict[MethodName, MethodChanges]


class Doses(Settings):
    """Doses of `training.sampler`: every method but controls is trained under each of them too.

    Each kind has its doses from the smallest on. The names are those of the methods, `dapo_stale_4` of `dapo`.
    """

    weights: Annotated[tuple[Rounding, ...], *UNIQUE] = setting("roundings of the weights", ())
    stale: Annotated[tuple[Count, ...], *UNIQUE] = setting("rollout steps behind", ())
    top_p: Annotated[tuple[InnerShare, ...], *UNIQUE] = setting("shares that are drawn from", ())
    noise: Annotated[tuple[Positive, ...], *UNIQUE] = setting("standard deviations on logits", ())


class Level(MethodChanges):
    """A level of a factor: its name, and what it changes of the method.

    Every other key is one of the catalogue's; `training` changes training settings. Changes of the factors are made in
    their order, those of a later one on top.
    """

    level: Name = setting("its name")


class Factor(Settings):
    """A factor of a factorial."""

    name: Name = setting("its name")
    levels: Annotated[tuple[Level, ...], Field(min_length=2)] = setting(
        "its levels; effects are differences to the first"
    )


class Factorial(Settings):
    """A factorial: methods that combine levels of several factors, and the effects of these (docs/evaluation.md).

    The study has one method, which the cells change; the cell of all first levels keeps its name.
    """

    factors: Annotated[tuple[Factor, ...], Field(min_length=2)] = setting("what is varied")
    generators: dict[Name, Annotated[tuple[Name, ...], Field(min_length=2), *UNIQUE]] = setting(
        "a fraction of all combinations: a factor of two levels, and those whose product it is", {}
    )
    excluded: tuple[Annotated[dict[Name, Name], Field(min_length=2)], ...] = setting(
        "combinations that no method can have, as factor: level", ()
    )
    parts: dict[Title, dict[Name, Name]] = setting(
        "combinations of levels by title, whose difference is divided among the factors", {}
    )

    def check_whole(self) -> None:
        levels: dict[str, list[str]] = {}
        for factor in self.factors:
            names = [level.level for level in factor.levels]
            is_twice, key = factor.name in levels or len(set(names)) < len(names), f"factors.{factor.name}"
            refuse(is_twice, "is given twice, or has a level twice", "each name once", key)
            levels[factor.name] = names
        of_two = {name: names for name, names in levels.items() if len(names) == 2 and name not in self.generators}
        for name, members in self.generators.items():
            is_other = len(levels.get(name, ())) != 2 or not of_two.keys() >= {*members}
            accepted = f"a factor of two levels, and two or more of {', '.join(of_two)}"
            refuse(is_other, f"is {', '.join(members)}", accepted, f"generators.{name}")
        known = "; ".join(f"{name}: {', '.join(names)}" for name, names in levels.items())
        combinations = [("excluded", one) for one in self.excluded] + [("parts", one) for one in self.parts.values()]
        for key, combination in combinations:
            for name, level in combination.items():
                refuse(level not in levels.get(name, ()), f"has {name}: {level}", known, key)
            is_first = all(level == levels[name][0] for name, level in combination.items())
            refuse(is_first, "has the first level of every factor that it names", "a level that is not", key)
