"""What every result was made from, and whether the configuration would still make it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from evals.core.errors import UserError
from evals.core.files import read_json
from evals.core.manifest import Manifest, read_manifest
from evals.core.records import BASE, ProblemFile, Run

_KEYS = ("result", "current", "reasons", "code_edited_since")


@dataclass(frozen=True)
class Currency:
    """Whether a result is what the present configuration asks for.

    Attributes:
        reasons: what made it stale, one setting or input each.
        code_edited_since: source files that changed after it was made; a fact for the reader, not staleness.
    """

    result: str
    current: bool
    reasons: tuple[str, ...]
    code_edited_since: tuple[str, ...]


@dataclass(frozen=True)
class RunProvenance:
    """A run's identity and the weights it ended with; the checkpoint's hashes keyed by file name.

    Attributes:
        result: what the list of currencies calls it.
    """

    run: str
    result: str
    fingerprint: str
    created: str
    checkpoint: Mapping[str, str]


def read_status(path: Path) -> list[Currency]:
    """Read the list of results and their currency.

    Raises:
        UserError: the file is missing or an entry lacks a key.
    """
    content = read_json(path)
    if not isinstance(content, list):
        raise UserError(f"{path}: must be a list of objects with {', '.join(_KEYS)}")
    rows = []
    for number, entry in enumerate(content, start=1):
        missing = [key for key in _KEYS if not isinstance(entry, dict) or key not in entry]
        if missing:
            raise UserError(f"{path}: entry {number} lacks {', '.join(missing)}")
        if not isinstance(entry["current"], bool):
            raise UserError(f"{path}: entry {number}: current must be true or false, is {entry['current']!r}")
        edited = tuple(map(str, entry["code_edited_since"]))
        rows.append(Currency(str(entry["result"]), entry["current"], tuple(map(str, entry["reasons"])), edited))
    return rows


def read_runs_provenance(runs: Sequence[Run], directory: Path) -> list[RunProvenance]:
    """Fingerprint and checkpoint hashes of every run, from the manifests under results/.

    Raises:
        UserError: a manifest is missing or malformed.
    """
    rows = []
    for run in runs:
        manifest = read_run_manifest(run, directory)
        weights = {name: sha for name, sha in manifest.outputs.items() if name.endswith(".safetensors")}
        result = f"base model {run.model}" if run.method == BASE else f"run {run.run}"
        rows.append(RunProvenance(run.run, result, manifest.fingerprint, manifest.created, weights))
    return rows


def read_run_manifest(run: Run, directory: Path) -> Manifest:
    """The manifest of a trained run, or of the base model for the base model's run."""
    return read_manifest(run_manifest_path(run, directory), "base_model" if run.method == BASE else "run")


def run_directory(run: Run, directory: Path) -> Path:
    """The directory of a run or of its base model under results/."""
    return directory / "base" / run.model if run.method == BASE else directory / "runs" / run.run


def run_manifest_path(run: Run, directory: Path) -> Path:
    """Where that manifest lies."""
    return run_directory(run, directory) / "manifest.json"


def read_problem_sets(directory: Path) -> list[ProblemFile]:
    """Identify every problem set under ``directory/problems``.

    Raises:
        UserError: a manifest is missing or does not list problems.jsonl.
    """
    return [ProblemFile.of(path.parent) for path in sorted((directory / "problems").glob("*/manifest.json"))]
