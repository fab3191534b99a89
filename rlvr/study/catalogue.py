"""The catalogue of methods: entries that extend one another, and what a study and its models change of them."""

from collections.abc import Mapping
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, create_model

from evals.core.config.base_models import Existing
from evals.core.config.study import StudyConfig
from evals.core.errors import InvalidInput, NotAccepted
from evals.core.record import ExtensibleRecord, Record
from evals.core.run_spec import parts_in_files
from evals.core.values import Arxiv, Title
from evals.core.yaml_file import read_yaml
from rlvr.methods.component_file import component_copy
from rlvr.methods.components import AGGREGATION, BATCHING_KINDS, KINDS, component_of, composition, defaults
from rlvr.study.benchmarks import absolute_path
from rlvr.study.source_files import CONFIG
from rlvr.study.study_file import merged

CATALOGUE = CONFIG / "methods.yaml"

Entry = dict[str, Any]
Version = Annotated[int, Field(ge=1)]


class Description(ExtensibleRecord):
    """The description that every entry of the catalogue has next to its components.

    Attributes:
        version: raised when a change of the method's code changes its results; part of a run's fingerprint.
        choices: what was chosen where paper and code differ.
    """

    title: Title
    paper: Arxiv
    version: Version
    choices: str = Field(min_length=1)


@cache
def load_catalogue(path: Path = CATALOGUE) -> dict[str, Entry]:
    """Read all entries, as written; they are read once and must not be changed."""
    entries: dict[str, Entry] = read_yaml(path)
    for name, entry in entries.items():
        Description.parse(entry, f"{path}: {name}")
        resolve_method(name, {}, entries, f"{path}: {name}")
    return entries


@cache
def resolved_entry() -> type[Record]:
    """Build the record of a complete entry: its description and every component with all hyper-parameters."""
    described: dict[str, Any] = {
        name: (field.annotation, field) for name, field in Description.model_fields.items() if name != "version"
    }
    return create_model("Entry", __base__=composition(), version=(list[Version], ...), **described)


def resolve_method(name: str, overrides: Mapping[str, Any], catalogue: Mapping[str, Entry], source: str) -> Entry:
    """Complete the entry of a study's method, called ``name`` there, with what the study changes.

    ``extends`` of these overrides names the catalogue's entry if it is not ``name`` itself; ``source`` is for messages.
    """
    parent = overrides.get("extends", name)
    entry = _inherit(_resolve(parent, catalogue, source, ()), overrides)
    if parent != name and "title" not in overrides:
        entry["title"] = name
    entry.pop("extends", None)
    entry = _with_defaults(entry)
    resolved_entry().parse(entry, source)
    return entry


def variant(
    method: str, changes: Mapping[str, Any], title: str, words: str, training: Mapping[str, Any]
) -> dict[str, Any]:
    """Make a method that is ``method`` with other ``training`` settings; ``words`` behind its title say which."""
    parent, trained = changes.get("extends", method), {**changes.get("training", {}), **training}
    return {**changes, "extends": parent, "title": f"{title}, {words}", "training": trained}


def changed_by_models(config: StudyConfig, methods: Mapping[str, Entry], source: str) -> dict[tuple[str, str], Entry]:
    """Resolve the methods that a model changes on top of what the study does."""
    changed: dict[tuple[str, str], Entry] = {}
    for model, settings in config.models.items():
        of_model = settings.methods if isinstance(settings, Existing) else None
        for name, overrides in (of_model or {}).items():
            parent = {name: {**methods[name], "version": 1}}
            entry = resolve_method(name, overrides, parent, f"{source}: models.{model}.methods.{name}")
            changed[model, name] = {**entry, "version": methods[name]["version"]}
    return changed


def entry_of_run(entry: Entry) -> Entry:
    """The part of a method's entry that decides a run, without what is left at its default.

    A component in a file of the user's is that of the results' copy, whose directory is named after its bytes.
    """
    parts = composition()
    given = {key: value for key, value in entry.items() if key in parts.model_fields}
    identity = parts.parse(given, "method").identity()
    for part in parts_in_files(identity):
        part["file"] = component_copy(Path(part["file"])).as_posix()
    return {"version": entry["version"], **identity}


def entry_that_changes(parent: str, changes: Mapping[str, Any], catalogue: Mapping[str, Entry]) -> str | None:
    """Find the entry that extends ``parent`` by these very changes, such as FIPO's for one size of model."""
    described = {"extends", *Description.model_fields}
    for name, entry in catalogue.items():
        changed = {key: value for key, value in entry.items() if key not in described}
        if entry.get("extends") == parent and changed == changes:
            return name
    return None


def _resolve(name: Any, catalogue: Mapping[str, Entry], source: str, below: tuple[str, ...]) -> Entry:
    """Merge everything that an entry extends into it."""
    if not isinstance(name, str) or name not in catalogue:
        accepted = f"{', '.join(catalogue)}, or a new name with `extends`"
        raise InvalidInput(source, "", f"{name!r} is no method of the catalogue", accepted)
    if name in below:
        raise InvalidInput(source, "", f"{' -> '.join([*below, name])} extend one another in a circle")
    entry = catalogue[name]
    if "extends" not in entry:
        return {**deepcopy(entry), "version": [entry["version"]]}
    return _inherit(_resolve(entry["extends"], catalogue, source, (*below, name)), entry)


def _inherit(parent: Entry, entry: Mapping[str, Any]) -> Entry:
    """Put ``entry`` on top of ``parent``, with the versions of both: the code of each decides the results."""
    versions = [*parent["version"], *([entry["version"]] if "version" in entry else [])]
    return {**combined(parent, {key: value for key, value in entry.items() if key != "version"}), "version": versions}


def _with_defaults(entry: Entry) -> Entry:
    """Write out every hyper-parameter, so that a changed default changes what a run is."""

    def complete(kind: str, component: Any) -> Any:
        if not isinstance(component, Mapping):
            return component
        if kind == "loss" and AGGREGATION in component:
            component = {**component, AGGREGATION: complete(AGGREGATION, component[AGGREGATION])}
        if "file" in component:
            component = {**component, "file": absolute_path(str(component["file"]))}
        try:
            declared = component_of(kind, component)
        except NotAccepted:  # the record says so, with the place
            return component
        return component if declared is None else {**defaults(declared), **component}

    batching = entry.get("batching")
    if isinstance(batching, Mapping):
        batching = {**batching, **{kind: complete(kind, batching.get(kind)) for kind in BATCHING_KINDS}}
    kinds = [kind for kind in KINDS if kind not in BATCHING_KINDS]
    return {**entry, **{kind: complete(kind, entry.get(kind)) for kind in kinds}, "batching": batching}


def combined(parent: Entry, changes: Mapping[str, Any]) -> Entry:
    """Change ``parent``: a component of the same name and file field by field, another one is replaced."""
    return merged(
        parent, changes, lambda old, new: all(new.get(key) in (None, old.get(key)) for key in ("name", "file"))
    )
