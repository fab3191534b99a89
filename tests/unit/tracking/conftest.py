from __future__ import annotations

from pathlib import Path

import pytest

from evals.tables.records import Run, read_runs
from rlvr.tracking.database import writing
from rlvr.tracking.study import Places
from tests.unit.engine.conftest import make_run, study_files
from tests.unit.synthetic_results import Study

__all__ = ["make_run", "study_files"]  # fixtures of a run of the local engine


def runs_named(study: Study) -> tuple[Run, ...]:
    """All runs of the study's run sheet."""
    return tuple(read_runs(study.runs_file))


def places_of(study: Study) -> Places:
    """Where the commands look by default."""
    results = study.results
    return Places(results, results / "mlflow.db", results / "mlflow-artifacts", results / "tracking.json")


def add_table_and_figure(study: Study) -> None:
    """Stand-ins for what the overview run carries."""
    for path, content in {
        study.results / "tables/main.md": "## Main\n\n| a |\n\n## Second\n",
        study.results / "tables/main.manifest.json": "{}",
        study.results / "figures/scores.png": "png",
    }.items():
        Path(path).parent.mkdir(exist_ok=True)
        path.write_text(content)


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with MLflow's tables and nothing in them, to copy: making them takes a second."""
    path = tmp_path_factory.mktemp("database") / "mlflow.db"
    with writing(path):
        pass
    return path


@pytest.fixture
def tracked_study(editable_study: Study) -> Study:
    """A small study with a table and a figure, to be changed by one test."""
    add_table_and_figure(editable_study)
    return editable_study
