"""The content of study files: what one extends, several one over the other, and changes of the command line."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from evals.core.errors import InvalidInput, UserError
from evals.core.files import read_json
from evals.core.run_spec import parts_in_files
from evals.core.yaml_file import parse_yaml, read_yaml
from rlvr.study.source_files import CONFIG, REPOSITORY

EXTENDED_BY_KEY = ("training", "evaluation", "statistics", "execution")
"""Sections of which a study that extends another states only what differs; it replaces the other sections whole."""
_OF_METHODS = (
    *("folder", "title", "paper", "question", "beside", "score_at"),
    *("controls", "doses", "factorial"),
)
"""Keys that belong to a study's methods: one that extends it with methods of its own does not take them over."""


def read_study_file(
    path: Path, extended_by: tuple[Path, ...] = (), instead: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Read a study file, with everything that it takes from the file that it ``extends``.

    Args:
        path: the file.
        extended_by: the files on the way to this one.
        instead: a study that is taken in place of the file that this one extends.
    """
    content = read_json(path) if path.suffix == ".json" else read_yaml(path)  # YAML takes JSON's 1e-06 for text
    if not isinstance(content, dict):
        raise InvalidInput(str(path), "", "has no keys", "a study (config/README.md)")
    _read_files_named_in(content, path)
    if "extends" not in content:
        return content
    extended = content.pop("extends")
    accepted = "another study file, as seen from the directory of this one, or the name of one in config/"
    if not isinstance(extended, str):
        raise InvalidInput(str(path), "extends", f"is {extended!r}", accepted)
    parent = _extended(path, extended)
    on_the_way = (*extended_by, path.resolve())
    if parent.resolve() in on_the_way:
        raise InvalidInput(str(path), "extends", f"is {extended}, which extends this file", accepted)
    if not parent.is_file():
        raise InvalidInput(str(path), "extends", f"is {extended}, and there is no such file as {parent}", accepted)
    study = read_study_file(parent, on_the_way) if instead is None else instead
    if isinstance(models := content.get("models"), dict):
        content["models"] = {name: _model(name, model, study, path) for name, model in models.items()}
    return extend(study, content)


def _model(name: str, model: Any, study: Mapping[str, Any], path: Path) -> Any:
    """A model of a file, with everything that it takes from the model of the extended ``study`` that it ``extends``."""
    if not isinstance(model, dict) or "extends" not in model:
        return model
    models, extended = study.get("models"), model["extends"]
    known = {key: of for key, of in models.items() if isinstance(of, dict)} if isinstance(models, dict) else {}
    if not isinstance(extended, str) or extended not in known:
        accepted = ", ".join(map(str, known)) or "a model of the study that this file extends, which has none"
        raise InvalidInput(str(path), f"models.{name}.extends", f"is {extended!r}", accepted)
    return merged(known[extended], {key: value for key, value in model.items() if key != "extends"})


def _extended(path: Path, name: str) -> Path:
    """The file of the ``name`` that the one at ``path`` extends: beside it, or of config/."""
    beside = path.parent / name
    return beside if beside.is_file() or Path(name).name != name else CONFIG / name


def extend(study: Mapping[str, Any], content: Mapping[str, Any]) -> dict[str, Any]:
    """Put the ``content`` of a file on top of the ``study`` that it extends.

    With ``methods`` of its own it takes over none of :data:`_OF_METHODS` but the controls, with their methods, and
    these only where the reference method is the same. What random rewards gain says nothing of other methods and is
    left to the study that has it.
    """
    taken = deepcopy(dict(study))
    if isinstance(methods := content.get("methods"), dict):
        controls, reference = taken.get("controls"), taken.get("reference_method")
        taken = {key: value for key, value in taken.items() if key not in _OF_METHODS}
        same = content.get("reference_method", reference) == reference
        if same and isinstance(controls, dict) and "controls" not in content:
            controls = {kind: method for kind, method in controls.items() if kind != "random_rewards"}
            added = {name: changes for name, changes in study["methods"].items() if name in controls.values()}
            content = {**content, "methods": {**methods, **added, **methods}, "controls": controls}
    for key in EXTENDED_BY_KEY:
        if isinstance(value := content.get(key), dict) and isinstance(old := taken.get(key, {}), dict):
            content = {**content, key: _without_nulls(merged(old, value), value)}
    return _without_nulls({**taken, **content}, content)


def _read_files_named_in(content: dict[str, Any], path: Path) -> None:
    """Read the prompt's file, and see those of components from the directory of the study file ``path``.

    A file within the repository is named from there, so that the study says the same in every clone.
    """
    problems, models = content.get("problems"), content.get("models")
    if isinstance(problems, dict) and isinstance(prompt := problems.get("prompt"), dict):
        if set(prompt) != {"file"} or not isinstance(prompt["file"], str):
            raise InvalidInput(str(path), "problems.prompt", f"is {prompt}", "text, or {file: PATH}")
        try:
            problems["prompt"] = (path.parent / Path(prompt["file"]).expanduser()).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            what = f"is {prompt['file']}: {getattr(error, 'strerror', None) or error}"
            raise InvalidInput(str(path), "problems.prompt.file", what, "a text with {problem} in it once") from None
    changes = [content, *(models.values() if isinstance(models, dict) else ())]
    methods = [
        change["methods"] for change in changes if isinstance(change, dict) and isinstance(change.get("methods"), dict)
    ]
    for entry in (entry for change in methods for entry in change.values() if isinstance(entry, dict)):
        for part in parts_in_files(entry):
            if isinstance(part["file"], str):
                file = (path.parent / Path(part["file"]).expanduser()).resolve()
                inside = file.is_relative_to(REPOSITORY)
                part["file"] = file.relative_to(REPOSITORY).as_posix() if inside else str(file)


def fault_of_command(arguments: Sequence[str]) -> str:
    """Say in a line what is wrong with the configuration files of a ``snakemake`` command; empty if nothing is.

    Snakemake would not name the line of a file that cannot be read.
    """
    from snakemake.cli import get_argument_parser

    try:
        for path in map(Path, get_argument_parser().parse_known_args(list(arguments))[0].configfile or ()):
            if not path.exists():
                raise UserError(f"{path}: no such file; --configfile takes every word after it, so name targets first")
            read_study_file(path)
    except UserError as error:
        return f"error: {error}"
    return ""


def read_study(files: Iterable[str | Path], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Read the files of a study, later ones over earlier ones, then the ``changes`` of ``snakemake --config``.

    Snakemake has read them too, but reports a mistake without its line, lets the last of two equal keys win, and takes
    every nested value of ``--config`` for text: ``seeds=[1, 2]`` for ``["1", "2"]``.
    """
    content: dict[str, Any] = {}
    for path in files:
        content = merged(content, read_study_file(Path(path)))
    return merged(content, {key: _typed(value, f"--config {key}") for key, value in changes.items()})


def read_extended(files: Sequence[str | Path], changes: Mapping[str, Any]) -> dict[str, Any] | None:
    """Read the study that the last of the files extends, with the same ``changes``; None if it extends none."""
    *_, path = map(Path, files)
    extended = read_yaml(path).get("extends") if path.suffix == ".yaml" else None
    return None if extended is None else read_study([_extended(path, extended)], changes)


def merged(
    content: Mapping[str, Any],
    changes: Mapping[str, Any],
    is_same: Callable[[Mapping[str, Any], Mapping[str, Any]], bool] = lambda old, new: True,
) -> dict[str, Any]:
    """Put ``changes`` on top of ``content``: a mapping key by key if it ``is_same``, anything else in place of it."""
    result = deepcopy(dict(content))
    for key, value in changes.items():
        old = result.get(key)
        if isinstance(value, Mapping) and isinstance(old, dict) and is_same(old, value):
            value = merged(old, value, is_same)
        result[key] = deepcopy(value)
    return result


def _without_nulls(content: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Take the keys out of ``content`` that ``changes`` sets to null; what was null before stays."""
    return {key: value for key, value in content.items() if key not in changes or changes[key] is not None}


def _typed(value: Any, source: str) -> Any:
    """``value`` with its texts read as YAML."""
    if isinstance(value, Mapping):
        return {key: _typed(part, source) for key, part in value.items()}
    if isinstance(value, list):
        return [_typed(part, source) for part in value]
    return parse_yaml(value, source) if isinstance(value, str) else value
