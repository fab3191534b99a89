"""The stages of a plan by their names, such as ``train tiny-dapo-s1``."""

import copy
from collections.abc import Mapping
from typing import Any

from evals.core.yaml_file import read_yaml
from rlvr.stages.stage import Stage
from rlvr.study.plan import Plan
from rlvr.study.source_files import REPOSITORY
from rlvr.study.targets import Targets


def stages_of(plan: Plan) -> dict[str, Any]:
    """Kind and wildcards -> the stage; the main study's folder is empty, and left out."""
    return {
        " ".join([stage.kind, *filter(None, stage.wildcards.values())]): stage for stage in Targets(plan).jobs.stages
    }


def study_with(name: str, **changes: Any) -> dict[str, Any]:
    """A study of config/ with other sections, or without those that are None."""
    content = {**read_yaml(REPOSITORY / "config" / name), **changes}
    return {key: value for key, value in content.items() if value is not None}


REMOVED = object()
"""The value of a key that :func:`replaced` takes out."""


def replaced(content: Mapping[str, Any], dotted: str, value: Any) -> dict[str, Any]:
    """A copy of a study with the value under a dotted key replaced."""
    copied: dict[str, Any] = copy.deepcopy(dict(content))
    *parents, key = dotted.split(".")
    section = copied
    for parent in parents:
        section = section.setdefault(parent, {})
    section[key] = value
    if value is REMOVED:
        del section[key]
    return copied


def changed(content: Mapping[str, Any], dotted: str, value: Any) -> Plan:
    """The plan of a study with the value under a dotted key replaced."""
    return Plan.read(replaced(content, dotted, value), "config/changed.yaml")


def remade(before: Plan, after: Plan) -> set[str]:
    """The stages of both plans that one of them would make again: other settings or inputs."""
    old, new = stages_of(before), stages_of(after)
    return {name for name in old.keys() & new.keys() if identity(old[name]) != identity(new[name])}


def identity(stage: Stage) -> tuple[Any, ...]:
    """What decides whether a stage is made again."""
    return stage.settings(), stage.inputs(), stage.paths()
