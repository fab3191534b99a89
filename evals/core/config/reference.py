"""The reference of all configuration keys (docs/configuration.md) and JSON schemas for editors, from the records."""

import json
import re
from collections.abc import Iterator
from typing import Any

from pydantic import TypeAdapter

from evals.core.config.problem_sets import Benchmark, TrainingSet
from evals.core.config.study import StudyConfig
from evals.core.record import PARTIAL

Schema = dict[str, Any]

_FILES: dict[str, tuple[str, Any]] = {
    "study": ("A study: `config/*.yaml`, `config/papers/*.yaml`, `config/studies/*.yaml`", StudyConfig),
    "benchmark": ("A benchmark: `config/benchmarks/NAME.yaml`", Benchmark),
    "training_set": ("A training set: `config/datasets/NAME.yaml`", TrainingSet),
}
_HEAD = """# Reference of all configuration keys

`rlvr-bench reference > docs/configuration.md` writes this page from the records that check the files
(`evals/core/config/`). The guide is [config/README.md](../config/README.md). Keys in bold are required. A *name* has at
most 64 of a to z, 0 to 9 and _.
"""
_NAME = "a name of a to z, 0 to 9 and _, at most 64 of them"
_SHORT = 10  # words of a line that is written again where only another kind of file has it
_BOUNDS = {
    "minimum": "≥ {}", "exclusiveMinimum": "> {}", "maximum": "≤ {}", "exclusiveMaximum": "< {}",
    "multipleOf": "multiple of {}", "minItems": "≥ {} items", "maxItems": "≤ {} items", "minProperties": "≥ {} names",
}  # fmt: skip
_TYPES = {
    "integer": "integer", "number": "number", "string": "text", "boolean": "boolean", "null": "null",
    "object": "mapping",
}  # fmt: skip


def editor_schemas() -> dict[str, Schema]:
    """Build a JSON schema (2020-12) for every kind of configuration file, by name."""
    schemas = {name: _without_nulls(TypeAdapter(kind).json_schema()) for name, (_, kind) in _FILES.items()}
    return {**schemas, "extending_study": _of_extending_study(schemas["study"])}


def _of_extending_study(study: Schema) -> Schema:
    """The schema of a study that ``extends`` another, and so needs no key, but may take any out by null.

    Its models may extend the other's.
    """
    sections = ("Evaluation", "Statistics", "StudyExecution", "Machines", PARTIAL)
    definitions = {
        name: _with_nulls(schema) if name.startswith(sections) else schema for name, schema in study["$defs"].items()
    }
    models = study["properties"]["models"]
    extending = {"type": "object", "required": ["extends"], "properties": {"extends": {"type": "string"}}}
    known = {name: {"anyOf": [model, extending]} for name, model in models["patternProperties"].items()}
    properties = {**study["properties"], "models": {**models, "patternProperties": known}}
    return {**_with_nulls({**study, "properties": properties}), "$defs": definitions, "required": ["extends"]}


def _with_nulls(schema: Schema) -> Schema:
    """A mapping that needs no key, and may have null for each."""
    keys = {name: {"anyOf": [field, {"type": "null"}]} for name, field in schema["properties"].items()}
    return {**{name: value for name, value in schema.items() if name != "required"}, "properties": keys}


def reference_page() -> str:
    """Write the page: keys, accepted values and meanings of every mapping of every kind of file."""
    lines, schemas, written = [_HEAD], editor_schemas(), dict[str, str]()
    for name, (title, _) in _FILES.items():
        lines.append(f"## {title}\n")
        lines += _sections(schemas[name], schemas[name].get("$defs", {}), f"a {name.replace('_', ' ')}", written)
    return "\n".join(lines)


