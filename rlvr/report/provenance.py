"""The manifests of the runs behind a report."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import ConfigDict

from evals.core.files import read_json
from evals.core.manifest import Manifest, read_manifest
from evals.core.record import Record
from evals.core.records import BASE, Run
from evals.core.run_spec import COMPONENT_FILE


class StudyName(Record):
    """The part of a resolved study, ``study.json``, that names it and its benchmarks."""

    model_config = ConfigDict(extra="ignore")

    study: str
    benchmarks: tuple[str, ...] = ()


def read_study(path: Path) -> dict[str, Any]:
    """Read a resolved study; a file that names none is a :class:`UserError`."""
    settings: dict[str, Any] = read_json(path)
    StudyName.parse(settings, str(path))
    return settings


def studies_of(results: Path) -> list[Path]:
    """The directories of the studies below results/ that were started."""
    sheets = [results / "runs.json", *sorted(results.glob("studies/*/runs.json"))]
    return [sheet.parent for sheet in sheets if sheet.exists() and sheet.with_name("study.json").exists()]


def run_directory(run: Run, directory: Path) -> Path:
    """The directory of a trained run or, for the base model's run, of the base model, below results/."""
    return directory / "base" / run.base_model if run.method == BASE else directory / "runs" / run.run


def read_run_manifest(run: Run, directory: Path) -> Manifest:
    """Read the manifest in :func:`run_directory`."""
    return read_manifest(run_directory(run, directory) / "manifest.json", "base_model" if run.method == BASE else "run")


def component_files(manifests: Iterable[Manifest], directory: Path) -> Iterator[tuple[str, Path]]:
    """Find the copies below results/ of the user's files that runs were trained with: their names, and the copies."""
    names = {name for manifest in manifests for name in manifest.inputs if Path(name).name == COMPONENT_FILE}
    for path in (directory / "components" / Path(name).parent.name / COMPONENT_FILE for name in sorted(names)):
        yield str(read_manifest(path.with_name("manifest.json"), "component").details.get("name", COMPONENT_FILE)), path
