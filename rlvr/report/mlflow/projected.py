"""The records of what was projected into MLflow, from which it is projected again without the workflow."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from pydantic import ConfigDict, Field

from evals.core.errors import UserError
from evals.core.files import read_json, sha256_file, write_json
from evals.core.record import Record
from evals.core.records import Chosen, Run
from evals.results import read_results
from rlvr.report.mlflow.database import Store
from rlvr.report.mlflow.experiment import Experiment
from rlvr.report.mlflow.in_progress import IN_PROGRESS
from rlvr.report.mlflow.planned_run import NOTE_TAG, PlannedRun, note
from rlvr.report.mlflow.study import study_runs, tables_and_figures
from rlvr.report.mlflow.views import save_views
from rlvr.report.provenance import run_directory

_PROJECTED = "projected"  # of a record: the hashes of what was projected, by result
_FOLDERS = {".png": "figures", ".svg": "figures", ".md": "tables", ".csv": "tables"}


class TrackedStudy(Record):
    """A finished study, the content of ``tracking.json``, with its own scores, tables and figures beside that file.

    Runs, problems and samples are in results/ and may be shared with other studies.
    """

    model_config = ConfigDict(extra="ignore")

    study: str
    benchmarks: tuple[str, ...]
    runs: tuple[Run, ...]
    best: tuple[str, ...] = ()  # runs of best policies, whose choices have the scores along the trainings

    def plan(self, record: Path, results: Path) -> list[PlannedRun]:
        """Plan the study's MLflow runs."""
        scores, comparisons = self._scores(record), record.with_name("comparisons.json")
        read, chosen = read_results(self.runs, scores, comparisons), map(Chosen.read, self._choices(results))
        return list(study_runs(self.study, read, results, record.parent, {each.run: each for each in chosen}))

    def sources(self, record: Path, results: Path) -> list[Path]:
        """The scores, comparisons, manifests, tables and figures."""
        manifests = [run_directory(run, results) / "manifest.json" for run in self.runs]
        own = [*self._scores(record), record.with_name("comparisons.json"), *tables_and_figures(record.parent)]
        return [*own, *manifests, *self._choices(results)]

    def _choices(self, results: Path) -> list[Path]:
        return [results / "runs" / run / "chosen.json" for run in self.best]

    def _scores(self, record: Path) -> list[Path]:
        return [record.with_name("scores") / f"{benchmark}.json" for benchmark in self.benchmarks]


class TrackedExtra(Record):
    """An extra result of a study, such as the papers' claims: one run, the content of ``{name}.tracking.json``."""

    model_config = ConfigDict(extra="ignore", serialize_by_alias=True)

    study: str
    name: str = Field(alias="part")  # such as phenomena
    title: str
    note: str  # Markdown file whose beginning describes the run; relative to the record, as all files are
    files: tuple[str, ...]  # pages, tables and figures

    @classmethod
    def of(cls, record: Path, study: str, name: str, title: str, description: Path, files: Sequence[Path]) -> Self:
        """The extra result of these files, which may be anywhere."""
        described, *others = (os.path.relpath(path, record.parent) for path in (description, *files))
        return cls(study=study, part=name, title=title, note=described, files=tuple(others))

    def plan(self, record: Path, results: Path) -> list[PlannedRun]:
        """Plan the one MLflow run."""
        description, *files = self.sources(record, results)
        for path in (description, *files):
            if not path.is_file():
                raise UserError(f"{path}: no such file")
        tags = {"study": self.study, "stage": self.name, NOTE_TAG: note(description, 2)}
        now = max(path.stat().st_mtime_ns for path in files) // 1_000_000
        # Pages are placed to each other as on disk, so that their links hold.
        folders = {path: os.path.dirname(name) for path, name in zip(files, self.files, strict=True)}
        artifacts = {path: _FOLDERS.get(path.suffix, folder) for path, folder in folders.items()}
        hashes = {path.name: sha256_file(path) for path in files}
        result = f"{self.name} {self.study}"
        return [PlannedRun.at_once(result, self.title, tags, now, hashes, artifacts=artifacts)]

    def sources(self, record: Path, results: Path) -> list[Path]:
        """The description, then the files."""
        return [record.parent / name for name in (self.note, *self.files)]


def project(tracked: TrackedStudy | TrackedExtra, record: Path, results: Path, store: Store) -> dict[str, int]:
    """Bring MLflow into line with a result and write its record, with hashes of what was projected; counts of runs."""
    planned = tracked.plan(record, results)
    with store.writing() as client:
        experiment = Experiment.of(client, tracked.study, store)
        if isinstance(tracked, TrackedExtra):
            counts = experiment.bring_into_line(planned, tracked.name)
        else:
            counts = experiment.bring_into_line(planned)
            experiment.bring_into_line([], IN_PROGRESS)  # all trainings are shown as finished now
            save_views(client, client.get_experiment(experiment.identity))
    write_json(record, tracked.to_json() | {_PROJECTED: {plan.result: plan.content for plan in planned}})
    return counts


def project_newer(record: Path, results: Path, store: Store) -> dict[str, int] | None:
    """Project again what the record names, if a file is newer or the store lacks some of it; else None.

    The store is that of other results where this directory was copied or moved, and a killed projection leaves a part.
    """
    if not record.exists():
        raise UserError(f"{record}: no such file; it is written at the end of a study, so run that first")
    tracked = (TrackedStudy if record.name == "tracking.json" else TrackedExtra).read(record)
    written = record.stat().st_mtime_ns
    newer = any(path.stat().st_mtime_ns > written for path in tracked.sources(record, results) if path.exists())
    is_shown = not newer and store.exists and _is_shown(record, tracked.study, store)
    return None if is_shown else project(tracked, record, results, store)


def _is_shown(record: Path, study: str, store: Store) -> bool:
    """Return whether the store has every run that the record says was made."""
    projected = read_json(record).get(_PROJECTED)
    if not isinstance(projected, dict):
        return False
    with store.writing() as client:
        return Experiment.shows(projected, client, study, store)