def _without_nulls(schema: Any) -> Any:
    """Drop the default null of keys that can be left out but not be null, and the titles that pydantic invents."""
    if isinstance(schema, list):
        return [_without_nulls(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: value for key, value in schema.items() if not (key == "default" and value in (None, [], {}))}
    if "type" in schema or "anyOf" in schema or "$ref" in schema:
        kept.pop("title", None) if isinstance(kept.get("title"), str) else None
    return {key: _without_nulls(value) for key, value in kept.items()}


def _sections(root: Schema, definitions: dict[str, Schema], file: str, written: dict[str, str]) -> Iterator[str]:
    """Write a list of keys for each mapping, those near the root first; a mapping that recurs has one list.

    ``written`` has each line and the place where it stands, so that a key that means the same elsewhere is only named.
    """
    waiting: list[tuple[str, str, Schema]] = [("", "", root)]
    places: dict[str, str] = {}
    while waiting:
        key_path, form, schema = waiting.pop(0)
        mappings = list(_mappings(schema, definitions))
        for mapping in mappings:
            others = [other for other in mappings if other is not mapping]
            place = f"`{key_path}`{form} of {file}" if key_path else file + _form(mapping, others)
            if key_path:
                yield f"### `{key_path}`{form}\n"
            text = re.sub(r":\w+:`~?([^`]*)`", r"`\1`", mapping["description"].strip())
            yield text.replace("``", "`").replace("\n\n", "\n") + "\n"
            repeated: dict[str, list[str]] = {}
            for key, field in mapping["properties"].items():
                inner = list(_nested(f"{key_path}.{key}" if key_path else key, field))
                known = [places[name] for _, name in inner if name in places]
                for where, name in inner:
                    if name not in places:
                        places[name] = where
                        siblings = [definitions[other] for at, other in inner if at == where and other != name]
                        waiting.append((where, _form(definitions[name], siblings), definitions[name]))
                line = _line(key, field, key in mapping.get("required", ()), known)
                is_elsewhere = file not in written.setdefault(line, place)
                if written[line] == place or (is_elsewhere and len(line.split()) <= _SHORT):
                    yield line
                else:
                    repeated.setdefault(written[line].removesuffix(f" of {file}"), []).append(f"`{key}`")
            yield from (f"- as in {place}: {', '.join(keys)}" for place, keys in repeated.items())
            yield ""


def _line(key: str, field: Schema, is_required: bool, known: list[str]) -> str:
    """Write the line of a key: accepted values, what it is if it is left out, and the meaning."""
    # Null says no more than that a key may be left out.
    branches = [branch for branch in field.get("anyOf", []) if is_required or branch != {"type": "null"}]
    value = f"the keys of `{known[0]}`" if known else _value({**field, "anyOf": branches} if branches else field)
    accepted = ", ".join(filter(None, [value, _default(field)]))
    name = f"**`{key}`**" if is_required else f"`{key}`"
    meaning = field.get("description", "")
    return ": ".join(filter(None, [f"- {name} ({accepted})", "" if meaning == value else meaning]))


def _default(schema: Schema) -> str:
    """Say what a key that is left out is; empty where it is nothing."""
    value = schema.get("default")
    if value is None or value == [] or isinstance(value, dict):
        return ""
    return f"default {value:g}" if isinstance(value, float) else f"default {json.dumps(value)}".replace('"', "")


def _form(mapping: Schema, others: list[Schema]) -> str:
    """Say what tells a mapping from the ``others`` that may stand in its place: a value, or a key of its own."""
    if not others:
        return ""
    chosen = [f"`{key}: {field['const']}`" for key, field in mapping["properties"].items() if "const" in field]
    of_others = {key for other in others for key in other["properties"]}
    return f" with {[*chosen, *(f'`{key}`' for key in mapping.get('required', ()) if key not in of_others)][0]}"


def _mappings(schema: Schema, definitions: dict[str, Schema]) -> Iterator[Schema]:
    branches = [definitions[_name(schema)]] if "$ref" in schema else schema.get("oneOf") or schema.get("anyOf") or ()
    for branch in branches:
        yield from _mappings(branch, definitions)
    if "properties" in schema:
        yield schema


def _nested(key_path: str, schema: Schema) -> Iterator[tuple[str, str]]:
    """Yield the mappings inside a key: where they stand, and the name of their definition."""
    if "$ref" in schema:
        yield key_path, _name(schema)
    for branch in schema.get("oneOf") or schema.get("anyOf") or ():
        yield from _nested(key_path, branch)
    if isinstance(schema.get("items"), dict):
        yield from _nested(f"{key_path}[]", schema["items"])
    for named in _by_name(schema):
        yield from _nested(f"{key_path}.NAME", named)


def _by_name(schema: Schema) -> list[Schema]:
    """List the schemas of the values of a mapping whose keys are names."""
    others = schema.get("additionalProperties")
    return [*schema.get("patternProperties", {}).values(), *([others] if isinstance(others, dict) else [])]


def _name(reference: Schema) -> str:
    return str(reference["$ref"]).rpartition("/")[2]


def _value(schema: Schema) -> str:
    if "$ref" in schema or "oneOf" in schema:
        kinds = [branch for branch in schema.get("oneOf", [schema]) if "$ref" not in branch]
        return " or ".join(dict.fromkeys([*(_value(branch) for branch in kinds), "mapping"]))
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_value(branch) for branch in schema["anyOf"]))
    if "const" in schema or "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        kind = f"list: {_value(schema['items'])}"
        kind += ", each once" if schema.get("uniqueItems") else ""
    elif _by_name(schema):
        kind = "mapping of names"
    else:
        kind = schema.get("x-accepted") or _TYPES.get(str(schema.get("type")), "anything")
        kind = "name" if kind == _NAME else kind
    bounds = [words.format(schema[key]) for key, words in _BOUNDS.items() if key in schema]
    return ", ".join([kind, *bounds])
