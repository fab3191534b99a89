"""A comparison that is registered before its trainings: what was fixed, when, and the one verdict that it gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from evals.core.comparisons import Comparison
from evals.core.files import fingerprint, read_json, write_json
from evals.core.record import Record

REGISTRATIONS = "registration.json"
_FREE = ("study", "execution")
"""Sections of a study that decide no result of a comparison; all others are registered."""


class Outcome(StrEnum):
    """The verdict of a registered comparison."""

    SUPERIOR = "superior"
    EQUIVALENT = "equivalent"
    INFERIOR = "inferior"
    UNDECIDED = "undecided"


class Entry(Record):
    """A registration of a study, an element of ``results/registration.json``.

    Attributes:
        registered: when, in UTC.
        sha256: of ``content`` as canonical JSON; whoever publishes it before the study can show it afterwards.
        finished: trainings of the study that were finished by then, whose results could have been seen.
        changed: keys of the study that differ from the entry before.
        content: the study, without what decides no result.
    """

    registered: str
    sha256: str
    finished: int
    changed: tuple[str, ...]
    content: dict[str, Any]


def registered_content(study: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sections of a resolved study that are registered."""
    return {key: value for key, value in study.items() if key not in _FREE}


def read_entries(path: Path) -> list[Entry]:
    """Read all registrations of a study, the first one first; none where there is no file."""
    rows = read_json(path) if path.exists() else []
    return [Entry.parse(row, f"{path}: entry {number}") for number, row in enumerate(rows, start=1)]


def register(study: Mapping[str, Any], manifests: Sequence[Path], path: Path) -> bool:
    """Register a study that is about to be carried out, unless its last registration says the same.

    Args:
        study: the resolved study; without a ``registration``, and without looks at its seeds, nothing is written.
        manifests: those of its trainings, as far as they are there.
        path: ``registration.json``, which only ever grows.

    Returns:
        Whether an entry was added.
    """
    entries, content = read_entries(path), registered_content(study)
    sha256 = fingerprint(content)
    is_fixed = "registration" in study or isinstance(study.get("seeds"), dict)
    if not is_fixed or (entries and entries[-1].sha256 == sha256):
        return False
    before = entries[-1].content if entries else content
    changed = [key for key in sorted({*before, *content}) if before.get(key) != content.get(key)]
    entry = Entry(
        registered=datetime.now(UTC).isoformat(timespec="seconds"),
        sha256=sha256,
        finished=sum(manifest.exists() for manifest in manifests),
        changed=tuple(changed),
        content=content,
    )
    write_json(path, [registered.to_json() for registered in (*entries, entry)])
    return True


def outcome(comparison: Comparison, smallest_effect: float) -> Outcome:
    """Judge a comparison by its interval (fractions of one) and the smallest effect of interest.

    Equivalent: the interval lies within plus and minus that effect. Superior or inferior: it lies above or below 0 and
    reaches that effect. So a study with power 0.8 for the effect finds a method superior in 0.8 of the cases where the
    true difference is that large. Undecided: everything else, and a comparison without an interval.
    """
    if comparison.confidence_interval is None:
        return Outcome.UNDECIDED
    low, high = comparison.confidence_interval
    if -smallest_effect < low and high < smallest_effect:
        return Outcome.EQUIVALENT
    if low > 0.0:
        return Outcome.SUPERIOR
    return Outcome.INFERIOR if high < 0.0 else Outcome.UNDECIDED
