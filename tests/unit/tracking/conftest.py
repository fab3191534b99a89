from __future__ import annotations

from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from evals.core.records import read_runs
from rlvr.report.mlflow.database import Store
from rlvr.report.mlflow.projected import TrackedStudy
from rlvr.report.mlflow.projected import project as project_result
from tests.unit.engine.conftest import make_run, study_files
from tests.unit.synthetic_results import Study

__all__ = ["make_run", "study_files"]  # fixtures of a run of the local engine


BENCHMARKS = ("chain_3", "nested_sums")


def tracked(study: Study, drop: str = "nothing") -> TrackedStudy:
    """The study with all runs of its run sheet but those of a name."""
    runs = tuple(run for run in read_runs(study.runs_file) if drop not in run.run)
    return TrackedStudy(study="laptop", benchmarks=BENCHMARKS, runs=runs)


def project(study: Study, drop: str = "nothing", database: str = "mlflow.db") -> dict[str, int]:
    """Project the study into a database of its results."""
    results = study.results
    store = Store(results / database, results / "mlflow-artifacts")
    return project_result(tracked(study, drop), results / "tracking.json", results, store)


def client_of(study: Study, database: str = "mlflow.db") -> MlflowClient:
    """MLflow's public client of that database."""
    return MlflowClient(tracking_uri=Store(study.results / database, study.results).uri)


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
    with Store(path, path.parent).writing():
        pass
    return path


@pytest.fixture
def tracked_study(editable_study: Study) -> Study:
    """A small study with a table and a figure, to be changed by one test."""
    add_table_and_figure(editable_study)
    return editable_study
