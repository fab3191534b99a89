"""The components that exist and their hyper-parameters, read from the source text of this package.

A configuration is checked, and its defaults are filled in, before any work starts; importing torch for that would take
seconds. Declarations are therefore literals, and this module parses them. A test compares the result with the classes.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, Optional, Self, Union

from pydantic import Field, create_model, model_validator

from evals.core.record import Record
from rlvr.methods.aggregation import Aggregation, Mode
from rlvr.methods.parameters import Component, Parameter, hyper_parameter, parameter_of, record_of

KINDS = ("reward_shaping", "advantage", "token_weights", "loss", "assignment", "selection")
OPTIONAL_KINDS = ("reward_shaping", "token_weights", "selection")
BATCHING_KINDS = ("assignment", "selection")
"""The kinds that a catalogue entry has under ``batching``."""

_PACKAGE = Path(__file__).parent
_TYPES: Mapping[str, Any] = {"float": float, "int": int, "bool": bool}


class AggregationSettings(Record):
    """The aggregation of a method, which a catalogue entry spells within its loss."""

    aggregation: Mode
    aggregation_constant: float | None

    @model_validator(mode="after")
    def _constant_fits(self) -> Self:
        Aggregation(self.aggregation, self.aggregation_constant)
        return self


@dataclass(frozen=True)
class Declaration:
    """A component as its source declares it.

    Attributes:
        kind: one of ``KINDS``.
        name: its name in a catalogue entry.
        summary: the first paragraph of the class's docstring: its equation.
        module: where the class is.
        class_name: the class.
        parameters: name -> hyper-parameter; those of a loss include the method's aggregation.
    """

    kind: str
    name: str
    summary: str
    module: str
    class_name: str
    parameters: Mapping[str, Parameter]

    @property
    def defaults(self) -> dict[str, Any]:
        """Every hyper-parameter's default."""
        return {name: each.default for name, each in self.parameters.items()}

    @cached_property
    def record(self) -> type[Record]:
        """The record that checks the component's part of a catalogue entry."""
        literal: Any = Literal
        base = AggregationSettings if self.kind == "loss" else Record
        return record_of(self.class_name, self.parameters, base, name=(literal[self.name], ...))

    def load(self) -> type[Component]:
        """Import the class."""
        loaded: type[Component] = getattr(import_module(self.module), self.class_name)
        return loaded


@cache
def declarations() -> Mapping[str, Mapping[str, Declaration]]:
    """Kind -> name -> component, sorted by name.

    Raises:
        ValueError: two classes or two components have one name, or a declaration is not literal.
    """
    classes: dict[str, tuple[str, ast.ClassDef]] = {}
    types = dict(_TYPES)
    for path in sorted(_PACKAGE.rglob("*.py")):
        module = ".".join(["rlvr.methods", *path.relative_to(_PACKAGE).with_suffix("").parts])
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                if node.name in classes:
                    raise ValueError(f"{module}.{node.name}: {classes[node.name][0]} has a class of this name, too")
                classes[node.name] = (module, node)
            elif isinstance(node, ast.Assign) and _is_literal_type(node.value):
                types[ast.unparse(node.targets[0])] = _type(node.value, types)
    found: dict[str, dict[str, Declaration]] = {kind: {} for kind in KINDS}
    for module, node in classes.values():
        if "name" in _own_members(node):
            declared = _declaration(module, node, classes, types)
            if found[declared.kind].setdefault(declared.name, declared) is not declared:
                raise ValueError(f"{module}.{node.name}: there is a {declared.kind} of the name {declared.name}, too")
    return {kind: dict(sorted(of_kind.items())) for kind, of_kind in found.items()}


@cache
def composition() -> type[Record]:
    """The record of the components of a resolved catalogue entry."""

    def component(kind: str) -> Any:
        records = [each.record for each in declarations()[kind].values()]
        union: Any = Union
        of_kind = Annotated[union[tuple(records)], Field(discriminator="name")] if len(records) > 1 else records[0]
        return (Optional[of_kind], None) if kind in OPTIONAL_KINDS else (of_kind, ...)  # noqa: UP045 (a value)

    batching = {kind: component(kind) for kind in BATCHING_KINDS}
    fields: dict[str, Any] = {kind: component(kind) for kind in KINDS if kind not in BATCHING_KINDS}
    fields["batching"] = (create_model("Batching", __base__=Record, **batching), ...)  # type: ignore[call-overload]
    return create_model("Composition", __base__=Record, **fields)


def _declaration(
    module: str, node: ast.ClassDef, classes: Mapping[str, tuple[str, ast.ClassDef]], types: Mapping[str, Any]
) -> Declaration:
    members = _members(node, classes)
    parameters = {
        name: parameter_of(_field(value, f"{module}.{node.name}.{name}"), _type(annotation, types))
        for name, (annotation, value) in members.items()
        if isinstance(value, ast.Call)
    }
    kind, name = (ast.literal_eval(members[key][1]) for key in ("kind", "name"))
    if kind == "loss":
        parameters |= {
            "aggregation": Parameter(
                Mode,
                ast.literal_eval(members["default_aggregation"][1]),
                "how token losses become the loss of a mini-batch",
            ),
            "aggregation_constant": Parameter(
                Optional[float],  # noqa: UP045 (a value)
                None,
                "length in tokens that seq-mean-token-sum-norm divides by, such as the longest response allowed",
                {"gt": 0.0},
            ),
        }
    summary = (ast.get_docstring(node) or "").partition("\n\n")[0].replace("\n", " ")
    return Declaration(kind, name, summary, module, node.name, parameters)


Member = tuple[ast.expr, ast.expr]
"""The annotation and the value of a class attribute."""


def _own_members(node: ast.ClassDef) -> dict[str, Member]:
    return {
        statement.target.id: (statement.annotation, statement.value)
        for statement in node.body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value
    }


def _members(node: ast.ClassDef, classes: Mapping[str, tuple[str, ast.ClassDef]]) -> dict[str, Member]:
    """Members with those of the bases in this package, in the order of a dataclass's fields."""
    inherited: dict[str, Member] = {}
    for base in reversed(node.bases):
        if isinstance(base, ast.Name) and base.id in classes:
            inherited |= _members(classes[base.id][1], classes)
    return inherited | _own_members(node)


def _field(call: ast.Call, place: str) -> Any:
    try:
        arguments = [ast.literal_eval(argument) for argument in call.args]
        keywords = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    except ValueError:
        raise ValueError(f"{place}: a hyper-parameter is declared by literals") from None
    return hyper_parameter(*arguments, **keywords)


def _is_literal_type(node: ast.expr) -> bool:
    return isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "Literal"


def _type(node: ast.expr, types: Mapping[str, Any]) -> Any:
    """The type that an annotation means."""
    if isinstance(node, ast.BinOp):  # one type or None
        return Optional[_type(node.left, types)]  # noqa: UP045 (a value)
    if isinstance(node, ast.Subscript):
        literal: Any = Literal
        return literal[ast.literal_eval(node.slice)]
    return types[ast.unparse(node)]
