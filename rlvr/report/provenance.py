"""List the inputs of every result, and whether it is still what the configuration asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from evals.core.errors import InvalidInput
from evals.core.files import read_json
from evals.core.manifest import Manifest, read_manifest
from evals.core.records import BASE, ResultStatus, Run


@dataclass(frozen=True)
class RunProvenance:
    """A run's identity and the weights it ended with.

    Attributes:
        result: its name in the list of statuses.
        weights: file name -> SHA-256.
    """

    run: str
    result: str
    fingerprint: str
    created: str
    weights: Mapping[str, str]


def read_status(path: Path) -> list[ResultStatus]:
    """Read ``status.json``."""
    content = read_json(path)
    if not isinstance(content, list):
        raise InvalidInput(str(path), "", "is no list", f"objects with {', '.join(ResultStatus.model_fields)}")
    return [ResultStatus.parse(row, f"{path}: entry {number}") for number, row in enumerate(content, start=1)]


def read_runs_provenance(runs: Sequence[Run], directory: Path) -> list[RunProvenance]:
    """Read fingerprint and weights of every run from the manifests under results/."""
    rows = []
    for run in runs:
        manifest = read_run_manifest(run, directory)
        weights = {name: sha256 for name, sha256 in manifest.outputs.items() if name.endswith(".safetensors")}
        result = f"base model {run.model}" if run.method == BASE else f"run {run.run}"
        rows.append(RunProvenance(run.run, result, manifest.fingerprint, manifest.created, weights))
    return rows


def run_directory(run: Run, directory: Path) -> Path:
    """The directory of a trained run or, for the base model's run, of the base model."""
    return directory / "base" / run.model if run.method == BASE else directory / "runs" / run.run


def read_run_manifest(run: Run, directory: Path) -> Manifest:
    """Read the manifest in :func:`run_directory`."""
    return read_manifest(run_directory(run, directory) / "manifest.json", "base_model" if run.method == BASE else "run")
