"""One MLflow run to be, as plain data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evals.core.files import fingerprint
from evals.core.records import ProblemFile

# Part of every entry's content hash: raise it when this package shows the same files differently.
VERSION = 1


@dataclass(frozen=True)
class Point:
    """A metric's value at a step; ``milliseconds`` since the epoch."""

    key: str
    value: float
    step: int
    milliseconds: int


@dataclass(frozen=True)
class Entry:
    """What MLflow shall show as one run.

    Attributes:
        result: identity within the study, such as ``run tiny-dapo-s1``.
        parent: ``result`` of the entry that this one is nested under.
        fingerprint: identity of what was asked for.
        content: hash of what was found; an entry is written again if it differs.
        metrics: single values, at step 0.
        history: values of every training step, none of them NaN.
        artifacts: files, keyed by where they are shown.
    """

    result: str
    name: str
    parent: str | None
    fingerprint: str
    content: str
    tags: Mapping[str, str]
    started: int
    ended: int
    params: Mapping[str, str] = field(default_factory=dict)
    metrics: tuple[Point, ...] = ()
    history: tuple[Point, ...] = ()
    problem_sets: tuple[ProblemFile, ...] = ()
    artifacts: Mapping[Path, str] = field(default_factory=dict)


def content_hash(*parts: Any) -> str:
    """The hash that decides whether an entry is up to date."""
    return fingerprint([VERSION, *parts])


def flatten(value: Any, prefix: str = "") -> dict[str, str]:
    """Nested settings as dotted keys: ``{"training": {"steps": 60}}`` -> ``{"training.steps": "60"}``."""
    if isinstance(value, Mapping) and value:
        flat: dict[str, str] = {}
        for key, inner in value.items():
            flat |= flatten(inner, f"{prefix}.{key}" if prefix else str(key))
        return flat
    return {prefix: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}
