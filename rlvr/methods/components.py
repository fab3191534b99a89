"""The components that exist. Their modules are imported to find them, which loads no torch."""

from collections.abc import Mapping
from functools import cache, partial
from importlib import import_module
from pkgutil import walk_packages
from typing import Annotated, Any, Optional, Union

from pydantic import Field, SerializeAsAny, ValidatorFunctionWrapHandler, WrapValidator, create_model

from evals.core.errors import InvalidInput, NotAccepted
from evals.core.record import Record
from rlvr.methods.component_file import read_component
from rlvr.methods.parameters import Component, components_of

OPTIONAL_KINDS = ("reward_shaping", "token_weights", "correction", "kl", "entropy_bonus", "selection")
KINDS = (
    *("reward_shaping", "advantage", "token_weights", "loss", "correction", "kl", "entropy_bonus"),
    *("assignment", "selection"),
)
BATCHING_KINDS = ("assignment", "selection")
"""The kinds that a catalogue entry has under ``batching``."""
AGGREGATION = "aggregation"
"""The kind that it has under ``loss``: a mode's name, or a component in a file."""


def part_with(kind: str) -> str | None:
    """Return the part of a catalogue entry that a component of this kind is in; None if it is a part itself."""
    return "batching" if kind in BATCHING_KINDS else "loss" if kind == AGGREGATION else None


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


def component_of(kind: str, part: Mapping[str, Any]) -> type[Any] | None:
    """Find the class of a catalogue entry's part: one of this package, or of the ``file`` that the part names.

    Raises:
        NotAccepted: the file cannot be imported, or has no such component.
    """
    name = str(part.get("name"))
    return read_component(kind, str(part["file"]), name) if "file" in part else components().get(kind, {}).get(name)


def defaults(declared: type[Component]) -> dict[str, Any]:
    """Return what a catalogue entry need not say of a component."""
    return {name: parameter.default for name, parameter in declared.parameters().items()}


@cache
def composition() -> type[Record]:
    """Build the record of the components of a resolved catalogue entry."""

    def of(kind: str) -> Any:
        records = [declared.record() for declared in components()[kind].values()]
        union: Any = Union
        of_package = Annotated[union[tuple(records)], Field(discriminator="name")] if len(records) > 1 else records[0]
        annotated: Any = Annotated
        as_any = SerializeAsAny()  # type: ignore[type-arg]
        of_kind = annotated[of_package, as_any, WrapValidator(partial(checked_part, kind))]
        return (Optional[of_kind], None) if kind in OPTIONAL_KINDS else (of_kind, ...)  # noqa: UP045 (a value)

    batching = {kind: of(kind) for kind in BATCHING_KINDS}
    fields: dict[str, Any] = {kind: of(kind) for kind in KINDS if kind not in BATCHING_KINDS}
    fields["batching"] = (create_model("Batching", __base__=Record, **batching), ...)
    return create_model("Composition", __base__=Record, **fields)


def checked_part(kind: str, part: Any, of_package: ValidatorFunctionWrapHandler) -> Any:
    """Check a part of an entry by the record of its component, which a file of the user's may declare."""
    if not isinstance(part, Mapping) or "file" not in part:
        return of_package(part)
    if "name" not in part:
        raise NotAccepted("lacks name")
    declared: Any = component_of(kind, part)
    try:
        return _record_in_file(declared).parse(part, "")
    except InvalidInput as error:
        raise NotAccepted(error.found, error.accepted, error.key) from None


@cache
def _record_in_file(declared: type[Component]) -> type[Record]:
    return declared.record(file=(str, ...))
