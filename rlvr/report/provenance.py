"""The list of current and outdated results, and the manifests of the runs behind them."""

from pathlib import Path

from pydantic import ConfigDict

from evals.core.errors import InvalidInput
from evals.core.files import read_json
from evals.core.manifest import Manifest, read_manifest
from evals.core.record import Record
from evals.core.records import BASE, ResultStatus, Run


class StudyName(Record):
    """The part of a resolved study, ``study.json``, that names it and its benchmarks."""

    model_config = ConfigDict(extra="ignore")

    study: str
    benchmarks: tuple[str, ...] = ()


def read_status(path: Path) -> list[ResultStatus]:
    """Read ``status.json``."""
    content = read_json(path)
    if not isinstance(content, list):
        raise InvalidInput(str(path), "", "is no list", f"objects with {', '.join(ResultStatus.model_fields)}")
    return [ResultStatus.parse(row, f"{path}: entry {number}") for number, row in enumerate(content, start=1)]


def run_directory(run: Run, directory: Path) -> Path:
    """The directory of a trained run or, for the base model's run, of the base model, below results/."""
    return directory / "base" / run.model if run.method == BASE else directory / "runs" / run.run


def read_run_manifest(run: Run, directory: Path) -> Manifest:
    """Read the manifest in :func:`run_directory`."""
    return read_manifest(run_directory(run, directory) / "manifest.json", "base_model" if run.method == BASE else "run")
