from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from mlflow.entities import Run
from mlflow.tracking import MlflowClient

from evals.results import read_results
from evals.tables.main import write_main_table
from rlvr.report.mlflow.projection import project as project_study
from rlvr.report.mlflow.store import Store
from tests.unit.engine.conftest import make_run, study_files
from tests.unit.synthetic_results import Study

__all__ = ["make_run", "study_files"]  # fixtures of a run of the local engine

BENCHMARKS = ("chain_3", "nested_sums")
ALL_RUNS = 7 + 4 + 1
"""The base model and two seeds of three methods; these and the base model as rows of the main table; the tables."""


def store_of(study: Study, database: str = "mlflow.db") -> Store:
    return Store(study.results / database, study.results / "mlflow-artifacts")


def project(study: Study, database: str = "mlflow.db") -> int:
    """Show the study in a database of its results."""
    return project_study(study.results, study.results, store_of(study, database))


def client_of(study: Study, database: str = "mlflow.db") -> MlflowClient:
    """MLflow's public client of that database."""
    uri = store_of(study, database).uri
    return MlflowClient(tracking_uri=uri, registry_uri=uri)


def shown(study: Study, database: str = "mlflow.db", experiment: str = "laptop") -> dict[str, Run]:
    """Every run of ours in the experiment, by its name, of which there is one each."""
    client = client_of(study, database)
    found = client.get_experiment_by_name(experiment)
    assert found is not None
    runs = [
        run for run in client.search_runs([found.experiment_id], max_results=1000) if "rlvr.result" in run.data.tags
    ]
    by_name = {run.info.run_name: run for run in runs}
    assert len(by_name) == len(runs)
    return by_name


def write_tables(study: Study) -> None:
    """Write the sheet, the study's name and the main table where the workflow has them, and a figure."""
    results = study.results
    shutil.copy(study.runs_file, results)
    shutil.copy(study.study_file, results)
    scores = [results / "scores" / f"{name}.json" for name in BENCHMARKS]
    read = read_results(study.runs_file, scores, study.comparisons)
    write_main_table(read, results / "costs", results / "runs", ["a note"], results / "tables/main")
    (results / "figures").mkdir(exist_ok=True)
    (results / "figures/scores.png").write_text("png")


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with MLflow's tables and nothing in them, to copy: making them takes a second."""
    path = tmp_path_factory.mktemp("database") / "mlflow.db"
    with Store(path, path.parent).writing():
        pass
    return path


@pytest.fixture(scope="module")
def projected(synthetic_study: Study, empty_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Study:
    """A study that MLflow shows; read-only."""
    root = tmp_path_factory.mktemp("projected") / "study"
    shutil.copytree(synthetic_study.root, root)
    study = Study(root)
    write_tables(study)
    shutil.copy(empty_database, study.results / "mlflow.db")
    assert project(study) == ALL_RUNS
    return study


@pytest.fixture
def tracked_study(editable_study: Study, empty_database: Path) -> Study:
    """A finished study that MLflow does not show yet, to be changed by one test."""
    write_tables(editable_study)
    shutil.copy(empty_database, editable_study.results / "mlflow.db")
    return editable_study
