"""Designs: the ways in which a study trains each of its methods, and the sheet that lists them (docs/evaluation.md)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from itertools import product
from typing import TYPE_CHECKING, Any

from evals.core.config.methods import Factorial, MethodChanges
from evals.core.config.sections import SeedsByLooks
from evals.core.config.study import StudyConfig
from evals.core.errors import InvalidInput, NotAccepted
from evals.core.records import Way
from evals.core.run_spec import VERL
from rlvr.study.catalogue import combined, load_catalogue, resolve_method, variant

if TYPE_CHECKING:
    from evals.statistics.factorial import Cell, Design

RATES = "rates"
"""The name that the methods of a study at half, once and twice their learning rate are asked for by."""
_SEEDS = 8  # at most are trained at further rates
_FURTHER = {"rate_half": (0.5, "half the learning rate"), "rate_twice": (2.0, "twice the learning rate")}
_NOT_AT_RATES = ("controls", "doses", "checkpoint", "beside", "score_at")


def _design(factorial: Factorial) -> Design:
    """The design of a factorial; no other study needs scipy to be planned."""
    from evals.statistics.factorial import Design

    return Design.of(factorial)


def sheet_of(config: StudyConfig, titles: Mapping[str, str]) -> tuple[Way, ...]:
    """List the ways in which a study with doses, with a factorial, or at several rates trains its methods."""
    if config.doses is not None:
        return tuple(
            Way(name=name, method=method, title=titles[method], kind=kind, dose=str(dose))
            for name, (method, kind, dose) in _dosed(config).items()
        )
    if config.factorial is not None:
        levels = {name: _design(config.factorial).levels(cell) for cell, name in _cells(config).items()}
        levels |= {name: {} for name in config.control_methods}
        return tuple(Way(name=name, method=name, title=titles[name], levels=of) for name, of in levels.items())
    ways = []
    for name in config.methods:
        method = re.sub(rf"_({'|'.join(_FURTHER)})$", "", name)
        rates = {model: config.training_of(name, RATES, model).learning_rate for model in config.models}
        ways.append(Way(name=name, method=method, title=titles[method], rates=rates))
    return tuple(ways)


def with_design(config: StudyConfig, source: str) -> StudyConfig:
    """Add the methods under each dose, or put a factorial's cells in the place of the method; UserError if refused."""
    if config.doses is not None:
        config = _with_doses(config, source)
    return config if config.factorial is None else _with_factorial(config, source)


def _refuse(source: str, key: str, *cases: tuple[Any, str, str]) -> None:
    """Refuse a study in the first of the cases that it is."""
    for refused, message, accepted in cases:
        if refused:
            raise InvalidInput(source, key, message, accepted)


def _never(config: StudyConfig, given: str) -> tuple[tuple[Any, str, str], ...]:
    """What neither doses nor a factorial can stand beside."""
    model, looks = config.changing_model, isinstance(config.seeds, SeedsByLooks)
    beside = (model, f"{given} beside models.{model}.methods", "changes of the study's methods")
    return beside, (looks, f"{given} with looks", "a list of seeds")


def _with_doses(config: StudyConfig, source: str) -> StudyConfig:
    trainings = {"training": config.training}
    trainings |= {f"models.{name}.training": model.method_training for name, model in config.models.items()}
    sampling = next((key for key, training in trainings.items() if "sampler" in training), "")
    _refuse(
        *(source, "doses"),
        (not config.methods, "are given without methods", "a study with methods"),
        (config.engine == VERL, "are given with engine verl", "none with it: its sampler is vLLM"),
        (len(config.models) > 1, f"are given in a study of {len(config.models)} models", "one model"),
        (sampling, f"are given beside {sampling}.sampler", "one of both"),
        *_never(config, "are given"),
    )
    methods = dict(config.methods)
    for name, (method, kind, dose) in _dosed(config).items():
        if kind:
            changes, words = config.methods[method], f"{kind} {dose}"
            entry = resolve_method(method, changes.of_entry, load_catalogue(), f"{source}: methods.{method}")
            stated = changes.model_dump(exclude_unset=True)
            methods[name] = MethodChanges(**variant(method, stated, entry["title"], words, {"sampler": {kind: dose}}))
    return config.model_copy(update={"methods": methods})


def _dosed(config: StudyConfig) -> dict[str, tuple[str, str, Any]]:
    """The methods without a dose, and all but controls under each: name -> method, kind and dose."""
    plain = [name for name, changes in config.methods.items() if "sampler" not in changes.training]
    ways: dict[str, tuple[str, str, Any]] = {name: (name, "", "") for name in plain}
    for kind, doses in config.doses.to_json().items() if config.doses else ():
        for dose, method in product(doses, (name for name in plain if name not in config.control_methods)):
            ways[re.sub(r"\W", "_", f"{method}_{kind}_{dose}")] = method, kind, dose
    return ways


