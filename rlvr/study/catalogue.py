"""The catalogue of methods: entries that extend one another, and a study's overrides of them."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from evals.core.errors import UserError
from rlvr.study.validation import check, read_schema, read_yaml

CATALOGUE = Path(__file__).resolve().parents[2] / "config" / "methods.yaml"

Entry = dict[str, Any]


@cache
def load_catalogue(path: Path = CATALOGUE) -> dict[str, Entry]:
    """All entries, as written; not to be changed, for they are read once.

    Raises:
        UserError: an entry does not fit the schema.
    """
    entries: dict[str, Entry] = read_yaml(path)
    check(entries, read_schema("methods.schema.json"), str(path))
    return entries


def resolve_method(name: str, overrides: Mapping[str, Any], catalogue: Mapping[str, Entry], source: str) -> Entry:
    """The complete entry of a study's method.

    Args:
        name: the method's name in the study.
        overrides: what the study changes; ``extends`` names the catalogue's entry if it is not ``name`` itself.
        catalogue: all entries.
        source: names the study's key in messages.

    Raises:
        UserError: no such entry, a circle of ``extends``, or a piece that is not accepted.
    """
    schema = read_schema("methods.schema.json")
    definitions = schema["$defs"]
    check(dict(overrides), {"$ref": "#/$defs/entry", "$defs": definitions}, source)
    parent = overrides.get("extends", name)
    entry = _inherit(_resolve(parent, catalogue, source, ()), overrides)
    if parent != name and "title" not in overrides:
        entry["title"] = name
    entry.pop("extends", None)
    entry = _with_defaults(entry, definitions)
    check(entry, {"$ref": "#/$defs/resolved_entry", "$defs": definitions}, source)
    return entry


def _resolve(name: str, catalogue: Mapping[str, Entry], source: str, below: tuple[str, ...]) -> Entry:
    """An entry with everything that it extends merged in."""
    if name not in catalogue:
        raise UserError(f"{source}: {name!r} is no method of the catalogue; accepted: {', '.join(catalogue)}")
    if name in below:
        raise UserError(f"{source}: {' -> '.join([*below, name])} extend one another in a circle")
    entry = catalogue[name]
    if "extends" not in entry:
        return {**deepcopy(entry), "version": [entry["version"]]}
    return _inherit(_resolve(entry["extends"], catalogue, source, (*below, name)), entry)


def _inherit(parent: Entry, entry: Mapping[str, Any]) -> Entry:
    """``entry`` on top of ``parent``, with the versions of both: a descendant is what its ancestors' code makes it."""
    versions = [*parent["version"], *([entry["version"]] if "version" in entry else [])]
    return {**_merge(parent, {key: value for key, value in entry.items() if key != "version"}), "version": versions}


def _with_defaults(entry: Entry, definitions: Mapping[str, Any]) -> Entry:
    """``entry`` with every hyper-parameter written out, so that a changed default changes what a run is."""

    def complete(seam: str, piece: Any) -> Any:
        definition = definitions.get(f"{seam}.{piece.get('name')}") if isinstance(piece, Mapping) else None
        if definition is None:
            return piece
        known = definition["properties"]
        return {**{key: known[key]["default"] for key in known if "default" in known[key]}, **piece}

    batching = entry.get("batching") or {}
    return {
        **entry,
        **{seam: complete(seam, entry.get(seam)) for seam in ("reward_shaping", "advantage", "token_weights", "loss")},
        "batching": {seam: complete(seam, batching.get(seam)) for seam in ("assignment", "selection")},
    }


def _merge(parent: Entry, changes: Mapping[str, Any]) -> Entry:
    """``parent`` with ``changes``: a piece of the same name is changed field by field, of another name replaced."""
    merged = deepcopy(parent)
    for key, value in changes.items():
        old = merged.get(key)
        if (
            isinstance(value, Mapping)
            and isinstance(old, dict)
            and value.get("name", old.get("name")) == old.get("name")
        ):
            merged[key] = _merge(old, value)
        else:
            merged[key] = deepcopy(value)
    return merged
