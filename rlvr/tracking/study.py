"""Projecting a whole study, and projecting it again where the files have moved on since."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from evals.core.errors import UserError
from evals.core.files import read_json, write_json
from evals.tables.records import BASE, Run, parse_runs, read_results_of
from rlvr.tracking.database import open_experiment, writing
from rlvr.tracking.entries import SHOWN_FOLDERS, entries
from rlvr.tracking.projection import project
from rlvr.tracking.under_way import UNDER_WAY

_RECORD_KEYS = ("study", "benchmarks", "runs")


@dataclass(frozen=True)
class TrackedStudy:
    """What is projected: a study's runs and the benchmarks that they were scored on."""

    study: str
    benchmarks: tuple[str, ...]
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class Places:
    """Where it is read and written.

    Attributes:
        results: results/.
        database: SQLite file.
        artifacts: directory for copies of tables, figures and manifests.
        record: file that says what was projected, so that it can be projected again without the workflow. The study's
            own scores, comparisons, tables and figures lie beside it.
    """

    results: Path
    database: Path
    artifacts: Path
    record: Path

    @property
    def own(self) -> Path:
        """Directory of what is the study's alone; runs, problems and samples may be shared with other studies."""
        return self.record.parent


def project_study(tracked: TrackedStudy, places: Places) -> dict[str, int]:
    """Project a study and write the record.

    Returns:
        How many runs were created, kept, replaced and removed.

    Raises:
        UserError: a result is missing or malformed, or the database cannot be written.
    """
    results = read_results_of(tracked.runs, _scores(tracked, places), places.own / "comparisons.json")
    planned = list(entries(tracked.study, results, places.results, places.own))
    with writing(places.database) as database:
        experiment = open_experiment(database.client, tracked.study, places.artifacts)
        counts = project(database, experiment.experiment_id, places.artifacts, planned)
        project(database, experiment.experiment_id, places.artifacts, [], UNDER_WAY)  # all of them are shown whole now
    contents = {entry.result: entry.content for entry in planned}
    write_json(places.record, asdict(tracked) | {"projected": contents})
    return counts


def replay(places: Places, lost: bool = False) -> dict[str, int] | None:
    """Project again what the record names, if the database is missing or ``lost``, or a result is newer.

    Returns:
        The counts, or None if there was nothing to do.

    Raises:
        UserError: the study was never projected, or a result is missing or malformed.
    """
    tracked = read_record(places.record)
    written = places.record.stat().st_mtime_ns
    newer = any(path.stat().st_mtime_ns > written for path in _sources(tracked, places) if path.exists())
    return project_study(tracked, places) if newer or lost or not places.database.exists() else None


def read_record(path: Path) -> TrackedStudy:
    """Read what was projected.

    Raises:
        UserError: there is no record, or it lacks a key.
    """
    if not path.exists():
        raise UserError(f"{path}: no such file; it is written at the end of a study, so run that first")
    content = read_json(path)
    missing = [key for key in _RECORD_KEYS if not isinstance(content, dict) or key not in content]
    if missing:
        raise UserError(f"{path}: lacks {', '.join(missing)}; delete it and run the study")
    benchmarks = tuple(str(benchmark) for benchmark in content["benchmarks"])
    return TrackedStudy(str(content["study"]), benchmarks, tuple(parse_runs(path, content["runs"])))


def _scores(tracked: TrackedStudy, places: Places) -> list[Path]:
    return [places.own / "scores" / f"{benchmark}.json" for benchmark in tracked.benchmarks]


def _sources(tracked: TrackedStudy, places: Places) -> Iterator[Path]:
    """Files whose change the projection shows."""
    yield from _scores(tracked, places)
    yield places.own / "comparisons.json"
    for run in tracked.runs:
        folder = f"base/{run.model}" if run.method == BASE else f"runs/{run.run}"
        yield places.results / folder / "manifest.json"
    for folder in SHOWN_FOLDERS:
        yield from (places.own / folder).glob("*")
