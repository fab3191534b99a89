"""The methods of a study under doses of difference between sampler and trainer (docs/methods/corrections.md)."""

import re
from collections.abc import Iterator
from itertools import product
from typing import Any

from evals.core.config.methods import MethodChanges
from evals.core.config.sections import SeedsByLooks
from evals.core.config.study import StudyConfig
from evals.core.errors import InvalidInput
from evals.core.run_spec import VERL
from rlvr.study.catalogue import load_catalogue, resolve_method, variant


def with_doses(config: StudyConfig, source: str) -> StudyConfig:
    """Add every method but controls under each dose of a study; UserError where they could not be compared."""
    if config.doses is None:
        return config
    changing = config.changing_model
    trainings = {"training": config.training}
    trainings |= {f"models.{name}.training": model.method_training for name, model in config.models.items()}
    sampling = next((key for key, training in trainings.items() if "sampler" in training), "")
    for refused, message, accepted in (
        (not config.methods, "are given without methods", "a study with methods"),
        (config.engine == VERL, "are given with engine verl", "none with it: its sampler is vLLM"),
        (len(config.models) > 1, f"are given in a study of {len(config.models)} models", "one model"),
        (bool(changing), f"are given beside models.{changing}.methods", "changes of the study's methods"),
        (bool(sampling), f"are given beside {sampling}.sampler", "one of both"),
        (isinstance(config.seeds, SeedsByLooks), "are given with looks", "a list of seeds"),
    ):
        if refused:
            raise InvalidInput(source, "doses", message, accepted)
    methods = dict(config.methods)
    for method, kind, dose, name in _dosed(config):
        changes = config.methods[method]
        entry = resolve_method(method, changes.of_entry, load_catalogue(), f"{source}: methods.{method}")
        stated = changes.model_dump(exclude_unset=True)
        dosed = variant(method, stated, entry["title"], f"{kind} {dose}", {"sampler": {kind: dose}})
        methods[name] = MethodChanges(**dosed)
    return config.model_copy(update={"methods": methods})


def doses_of(config: StudyConfig) -> dict[str, dict[str, dict[str, str]]]:
    """List the doses of a study: kind -> dose -> method -> the method's name under it."""
    doses: dict[str, dict[str, dict[str, str]]] = {}
    for method, kind, dose, name in _dosed(config):
        doses.setdefault(kind, {}).setdefault(str(dose), {})[method] = name
    return doses


def undosed(config: StudyConfig) -> list[str]:
    """List the methods of a study without a dose of their own."""
    return [name for name, changes in config.methods.items() if "sampler" not in changes.training]


def _dosed(config: StudyConfig) -> Iterator[tuple[str, str, Any, str]]:
    assert config.doses is not None
    methods = [method for method in undosed(config) if method not in config.control_methods]
    for kind, doses in config.doses.to_json().items():
        for dose, method in product(doses, methods):
            yield method, kind, dose, re.sub(r"\W", "_", f"{method}_{kind}_{dose}")
