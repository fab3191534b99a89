import shutil
from pathlib import Path

import pytest
from mlflow.entities import Run
from mlflow.tracking import MlflowClient

from evals.results import read_results
from evals.tables.by_seed import write_by_seed_table
from evals.tables.main import write_main_table
from rlvr.report.mlflow.projection import project as project_study
from rlvr.report.mlflow.store import Store
from tests.unit.engine.conftest import make_run, study_files
from tests.unit.synthetic_results import Study

__all__ = ["make_run", "study_files"]  # fixtures of a run of the local engine

BENCHMARKS = ("chain_3", "nested_sums")
ALL_RUNS = 7 + 4 + 1
"""The base model and two seeds of three methods; these and the base model as rows of the main table; the tables."""


def project(study: Study) -> int:
    """Show the study in the database of its results."""
    return project_study(study.results, Store(study.results))


def client_of(study: Study) -> MlflowClient:
    """MLflow's public client of that database."""
    uri = Store(study.results).uri
    return MlflowClient(tracking_uri=uri, registry_uri=uri)


def shown(study: Study, experiment: str = "laptop") -> dict[str, Run]:
    """Every run of ours in the experiment, by its name, of which there is one each."""
    client = client_of(study)
    number = client.get_experiment_by_name(experiment).experiment_id
    runs = [run for run in client.search_runs([number], max_results=1000) if "rlvr.result" in run.data.tags]
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
    write_by_seed_table(read, results / "tables/by_seed")
    (results / "figures").mkdir(exist_ok=True)
    (results / "figures/scores.png").write_text("png")


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with MLflow's tables and nothing in them, to copy: making them takes a second."""
    store = Store(tmp_path_factory.mktemp("database"))
    with store.writing():
        pass
    return store.database


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