def _with_factorial(config: StudyConfig, source: str) -> StudyConfig:
    assert config.factorial is not None
    cells, reference = _cells(config), config.reference_method
    if set(cells.values()) <= set(config.methods):  # as results/study.json has it
        return config
    varied, seeds = config.varied_methods, list(config.training_seeds)
    _refuse(
        *(source, "factorial"),
        (config.doses is not None, "is given beside doses", "one of both"),
        (varied != [reference], f"is given beside the methods {', '.join(varied) or 'none'}", "one, and controls"),
        *_never(config, "is given"),
        (len(seeds) < 2, f"is given with seeds {seeds}", "2 or more"),
    )
    try:
        _design(config.factorial).check(config.factorial.parts.values())
    except NotAccepted as error:
        raise InvalidInput(source, "factorial", error.found, error.accepted) from None
    methods = {name: MethodChanges(**_of_cell(config, config.factorial, cell)) for cell, name in cells.items()}
    methods |= {name: of for name, of in config.methods.items() if name != reference}
    return config.model_copy(update={"methods": methods})


def _cells(config: StudyConfig) -> dict[Cell, str]:
    """Name the methods that are the cells of a study's factorial: ``dapo_100200``, the first one as the method."""
    assert config.factorial is not None
    first = config.reference_method
    cells = _design(config.factorial).cells
    return {cell: f"{first}_{''.join(map(str, cell))}" if any(cell) else first for cell in cells}


def _of_cell(config: StudyConfig, factorial: Factorial, cell: Cell) -> dict[str, Any]:
    """The method of a cell: the study's, with the changes of its levels one on top of the other."""
    method = config.methods[config.reference_method]
    levels = [factor.levels[number] for factor, number in zip(factorial.factors, cell, strict=True)]
    entry, training = dict(method.of_entry), dict(method.training)
    for level in levels:
        entry, training = combined(entry, level.of_entry), combined(training, level.training)
    rate = math.prod(changes.learning_rate_factor for changes in (method, *levels))
    entry = {**entry, "extends": entry.get("extends", config.reference_method)}
    entry |= {"title": _design(factorial).title(cell)} if any(cell) else {}
    entry |= {"learning_rate_factor": rate} if rate != 1.0 else {}
    return {**entry, **({"training": training} if training else {})}


def describe(factorial: Factorial, seeds: int) -> Iterator[str]:
    """Say what a plan makes: the design, and how certain its effects will be."""
    design = _design(factorial)
    yield f"factorial: {' '.join(design.describe())}"
    for order, name in ((1, "main effects"), (2, "interactions")):
        chosen = [effect.weights for effect in design.effects if len(effect.term) == order]
        errors = [float((weights**2).sum() / seeds) ** 0.5 for weights in chosen]
        yield f"standard errors of {name}: {min(errors):.2f} to {max(errors):.2f} of that of one training's score"


def at_rates(config: StudyConfig, content: Mapping[str, Any], titles: Mapping[str, str], source: str) -> dict[str, Any]:
    """Write the study of the methods of ``content``, whose configuration is ``config``, at three learning rates each.

    Controls are left out: they are there to be found, and no candidates. UserError where no rate could be chosen.
    """
    seeds, model, asked = config.training_seeds, config.changing_model, ", for `snakemake rates`"
    lacks, chosen = config.validation is None, ": rates are chosen by scores on held-out problems"
    _refuse(source, "methods", (not titles, "are none", f"a study with methods{asked}"))
    _refuse(source, "validation", (lacks, "is not there", f"a study with it{asked}{chosen}"))
    few = f"2 or more{asked}: a seed's rate is chosen by the others"
    _refuse(source, "seeds", (len(seeds) < 2, f"are {list(seeds)}", few))
    _refuse(source, f"models.{model}.methods", (model, "is given", f"changes of the study's methods{asked}"))
    _refuse(source, "factorial", (config.factorial is not None, "is given", f"a study without it{asked}"))
    methods: dict[str, Any] = {}
    for method, changes in content["methods"].items():
        if method not in config.control_methods:
            methods[method] = changes
            for suffix, (factor, words) in _FURTHER.items():
                factor *= config.methods[method].learning_rate_factor
                tried = variant(method, changes, titles[method], words, {})
                methods[f"{method}_{suffix}"] = {**tried, "learning_rate_factor": factor}
    folder = f"{config.folder}_{RATES}" if config.folder else f"studies/{RATES}"
    kept = {key: value for key, value in content.items() if key not in _NOT_AT_RATES}
    return {**kept, "study": RATES, "folder": folder, "methods": methods, "seeds": list(seeds[:_SEEDS])}
