"""Trainings in MLflow while they train."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pandas as pd
import pytest
from mlflow.entities import Run
from mlflow.tracking import MlflowClient

from evals.errors import UserError
from evals.single_writer import single_writer
from rlvr.metrics_so_far import METRICS_SO_FAR, write_metrics_so_far
from rlvr.tracking import under_way
from rlvr.tracking.database import database_uri
from rlvr.tracking.study import TrackedStudy, project_study
from rlvr.tracking.under_way import show_under_way, watch
from tests.unit.synthetic_results import Study
from tests.unit.tracking.conftest import places_of, runs_named

_RUN = "tiny-delta-s2"
_BENCHMARKS = ("chain_3", "nested_sums")


class Training:
    """A training of a study that has not come to its end."""

    def __init__(self, study: Study) -> None:
        self._study = study
        self.directory = study.results / "runs" / _RUN
        self.finished = {name: (self.directory / name).read_bytes() for name in ("manifest.json", "metrics.parquet")}
        self.metrics = pd.read_parquet(self.directory / "metrics.parquet")
        for name in self.finished:
            (self.directory / name).unlink()
        self.configure(3e-4)

    def configure(self, learning_rate: float) -> None:
        """Write run.json, as the rule does before it starts the trainer."""
        settings = {"seed": 2, "training": {"learning_rate": learning_rate}}
        (self.directory / "run.json").write_text(json.dumps(settings))

    def reach(self, steps: int) -> None:
        write_metrics_so_far(self.directory, self.metrics[:steps])

    def finish(self) -> None:
        for name, content in self.finished.items():
            (self.directory / name).write_bytes(content)

    def show(self) -> int:
        places = places_of(self._study)
        return show_under_way(places.results, places.database, places.artifacts)

    def shown(self, name: str = _RUN) -> list[Run]:
        client = self.client()
        experiment = client.get_experiment_by_name("laptop")
        assert experiment is not None
        runs = client.search_runs([experiment.experiment_id], max_results=1000)
        return [run for run in runs if run.data.tags["rlvr.result"] == f"under way {name}"]

    def client(self) -> MlflowClient:
        return MlflowClient(tracking_uri=database_uri(places_of(self._study).database))

    def assert_shows(self, steps: int, status: str) -> str:
        """That MLflow shows exactly the first ``steps``; the id of its run."""
        (run,) = self.shown()
        assert run.info.status == status
        for name in set(self.metrics) - {"step"}:
            points = self.client().get_metric_history(run.info.run_id, name)
            expected = [
                (step, value)
                for step, value in zip(self.metrics["step"][:steps], self.metrics[name][:steps], strict=True)
                if value == value
            ]
            assert sorted((point.step, point.value) for point in points) == expected, name
        return str(run.info.run_id)


@pytest.fixture
def training(tracked_study: Study, empty_database: Path) -> Training:
    """All others of the study are finished, and nothing was projected yet."""
    shutil.copy(empty_database, places_of(tracked_study).database)
    for path in (tracked_study.runs_file, tracked_study.study_file):
        shutil.copy(path, tracked_study.results)
    for run in runs_named(tracked_study):
        if run.method != "base":
            (tracked_study.results / "runs" / run.run / "run.json").write_text('{"seed": 1}')
            os.utime(tracked_study.results / "runs" / run.run / "run.json", (0, 0))
    return Training(tracked_study)


def test_it_grows_in_one_run_and_ends_with_the_training(training: Training) -> None:
    with single_writer(training.directory / "state", "trains this run"):
        training.reach(0)
        training.show()
        (begun,) = training.shown()
        assert begun.data.metrics == {} and begun.info.status == "RUNNING"
        assert begun.data.params == {"seed": "2", "training.learning_rate": "0.0003"}
        assert begun.data.tags["method"] == "delta" and begun.data.tags["seed"] == "2"
        training.reach(5)
        assert training.show() == 6  # the other five are finished and wait for the study
        first = training.assert_shows(5, "RUNNING")
        training.show()  # nothing new
        training.reach(7)
        training.show()
        assert training.assert_shows(7, "RUNNING") == first == begun.info.run_id
    training.finish()
    training.show()
    assert training.assert_shows(len(training.metrics), "FINISHED") == first


def test_a_stopped_training_is_no_running_one(training: Training) -> None:
    training.reach(5)
    training.show()
    first = training.assert_shows(5, "KILLED")
    with single_writer(training.directory / "state", "trains this run"):
        training.show()
        assert training.assert_shows(5, "RUNNING") == first


def test_steps_that_were_lost_and_are_done_again_replace_what_they_were(training: Training) -> None:
    training.reach(7)
    training.show()
    first = training.assert_shows(7, "KILLED")
    training.reach(4)
    training.show()
    assert training.assert_shows(4, "KILLED") != first


def test_other_settings_are_another_training(training: Training) -> None:
    training.reach(5)
    training.show()
    training.configure(1e-4)
    training.show()
    assert training.shown() == []  # what lies there is still of the settings before
    training.reach(5)
    training.show()
    (run,) = training.shown()
    assert run.data.params["training.learning_rate"] == "0.0001"


def test_the_projection_of_the_study_takes_its_place(training: Training, tracked_study: Study) -> None:
    training.reach(5)
    assert training.show() == 6
    training.finish()
    tracked = TrackedStudy("laptop", _BENCHMARKS, runs_named(tracked_study))
    project_study(tracked, places_of(tracked_study))
    assert training.shown() == [] and training.shown("tiny-grpo-s1") == []
    assert training.show() == 0


def test_a_finished_study_with_one_training_under_way_again_shows_that_one(
    training: Training, tracked_study: Study
) -> None:
    training.finish()
    project_study(TrackedStudy("laptop", _BENCHMARKS, runs_named(tracked_study)), places_of(tracked_study))
    for name in training.finished:
        (training.directory / name).unlink()
    training.reach(3)
    assert training.show() == 1
    training.assert_shows(3, "KILLED")


def test_a_named_study_has_its_own(training: Training, tracked_study: Study) -> None:
    named = tracked_study.results / "studies" / "ablations"
    named.mkdir(parents=True)
    (named / "study.json").write_text('{"study": "ablations"}')
    sheet = [run for run in tracked_study.runs() if run["run"] == _RUN]
    (named / "runs.json").write_text(json.dumps(sheet))
    training.reach(3)
    assert training.show() == 6 + 1
    experiment = training.client().get_experiment_by_name("ablations")
    (run,) = training.client().search_runs([experiment.experiment_id])
    assert run.info.run_name == f"{_RUN} (under way)" and run.data.tags["study"] == "ablations"


def test_nothing_that_was_started_needs_no_database(tmp_path: Path) -> None:
    assert show_under_way(tmp_path, tmp_path / "mlflow.db", tmp_path / "artifacts") == 0
    assert list(tmp_path.iterdir()) == []


def test_watching_goes_on_after_an_error_and_ends_with_what_started_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looks: list[Path] = []

    def look(results: Path, *_: Path) -> None:
        looks.append(results)
        if len(looks) < 4:
            raise UserError("runs.json: is not JSON")

    parents = iter([7, 7, 7, 7, 7, 7, 1])
    monkeypatch.setattr(under_way, "show_under_way", look)
    monkeypatch.setattr("os.getppid", lambda: next(parents))
    watch(tmp_path, tmp_path / "mlflow.db", tmp_path / "artifacts", 0.001)
    assert len(looks) == 5
    assert capsys.readouterr().err == "warning: runs.json: is not JSON\n"


def test_a_directory_that_cannot_be_written_stops_no_training(tmp_path: Path) -> None:
    write_metrics_so_far(tmp_path / "missing", pd.DataFrame({"step": [1]}))
    write_metrics_so_far(tmp_path, pd.DataFrame())
    assert pd.read_parquet(tmp_path / METRICS_SO_FAR)["step"].tolist() == []
