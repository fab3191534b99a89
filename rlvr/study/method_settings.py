"""The methods of a study: their catalogue entries with what the study and its models change, and training settings."""

from collections.abc import Mapping
from typing import Any

from evals.core.config.base_models import Existing
from evals.core.config.study import StudyConfig
from evals.core.errors import InvalidInput
from evals.core.run_spec import VERL
from evals.core.training_settings import LocalTraining, VerlTraining
from rlvr.study.catalogue import Entry, load_catalogue, resolve_method

_OF_RUN = ("version", "reward_shaping", "advantage", "token_weights", "loss", "batching")
"""Keys of a method's entry that decide a run; the others are for people."""
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
    """The part of a method's entry that decides a run."""
    return {key: entry.get(key) for key in _OF_RUN}


def training_of_methods(config: StudyConfig, source: str) -> dict[str, Training]:
    """Read the training settings of every method, and check that a rollout batch can be divided into its updates."""
    common = config.training.to_json()
    kind = VerlTraining if config.trained_by == VERL else LocalTraining
    training: dict[str, Training] = {}
    for name, changes in config.methods.items():
        key = f"methods.{name}.training" if changes.training else "training"
        content = decay_in_steps(common | changes.of_training, source, key)
        settings = training[name] = kind.parse(content, f"{source}: {key}")
        updates, prompts = settings.updates_per_step, settings.prompts_per_step
        accepted = ""
        if updates > prompts:
            accepted = f"at most prompts_per_step, {prompts}, so that every update has a prompt of its own"
        elif settings.rollouts_per_step % updates:
            accepted = f"a divisor of prompts_per_step * samples_per_prompt, {settings.rollouts_per_step}"
        if accepted:
            raise InvalidInput(source, f"{key}.updates_per_step", f"is {updates}", accepted)
        if config.validation is not None and (every := config.validation.every) > settings.least_steps:
            accepted = f"at most the steps that every training has, {settings.least_steps} of {name}"
            raise InvalidInput(source, "validation.every", f"is {every}", accepted)
        if (best := config.best_checkpoint) is not None and best.every >= settings.steps:
            accepted = f"less than the steps of every training, {settings.steps} of {name}"
            raise InvalidInput(source, "checkpoint.best.every", f"is {best.every}", accepted)
    return training


def decay_in_steps(settings: Mapping[str, Any], source: str, key: str) -> dict[str, Any]:
    """Replace the fraction of the training after which the learning rate falls by ``learning_rate_decay``, in steps."""
    content = dict(settings)
    fraction, steps = content.pop("learning_rate_decay_from", 1), content.get("steps")
    if fraction == 1 or steps is None:  # the engine says that steps are lacking
        return content
    decay = {"from_step": round(fraction * steps), "to_step": steps}
    if decay["to_step"] < decay["from_step"] + 2:
        found, accepted = (
            f"is {fraction}, which lowers the rate of none of {steps} steps",
            "less, or 1 for a constant rate",
        )
        raise InvalidInput(source, f"{key}.learning_rate_decay_from", found, accepted)
    return {**content, "learning_rate_decay": decay}
