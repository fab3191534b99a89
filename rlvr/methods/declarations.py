"""The components that exist and their hyper-parameters, read from the source text of this package.

A configuration is checked, and its defaults are filled in, before any work starts; importing torch for that would take
seconds. Declarations are therefore literals, and this module parses them. A test compares the result with the classes.
"""

import ast
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, Optional, Self, TypeGuard, Union, cast

from pydantic import Field, create_model, model_validator

from evals.core.record import Record
from rlvr.methods.aggregation import Aggregation, Mode
from rlvr.methods.parameters import (
    Component,
    Parameter,
    component,
    hyper_parameter,
    parameter_of,
    parameters_of,
    record_of,
)

KINDS = ("reward_shaping", "advantage", "token_weights", "loss", "assignment", "selection")
OPTIONAL_KINDS = ("reward_shaping", "token_weights", "selection")
BATCHING_KINDS = ("assignment", "selection")
"""The kinds that a catalogue entry has under ``batching``."""

Classes = dict[str, tuple[str, ast.ClassDef]]
"""Name -> module and definition of a class."""
Member = tuple[ast.expr, ast.expr]
"""Annotation and value of a class attribute."""

_PACKAGE = Path(__file__).parent


class AggregationSettings(Record):
    """The aggregation of a method, which a catalogue entry spells within its loss."""

    aggregation: Mode
    aggregation_constant: float | None

    @model_validator(mode="after")
    def _constant_fits(self) -> Self:
        Aggregation(self.aggregation, self.aggregation_constant)  # raises ValueError
        return self


@dataclass(frozen=True)
class Declaration:
    """A component as its source declares it."""

    kind: str
    name: str
    summary: str  # the first paragraph of the class's docstring: its equation
    module: str
    class_name: str
    parameters: Mapping[str, Parameter]  # those of a loss include the method's aggregation

    @property
    def defaults(self) -> dict[str, Any]:
        return {name: each.default for name, each in self.parameters.items()}

    @cached_property
    def record(self) -> type[Record]:
        """The record that checks the component's part of a catalogue entry."""
        literal: Any = Literal
        base = AggregationSettings if self.kind == "loss" else Record
        return record_of(self.class_name, self.parameters, base, name=(literal[self.name], ...))

    def load(self) -> type[Component]:
        return cast(type[Component], getattr(import_module(self.module), self.class_name))


@cache
def declarations() -> Mapping[str, Mapping[str, Declaration]]:
    """Kind -> name -> component, sorted by name."""
    classes: Classes = {}
    types: dict[str, Any] = {"float": float, "int": int, "bool": bool}
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
        for call in node.decorator_list:
            if not isinstance(call, ast.Call) or ast.unparse(call.func) != component.__name__:
                continue
            declared = _declaration(ast.literal_eval(call.args[0]), module, node, classes, types)
            if found[declared.kind].setdefault(declared.name, declared) is not declared:
                raise ValueError(f"{module}.{node.name}: there is a {declared.kind} of the name {declared.name}, too")
    return {kind: dict(sorted(of_kind.items())) for kind, of_kind in found.items()}


@cache
def composition() -> type[Record]:
    """The record of the components of a resolved catalogue entry."""

    def of(kind: str) -> Any:
        records = [each.record for each in declarations()[kind].values()]
        union: Any = Union
        of_kind = Annotated[union[tuple(records)], Field(discriminator="name")] if len(records) > 1 else records[0]
        return (Optional[of_kind], None) if kind in OPTIONAL_KINDS else (of_kind, ...)  # noqa: UP045 (a value)

    batching = {kind: of(kind) for kind in BATCHING_KINDS}
    fields: dict[str, Any] = {kind: of(kind) for kind in KINDS if kind not in BATCHING_KINDS}
    fields["batching"] = (create_model("Batching", __base__=Record, **batching), ...)
    return create_model("Composition", __base__=Record, **fields)


def _declaration(name: str, module: str, node: ast.ClassDef, classes: Classes, types: dict[str, Any]) -> Declaration:
    members = _members(node, classes)
    parameters = {
        key: parameter_of(_field(value, f"{module}.{node.name}.{key}"), _type(annotation, types))
        for key, (annotation, value) in members.items()
        if isinstance(value, ast.Call)
    }
    kind = ast.literal_eval(members["kind"][1])
    if kind == "loss":
        of_method = parameters_of(Aggregation)
        mode = replace(of_method["mode"], default=ast.literal_eval(members["default_aggregation"][1]))
        parameters |= {"aggregation": mode, "aggregation_constant": of_method["constant"]}
    summary = (ast.get_docstring(node) or "").partition("\n\n")[0].replace("\n", " ")
    return Declaration(kind, name, summary, module, node.name, parameters)


def _members(node: ast.ClassDef, classes: Classes) -> dict[str, Member]:
    """List the attributes with those of the bases in this package, in the order of a dataclass's fields."""
    members: dict[str, Member] = {}
    for base in reversed(node.bases):
        if isinstance(base, ast.Name) and base.id in classes:
            members |= _members(classes[base.id][1], classes)
    return members | {
        statement.target.id: (statement.annotation, statement.value)
        for statement in node.body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value
    }


def _field(call: ast.Call, place: str) -> Any:
    try:
        arguments = [ast.literal_eval(argument) for argument in call.args]
        return hyper_parameter(*arguments, **{str(each.arg): ast.literal_eval(each.value) for each in call.keywords})
    except ValueError:
        raise ValueError(f"{place}: a hyper-parameter has to be declared by literals") from None


def _type(node: ast.expr, types: dict[str, Any]) -> Any:
    """Evaluate an annotation."""
    if isinstance(node, ast.BinOp):  # one type or None
        return Optional[_type(node.left, types)]  # noqa: UP045 (a value)
    if _is_literal_type(node):
        literal: Any = Literal
        return literal[ast.literal_eval(node.slice)]
    return types[ast.unparse(node)]


def _is_literal_type(node: ast.expr) -> TypeGuard[ast.Subscript]:
    return isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Literal"
