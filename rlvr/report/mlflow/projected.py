"""The records of what was projected into MLflow, from which it is projected again without the workflow."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

from pydantic import ConfigDict, Field

from evals.core.errors import UserError
from evals.core.files import sha256_file, write_json
from evals.core.record import Record
from evals.core.records import Run
from evals.results import read_results
from rlvr.report.mlflow.database import Store
from rlvr.report.mlflow.experiment import Experiment
from rlvr.report.mlflow.in_progress import IN_PROGRESS
from rlvr.report.mlflow.planned_run import NOTE_TAG, PlannedRun, content_hash, note
from rlvr.report.mlflow.study import study_runs, tables_and_figures
from rlvr.report.provenance import run_directory

_FOLDERS = {".png": "figures", ".svg": "figures", ".md": "tables", ".csv": "tables"}


class TrackedStudy(Record):
    """A finished study, the content of ``tracking.json``.

    The study's own scores, comparisons, tables and figures lie beside that file; runs, problems and samples lie in
    results/ and may be shared with other studies.

    Attributes:
        projected: result -> content hash of every MLflow run that was made.
    """

    study: str
    benchmarks: tuple[str, ...]
    runs: tuple[Run, ...]
    projected: dict[str, str] = Field(default_factory=dict)

    def plan(self, record: Path, results: Path) -> list[PlannedRun]:
        """Plan its MLflow runs; raises UserError if a result is missing or malformed."""
        scores = [record.with_name("scores") / f"{benchmark}.json" for benchmark in self.benchmarks]
        read = read_results(self.runs, scores, record.with_name("comparisons.json"))
        return list(study_runs(self.study, read, results, record.parent))

    def project(self, record: Path, results: Path, store: Store) -> dict[str, int]:
        """Bring MLflow into line with the study and write the record.

        Args:
            record: the study's ``tracking.json``.
            results: results/.
            store: the database.

        Returns:
            How many runs were created, kept, replaced and removed.

        Raises:
            UserError: a result is missing or malformed, or the database cannot be written.
        """
        planned = self.plan(record, results)
        with Experiment.opened(store, self.study) as experiment:
            counts = experiment.bring_into_line(planned)
            experiment.bring_into_line([], IN_PROGRESS)  # all trainings are shown as finished now
        written = self.model_copy(update={"projected": {plan.result: plan.content for plan in planned}})
        write_json(record, written.to_json())
        return counts

    def sources(self, record: Path, results: Path) -> Iterator[Path]:
        """The files whose change the projection shows."""
        yield from (record.with_name("scores") / f"{benchmark}.json" for benchmark in self.benchmarks)
        yield record.with_name("comparisons.json")
        yield from (run_directory(run, results) / "manifest.json" for run in self.runs)
        yield from tables_and_figures(record.parent)


class TrackedExtra(Record):
    """An extra result of a study, such as the claims of the papers: one run, the content of ``{name}.tracking.json``.

    Attributes:
        study: name of the experiment.
        name: such as ``phenomena``; projecting it leaves all other results alone.
        title: name of its MLflow run.
        note: Markdown file that describes the run up to its second section; relative to the record, as all files are.
        files: pages, tables and figures.
        projected: content hash of the MLflow run that was made.
    """

    model_config = ConfigDict(validate_by_name=True, serialize_by_alias=True)

    study: str
    name: str = Field(alias="part")
    title: str
    note: str
    files: tuple[str, ...]
    projected: str = ""

    @classmethod
    def of(cls, record: Path, study: str, name: str, title: str, description: Path, files: Sequence[Path]) -> Self:
        """The extra result of these files, which may lie anywhere."""
        place = record.parent
        relative = [os.path.relpath(path, place) for path in files]
        note_path = os.path.relpath(description, place)
        return cls(study=study, part=name, title=title, note=note_path, files=tuple(relative))

    def plan(self, record: Path) -> PlannedRun:
        """Plan its MLflow run; raises UserError if a file is missing."""
        paths = list(self.sources(record, record.parent))
        for path in paths:
            if not path.is_file():
                raise UserError(f"{path}: no such file")
        description, *files = paths
        tags = {"study": self.study, "stage": self.name, NOTE_TAG: note(description, 2)}
        content = content_hash(tags, {path.name: sha256_file(path) for path in files})
        now = max(path.stat().st_mtime_ns for path in files) // 1_000_000
        # Pages lie to each other as on disk, so that their links hold.
        folders = [os.path.dirname(name) for name in self.files]
        artifacts = {path: _FOLDERS.get(path.suffix, folder) for path, folder in zip(files, folders, strict=True)}
        result, tags = f"{self.name} {self.study}", tags | {"fingerprint": content}
        return PlannedRun(result, self.title, content, tags, now, now, artifacts=artifacts)

    def project(self, record: Path, results: Path, store: Store) -> dict[str, int]:
        """Bring MLflow into line with the extra result and write the record; as :meth:`TrackedStudy.project`."""
        plan = self.plan(record)
        with Experiment.opened(store, self.study) as experiment:
            counts = experiment.bring_into_line([plan], self.name)
        write_json(record, self.model_copy(update={"projected": plan.content}).to_json())
        return counts

    def sources(self, record: Path, results: Path) -> Iterator[Path]:
        """The files whose change the projection shows."""
        return (record.parent / name for name in (self.note, *self.files))


def read_tracked(record: Path) -> TrackedStudy | TrackedExtra:
    """Read what was projected.

    Raises:
        UserError: there is no such file, or it is no such record.
    """
    if not record.exists():
        raise UserError(f"{record}: no such file; it is written at the end of a study, so run that first")
    return TrackedStudy.read(record) if record.name == "tracking.json" else TrackedExtra.read(record)


def project_newer(record: Path, results: Path, store: Store, lost: bool = False) -> dict[str, int] | None:
    """Project again what the record names, if the database is missing or ``lost``, or a file is newer.

    Returns:
        The counts, or None if there was nothing to do.

    Raises:
        UserError: the study was never projected, or a result is missing or malformed.
    """
    tracked = read_tracked(record)
    written = record.stat().st_mtime_ns
    newer = any(path.stat().st_mtime_ns > written for path in tracked.sources(record, results) if path.exists())
    return tracked.project(record, results, store) if newer or lost or not store.database.exists() else None
