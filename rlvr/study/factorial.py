"""The cells of a study's factorial: methods that combine the levels of its factors (docs/evaluation.md)."""

import math
from collections.abc import Iterator
from typing import Any

from evals.core.config.methods import Factorial, MethodChanges
from evals.core.config.sections import SeedsByLooks
from evals.core.config.study import StudyConfig
from evals.core.errors import InvalidInput, NotAccepted
from evals.statistics.factorial import Cell, Design
from rlvr.study.catalogue import combined


def with_factorial(config: StudyConfig, source: str) -> StudyConfig:
    """Put the cells in the place of the one method of a study; UserError where there would be no effects to see."""
    if config.factorial is None:
        return config
    cells, reference = cells_of(config), config.reference_method
    if set(cells.values()) <= set(config.methods):  # as results/study.json has it
        return config
    varied = config.varied_methods
    changing = config.changing_model
    for refused, message, accepted in (
        (config.doses is not None, "is given beside doses", "one of both"),
        (varied != [reference], f"is given beside the methods {', '.join(varied) or 'none'}", "one, and controls"),
        (bool(changing), f"is given beside models.{changing}.methods", "changes of the study's method"),
        (isinstance(config.seeds, SeedsByLooks), "is given with looks", "a list of seeds"),
        (len(config.training_seeds) < 2, f"is given with seeds {list(config.training_seeds)}", "2 or more"),
    ):
        if refused:
            raise InvalidInput(source, "factorial", message, accepted)
    try:
        Design.of(config.factorial).check(config.factorial.parts.values())
    except NotAccepted as error:
        raise InvalidInput(source, "factorial", error.found, error.accepted) from None
    changes = {name: _changes(config, cell) for cell, name in cells.items()}
    others = {name: of for name, of in config.methods.items() if name != reference}
    methods = {name: MethodChanges(**of) for name, of in changes.items()}
    return config.model_copy(update={"methods": {**methods, **others}})


def cells_of(config: StudyConfig) -> dict[Cell, str]:
    """Name the methods that are the cells of a study's factorial: ``dapo_100200``, the first one as the method."""
    assert config.factorial is not None
    reference = config.reference_method
    return {
        cell: f"{reference}_{''.join(map(str, cell))}" if any(cell) else reference
        for cell in Design.of(config.factorial).cells
    }


def describe(factorial: Factorial, seeds: int) -> Iterator[str]:
    """Say what a plan makes: the design, and how certain its effects will be."""
    design = Design.of(factorial)
    yield f"factorial: {' '.join(design.describe())}"
    for order, name in ((1, "main effects"), (2, "interactions")):
        errors = [
            float((effect.weights**2).sum() / seeds) ** 0.5 for effect in design.effects if len(effect.term) == order
        ]
        yield f"standard errors of {name}: {min(errors):.2f} to {max(errors):.2f} of that of one training's score"


def _changes(config: StudyConfig, cell: Cell) -> dict[str, Any]:
    """The method of a cell: the study's, with the changes of its levels one on top of the other."""
    assert config.factorial is not None
    method, design = config.methods[config.reference_method], Design.of(config.factorial)
    levels = [factor.levels[number] for factor, number in zip(config.factorial.factors, cell, strict=True)]
    entry, training = dict(method.of_entry), dict(method.training)
    for level in levels:
        entry, training = combined(entry, level.of_entry), combined(training, level.training)
    factor = math.prod(changes.learning_rate_factor for changes in (method, *levels))
    entry.setdefault("extends", config.reference_method)
    if any(cell):
        entry["title"] = design.title(cell)
    if factor != 1.0:
        entry["learning_rate_factor"] = factor
    return {**entry, **({"training": training} if training else {})}
