"""The components that exist. Their modules are imported to find them, which loads no torch."""

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from pkgutil import walk_packages
from types import ModuleType
from typing import Annotated, Any, Optional, Union

from pydantic import Field, create_model

from evals.core.record import Record
from rlvr.methods.parameters import Component

OPTIONAL_KINDS = ("reward_shaping", "token_weights", "correction", "kl", "entropy_bonus", "selection")
KINDS = (
    *("reward_shaping", "advantage", "token_weights", "loss", "correction", "kl", "entropy_bonus"),
    *("assignment", "selection"),
)
BATCHING_KINDS = ("assignment", "selection")
"""The kinds that a catalogue entry has under ``batching``."""


def components_of(module: ModuleType) -> Iterator[type[Component]]:
    """Find the components that a module declares."""
    for value in vars(module).values():
        is_component = isinstance(value, type) and issubclass(value, Component) and "name" in vars(value)
        if is_component and value.__module__ == module.__name__:
            yield value


@cache
def components() -> Mapping[str, Mapping[str, type[Any]]]:
    """Kind -> name -> class of every component of this package, sorted by name."""
    package = import_module(__package__)
    known: dict[str, dict[str, type[Component]]] = {kind: {} for kind in KINDS}
    for module in walk_packages(package.__path__, f"{__package__}."):
        for declared in components_of(import_module(module.name)):
            other = known[declared.kind].setdefault(declared.name, declared)
            if other is not declared:
                raise ValueError(f"{declared} has the {declared.kind} name {declared.name} of {other}")
    return {kind: dict(sorted(of_kind.items())) for kind, of_kind in known.items()}


def defaults(declared: type[Component]) -> dict[str, Any]:
    """Return what a catalogue entry need not say of a component."""
    return {name: parameter.default for name, parameter in declared.parameters().items()}


@cache
def composition() -> type[Record]:
    """Build the record of the components of a resolved catalogue entry."""

    def of(kind: str) -> Any:
        records = [declared.record() for declared in components()[kind].values()]
        union: Any = Union
        of_kind = Annotated[union[tuple(records)], Field(discriminator="name")] if len(records) > 1 else records[0]
        return (Optional[of_kind], None) if kind in OPTIONAL_KINDS else (of_kind, ...)  # noqa: UP045 (a value)

    batching = {kind: of(kind) for kind in BATCHING_KINDS}
    fields: dict[str, Any] = {kind: of(kind) for kind in KINDS if kind not in BATCHING_KINDS}
    fields["batching"] = (create_model("Batching", __base__=Record, **batching), ...)
    return create_model("Composition", __base__=Record, **fields)
