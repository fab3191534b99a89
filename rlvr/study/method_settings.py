"""The methods of a study: their catalogue entries with what the study and its models change, and training settings."""

from collections.abc import Mapping
from pathlib import Path

from evals.core.config.base_models import Existing
from evals.core.config.study import StudyConfig
from evals.core.errors import InvalidInput
from evals.core.run_spec import VERL, parts_in_files
from evals.core.training_settings import LocalTraining, VerlTraining
from rlvr.methods.component_file import component_copy
from rlvr.methods.components import composition
from rlvr.study.catalogue import Entry, load_catalogue, resolve_method

Training = LocalTraining | VerlTraining


def resolve_methods(config: StudyConfig, source: str) -> dict[str, Entry]:
    """Look up every method of a study in the catalogue: method's name -> its entry with the study's changes."""
    catalogue = load_catalogue()
    return {
        name: resolve_method(name, changes.of_entry, catalogue, f"{source}: methods.{name}")
        for name, changes in config.methods.items()
    }


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
    components = composition()
    given = {key: value for key, value in entry.items() if key in components.model_fields}
    identity = components.parse(given, "method").identity()
    for part in parts_in_files(identity):
        part["file"] = component_copy(Path(part["file"])).as_posix()
    return {"version": entry["version"], **identity}


def training_of(config: StudyConfig, method: str, source: str, model: str | None = None) -> Training:
    """The settings of a method's training: the study's with the changes of the model, if one is named, and its own."""
    settings = config.models[model] if model is not None else None
    of_model = settings.training if isinstance(settings, Existing) else {}
    changes = config.methods[method].training
    key = f"methods.{method}.training" if changes else "training"
    kind = VerlTraining if config.engine == VERL else LocalTraining
    return kind.parse({**config.training, **of_model, **changes}, source, key)


def training_of_methods(config: StudyConfig, source: str) -> dict[str, Training]:
    """Read the training settings of every method."""
    training = {method: training_of(config, method, source) for method in config.methods}
    for method, settings in training.items():
        if config.validation is not None and (every := config.validation.every) > settings.least_steps:
            accepted = f"at most the steps that every training has, {settings.least_steps} of {method}"
            raise InvalidInput(source, "validation.every", f"is {every}", accepted)
        if (best := config.best_checkpoint) is not None and best.every >= settings.steps:
            accepted = f"less than the steps of every training, {settings.steps} of {method}"
            raise InvalidInput(source, "checkpoint.best.every", f"is {best.every}", accepted)
    return training
