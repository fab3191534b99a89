from __future__ import annotations

import shutil
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
ALL_RUNS = 1 + 4 + 7 + 14
"""The overview; 4 methods with the base model; 7 runs; 7 runs on 2 benchmarks."""


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
    uri = Store(study.results / database, study.results).uri
    return MlflowClient(tracking_uri=uri, registry_uri=uri)


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


@pytest.fixture(scope="module")
def projected(synthetic_study: Study, tmp_path_factory: pytest.TempPathFactory) -> Study:
    """A study after its first projection; read-only."""
    root = tmp_path_factory.mktemp("projected") / "study"
    shutil.copytree(synthetic_study.root, root)
    study = Study(root)
    add_table_and_figure(study)
    assert project(study) == {"created": ALL_RUNS, "kept": 0, "replaced": 0, "removed": 0}
    return study


@pytest.fixture
def tracked_study(editable_study: Study) -> Study:
    """A small study with a table and a figure, to be changed by one test."""
    add_table_and_figure(editable_study)
    return editable_study
