"""JSON Schema validation whose complaint is one line: the file, the key, what is wrong, what is accepted."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator, ValidationError
from jsonschema.exceptions import relevance

from evals.core.errors import UserError
from evals.core.files import read_json

SCHEMAS = Path(__file__).resolve().parents[2] / "workflow" / "schemas"


def read_yaml(path: Path) -> Any:
    """Read a YAML file of plain values.

    Raises:
        UserError: the file is missing or is not YAML.
    """
    try:
        # The C loader, as safe as safe_load and ten times as fast, so that Snakemake plans in a moment.
        return yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        where = getattr(error, "problem_mark", None)
        line = f" at line {where.line + 1}" if where else ""
        raise UserError(f"{path}: is not valid YAML{line} ({getattr(error, 'problem', None) or error})") from None


@cache
def read_schema(name: str) -> dict[str, Any]:
    """A schema of workflow/schemas, by file name."""
    path = SCHEMAS / name
    schema: dict[str, Any] = read_json(path) if path.suffix == ".json" else read_yaml(path)
    return schema


def check(value: Any, schema: dict[str, Any], source: str) -> None:
    """Check ``value`` against ``schema``; ``source`` names it in the message.

    Raises:
        UserError: the first and deepest thing that is wrong, in one line.
    """
    if (place := _not_finite(value)) is not None:
        raise UserError(f"{source}: {place}: is not finite; accepted: a number")
    errors = sorted(Draft202012Validator(schema).iter_errors(value), key=relevance, reverse=True)
    if errors:
        raise UserError(f"{source}: {_explain(_deepest(errors[0]))}")


def _not_finite(value: Any, place: str = "") -> str | None:
    """Where in ``value`` an infinity or NaN stands, which YAML can write and neither JSON nor a schema knows."""
    if isinstance(value, float) and not math.isfinite(value):
        return place
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    places = (_not_finite(part, f"{place}.{key}" if place else str(key)) for key, part in inner)
    return next((found for found in places if found is not None), None)


def _deepest(error: ValidationError) -> ValidationError:
    """Follow alternatives (anyOf, oneOf, if-then) down to the complaint that a person can act on."""
    while error.context:
        error = max(error.context, key=lambda inner: (len(inner.absolute_path), inner.validator == "enum"))
    return error


def _explain(error: ValidationError) -> str:
    key = ".".join(str(part) for part in error.absolute_path)
    prefix = f"{key}: " if key else ""
    schema: dict[str, Any] = error.schema if isinstance(error.schema, dict) else {}
    found: Any = error.instance
    wanted: Any = error.validator_value
    match error.validator:
        case "additionalProperties" | "unevaluatedProperties":
            known = schema.get("properties", {})
            unknown = sorted(str(name) for name in found if name not in known)
            accepted = ", ".join(known) or "none"
            return f"{prefix}unknown key {', '.join(unknown)}; accepted: {accepted}"
        case "required":
            missing = [name for name in wanted if name not in found]
            return f"{prefix}lacks {', '.join(missing)}"
        case "enum":
            return f"{prefix}is {found!r}; accepted: {', '.join(map(str, wanted))}"
        case "const":
            return f"{prefix}is {found!r}; accepted: {wanted!r}"
        case "type":
            kinds = wanted if isinstance(wanted, str) else " or ".join(wanted)
            return f"{prefix}is {found!r}; accepted: a value of type {kinds}"
        case "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum":
            signs = {
                "minimum": "at least",
                "maximum": "at most",
                "exclusiveMinimum": "above",
                "exclusiveMaximum": "below",
            }
            return f"{prefix}is {found}; accepted: {signs[str(error.validator)]} {wanted}"
        case "pattern":
            return f"{prefix}is {found!r}; accepted: {schema.get('description', f'text that matches {wanted}')}"
        case _:
            return f"{prefix}{error.message}"
