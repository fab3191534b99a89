"""Hyper-parameters described once: the description checks a value and becomes its JSON Schema.

Every piece of a method is a frozen dataclass whose fields are declared with :func:`hyper_parameter` and checked by
:func:`check_hyper_parameters` in ``__post_init__``. ``rlvr.methods.schema`` writes the same descriptions out, so that
a configuration can be checked without importing torch and gets the same answer.
"""

from __future__ import annotations

import dataclasses
import math
import operator
import types
from collections.abc import Callable
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

_JSON_TYPES = {float: "number", int: "integer", bool: "boolean"}
_BOUNDS: dict[str, tuple[str, Callable[[float, float], bool]]] = {
    "minimum": (">=", operator.ge),
    "maximum": ("<=", operator.le),
    "exclusiveMinimum": (">", operator.gt),
    "exclusiveMaximum": ("<", operator.lt),
}


def hyper_parameter(
    default: object,
    description: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
    below: float | None = None,
) -> Any:
    """Declare a dataclass field with its default, its one-line description and its bounds.

    Args:
        default: value in the catalogue's default composition; it has to satisfy the bounds itself.
        description: what it is, with its unit; shown in the schema.
        minimum: smallest accepted value.
        maximum: largest accepted value.
        above: every accepted value is greater than this.
        below: every accepted value is smaller than this.
    """
    bounds = {"minimum": minimum, "maximum": maximum, "exclusiveMinimum": above, "exclusiveMaximum": below}
    given = {keyword: bound for keyword, bound in bounds.items() if bound is not None}
    return dataclasses.field(default=default, metadata={"description": description, "bounds": given})


def property_schemas(piece: Any) -> dict[str, dict[str, Any]]:
    """JSON Schema of every hyper-parameter of the dataclass (not instance) ``piece``, by field name.

    Raises:
        TypeError: a field's type is none of float, int, bool, a Literal of strings, or one of these or None.
    """
    hints = get_type_hints(piece)
    return {field.name: _property_schema(field, hints[field.name]) for field in dataclasses.fields(piece)}


def check_hyper_parameters(piece: Any) -> None:
    """Check every field of the dataclass instance ``piece`` against its declaration.

    Raises:
        ValueError: one line with the piece, the field, the value and what is accepted.
    """
    for name, schema in property_schemas(type(piece)).items():
        value = getattr(piece, name)
        if not _accepts(schema, value):
            raise ValueError(f"{type(piece).__name__}.{name} is {value!r}; accepted: {_accepted_values(schema)}")


def _property_schema(field: dataclasses.Field[Any], hint: Any) -> dict[str, Any]:
    """JSON Schema of one field whose resolved annotation is ``hint``."""
    alternatives = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    required = [alternative for alternative in alternatives if alternative is not type(None)]
    if len(required) != 1:
        raise TypeError(f"{field.name}: {hint} is not a supported type of hyper-parameter")
    schema: dict[str, Any] = {"description": field.metadata["description"], "default": field.default}
    optional = len(required) < len(alternatives)
    if get_origin(required[0]) is Literal:
        schema["enum"] = [*get_args(required[0]), *([None] if optional else [])]
    elif required[0] in _JSON_TYPES:
        json_type = _JSON_TYPES[required[0]]
        schema["type"] = [json_type, "null"] if optional else json_type
    else:
        raise TypeError(f"{field.name}: {hint} is not a supported type of hyper-parameter")
    schema.update(field.metadata["bounds"])
    return schema


def _accepts(schema: dict[str, Any], value: object) -> bool:
    """Whether ``value`` satisfies one property schema made by :func:`_property_schema`."""
    if "enum" in schema:
        return value in schema["enum"]
    json_types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if value is None or isinstance(value, bool):
        return ("null" if value is None else "boolean") in json_types
    if not isinstance(value, int | float) or not math.isfinite(value):
        return False
    if "number" not in json_types and not ("integer" in json_types and isinstance(value, int)):
        return False
    return all(holds(value, schema[keyword]) for keyword, (_, holds) in _BOUNDS.items() if keyword in schema)


def _accepted_values(schema: dict[str, Any]) -> str:
    """The accepted values in words, such as ``number > 0 and <= 1, or null``."""
    if "enum" in schema:
        return ", ".join("null" if choice is None else str(choice) for choice in schema["enum"])
    json_types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    bounds = [f"{sign} {schema[keyword]:g}" for keyword, (sign, _) in _BOUNDS.items() if keyword in schema]
    words = " ".join([json_types[0], " and ".join(bounds)]).strip()
    return f"{words}, or null" if "null" in json_types else words
