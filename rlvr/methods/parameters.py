"""Hyper-parameters: declared on the class of a component, checked when an instance is made."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any, ClassVar, Literal, TypeVar, dataclass_transform, get_type_hints

import pydantic

from evals.core.record import Record


@dataclass(frozen=True)
class Parameter:
    """One hyper-parameter."""

    type: Any  # float, int, bool, a Literal of strings, or one of these or None
    default: Any
    description: str
    bounds: Mapping[str, float]  # pydantic's keywords (ge, le, gt) and their values


def hyper_parameter(
    default: object,
    description: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
) -> Any:
    """Declare a dataclass field.

    The default is the value where a configuration gives none, and has to satisfy the bounds itself; every accepted
    value is greater than ``above``. The description is one line, with the unit.
    """
    bounds = {"ge": minimum, "le": maximum, "gt": above}
    given = {keyword: bound for keyword, bound in bounds.items() if bound is not None}
    return dataclasses.field(default=default, metadata={"description": description, "bounds": given})


@cache
def parameters_of(declared: type[Any]) -> Mapping[str, Parameter]:
    """Describe the hyper-parameters of a dataclass, in the order of its fields."""
    hints = get_type_hints(declared)
    return {
        field.name: Parameter(hints[field.name], field.default, **field.metadata)
        for field in dataclasses.fields(declared)
    }


def record_of(
    title: str, parameters: Mapping[str, Parameter], base: type[Record] = Record, **others: Any
) -> type[Record]:
    """Build the record that checks values of ``parameters``; ``others`` are further fields as pydantic takes them."""
    field: Any = pydantic.Field
    fields: dict[str, Any] = {
        name: (parameter.type, field(parameter.default, description=parameter.description, **parameter.bounds))
        for name, parameter in parameters.items()
    }
    return pydantic.create_model(title, __base__=base, **others, **fields)


@dataclass(frozen=True)
class Component:
    """The base of all components of a method: frozen dataclasses of hyper-parameters that can be called."""

    kind: ClassVar[str]  # the part of a method that it is; its base class says it
    name: ClassVar[str]  # in a catalogue entry; the decorator component gives it
    record_base: ClassVar[type[Record]] = Record  # of the record of its part of a catalogue entry

    def __post_init__(self) -> None:
        declared: Any = type(self)
        _record_of_instances(declared).parse(vars(self), f"{self.kind} {self.name}")

    @classmethod
    def parameters(cls) -> Mapping[str, Parameter]:
        """Describe what a catalogue entry may say of the component, in the order of its fields."""
        declared: Any = cls
        return parameters_of(declared)

    @classmethod
    def record(cls, **others: Any) -> type[Record]:
        """Build the record that checks the component's part of a catalogue entry, with ``others`` of its fields."""
        literal: Any = Literal
        return record_of(cls.__name__, cls.parameters(), cls.record_base, name=(literal[cls.name], ...), **others)


@cache
def _record_of_instances(declared: type[Any]) -> type[Record]:
    described: Any = declared
    return record_of(declared.__name__, parameters_of(described))


C = TypeVar("C", bound=Component)


@dataclass_transform(frozen_default=True)
def component(name: str) -> Callable[[type[C]], type[C]]:
    """Make a class a component of that name; no other list mentions it."""

    def declare(declared: type[C]) -> type[C]:
        if not hasattr(declared, "kind"):
            raise TypeError(f"{declared.__name__} is of no kind: its base has to be PolicyLoss or another component's")
        declared.name = name
        return dataclass(frozen=True)(declared)

    return declare


def components_of(module: ModuleType) -> Iterator[type[Component]]:
    """Find the components that a module declares."""
    for value in vars(module).values():
        is_component = isinstance(value, type) and issubclass(value, Component) and "name" in vars(value)
        if is_component and value.__module__ == module.__name__:
            yield value
