"""Trainings in MLflow while they train."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from mlflow.entities import Run
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from evals.core.errors import UserError
from evals.core.files import read_json
from evals.core.single_writer import single_writer
from rlvr.report.mlflow import in_progress, planned_run
from rlvr.report.mlflow.database import Store
from rlvr.report.mlflow.in_progress import show_in_progress, watch
from rlvr.report.mlflow.planned_run import flatten, metric_name
from rlvr.report.mlflow.projected import TrackedExtra, project_newer
from rlvr.report.mlflow.projected import project as project_result
from rlvr.report.mlflow.server import links
from rlvr.runs.progress import METRICS_SO_FAR, remove_metrics_so_far, write_metrics_so_far
from tests.commands import rlvr_bench
from tests.unit.synthetic_results import Study
from tests.unit.tracking.conftest import ALL_RUNS, client_of, project

main = rlvr_bench()

_RUN = "tiny-delta-s2"


class Training:
    """A training of a study that has not come to its end."""

    def __init__(self, study: Study) -> None:
        self._study = study
        self.directory = study.results / "runs" / _RUN
        self.parameters = read_json(self.directory / "manifest.json")["parameters"]
        self.finished = {name: (self.directory / name).read_bytes() for name in ("manifest.json", "metrics.parquet")}
        self.metrics = pd.read_parquet(self.directory / "metrics.parquet")
        for name in self.finished:
            (self.directory / name).unlink()

    def reach(self, steps: int, reward: float | None = None, **changes: Any) -> None:
        """What the engine leaves after so many steps, with another reward or with other settings."""
        metrics = self.metrics[:steps]
        write_metrics_so_far(
            self.directory,
            {**self.parameters, **changes},
            metrics if reward is None else metrics.assign(reward_mean=reward),
        )

    def finish(self) -> None:
        for name, content in self.finished.items():
            (self.directory / name).write_bytes(content)
        remove_metrics_so_far(self.directory)

    def show(self) -> int:
        return show_in_progress(self._study.results, Store.of(self._study.results))

    def shown(self, name: str = _RUN) -> list[Run]:
        client = self.client()
        experiment = client.get_experiment_by_name("laptop")
        assert experiment is not None
        runs = client.search_runs([experiment.experiment_id], max_results=1000)
        return [run for run in runs if run.data.tags["rlvr.result"] == f"under way {name}"]

    def client(self) -> MlflowClient:
        return client_of(self._study)

    def assert_shows(self, steps: int, status: str) -> str:
        """That MLflow shows exactly the first ``steps``; the id of its run."""
        (run,) = self.shown()
        assert run.info.status == status
        for name in set(self.metrics) - {"step"}:
            points = self.client().get_metric_history(run.info.run_id, metric_name(name))
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
    shutil.copy(empty_database, Store.of(tracked_study.results).database)
    for path in (tracked_study.runs_file, tracked_study.study_file):
        shutil.copy(path, tracked_study.results)
    return Training(tracked_study)


def test_it_grows_in_one_run_and_ends_with_the_training(training: Training) -> None:
    with single_writer(training.directory / "state", "trains this run"):
        training.reach(0)
        training.show()
        (begun,) = training.shown()
        assert begun.data.metrics == {} and begun.info.status == "RUNNING"
        assert begun.data.params == flatten(training.parameters) != {}
        assert begun.data.tags["method"] == "delta" and begun.data.tags["seed"] == "2"
        training.reach(5)
        assert training.show() == 6  # the other five are finished and wait for the study
        first = training.assert_shows(5, "RUNNING")
        training.show()  # nothing new
        training.reach(7)
        training.show()
        assert training.assert_shows(7, "RUNNING") == first == begun.info.run_id
        assert training.shown()[0].info.end_time is None
    training.finish()
    training.show()
    assert training.assert_shows(len(training.metrics), "FINISHED") == first
    assert training.shown()[0].info.end_time is not None


def test_a_finished_training_is_read_once(training: Training) -> None:
    training.finish()
    training.show()
    first = training.assert_shows(len(training.metrics), "FINISHED")
    (training.directory / "metrics.parquet").unlink()
    assert training.show() == 6
    assert training.assert_shows(len(training.metrics), "FINISHED") == first


def test_a_stopped_training_is_no_running_one(training: Training) -> None:
    training.reach(5)
    training.show()
    first = training.assert_shows(5, "KILLED")
    with single_writer(training.directory / "state", "trains this run"):
        training.show()
        assert training.assert_shows(5, "RUNNING") == first


def test_a_training_that_left_nothing_to_read_keeps_what_is_shown(training: Training) -> None:
    training.reach(5)
    training.show()
    first = training.assert_shows(5, "KILLED")
    remove_metrics_so_far(training.directory)
    assert training.show() == 6
    (training.directory / METRICS_SO_FAR).touch()  # as after a power cut
    with pytest.raises(UserError, match=rf"{_RUN}/{METRICS_SO_FAR}: is not parquet"):
        training.show()
    assert training.assert_shows(5, "KILLED") == first


def test_one_that_cannot_be_read_hides_no_other(training: Training) -> None:
    (training.directory / METRICS_SO_FAR).touch()
    with pytest.raises(UserError, match="is not parquet"):
        training.show()
    assert len(training.shown("tiny-grpo-s1")) == 1


def test_steps_that_were_lost_and_are_done_again_replace_what_they_were(training: Training) -> None:
    training.reach(7)
    training.show()
    first = training.assert_shows(7, "KILLED")
    training.reach(4)
    training.show()
    second = training.assert_shows(4, "KILLED")
    training.reach(5, reward=9.0)  # all done again, and one more, between two looks
    training.show()
    (run,) = training.shown()
    assert len({first, second, run.info.run_id}) == 3
    rewards = training.client().get_metric_history(run.info.run_id, "train/reward_mean")
    assert [point.value for point in rewards] == [9.0] * 5


def test_an_interrupted_look_leaves_no_step_twice(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    original, calls = MlflowClient.log_batch, []

    def interrupted(client: MlflowClient, *arguments: Any, **named: Any) -> None:
        calls.append(named)
        if sum("tags" in call for call in calls) == 3:
            raise KeyboardInterrupt
        original(client, *arguments, **named)

    training.reach(5)
    monkeypatch.setattr(MlflowClient, "log_batch", interrupted)
    monkeypatch.setattr(planned_run, "_METRICS_PER_CALL", 50)  # two steps
    with pytest.raises(KeyboardInterrupt):
        training.show()
    monkeypatch.undo()
    training.show()
    training.assert_shows(5, "KILLED")


def test_other_settings_are_another_training(training: Training) -> None:
    training.reach(5)
    training.show()
    first = training.assert_shows(5, "KILLED")
    training.reach(5, seed=7)
    training.show()
    assert training.assert_shows(5, "KILLED") != first
    assert training.shown()[0].data.params["seed"] == "7"


def test_the_projection_of_the_study_takes_its_place(training: Training, tracked_study: Study) -> None:
    training.reach(5)
    assert training.show() == 6
    training.finish()
    project(tracked_study)
    assert training.shown() == [] and training.shown("tiny-grpo-s1") == []
    assert training.show() == 0


def test_a_finished_study_with_one_training_under_way_again_shows_that_one(
    training: Training, tracked_study: Study
) -> None:
    training.finish()
    project(tracked_study)
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
    assert show_in_progress(tmp_path, Store.of(tmp_path)) == 0
    assert list(tmp_path.iterdir()) == []


def test_the_interface_makes_a_lost_database_again_whole(
    training: Training, tracked_study: Study, empty_database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.of(tracked_study.results)
    training.finish()
    project(tracked_study)
    whole = number_of_runs(training)
    store.database.unlink()
    for part in (training.client()._tracking_client, training.client()._get_registry_client()):
        part.store.engine.dispose()  # this process would go on with the file that is gone
    with pytest.raises(UserError, match=r"mlflow\.db: is missing; `make ui`"):
        training.show()
    shutil.copy(empty_database, tracked_study.root / "made.db")
    monkeypatch.setattr(Store, "_initialise", lambda self: shutil.copy(tracked_study.root / "made.db", self.database))
    monkeypatch.setattr("rlvr.report.mlflow.server.serve", lambda *_: None)
    assert main(["ui", "--results", str(tracked_study.results), "--port", "0"]) == 0
    assert number_of_runs(training) == whole and training.shown() == []


def test_a_copied_study_shows_its_finished_trainings_as_finished_and_the_new_one_under_way(
    training: Training, tracked_study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runs of the directory that it was copied from are kept under another name."""
    training.finish()
    project(tracked_study)
    results = tracked_study.results
    table, record = results / "tables/main.md", results / "phenomena.tracking.json"
    extra = TrackedExtra.of(record, "laptop", "phenomena", "claims", table, [table])
    project_result(extra, record, results, Store.of(results))
    copy = Study(tmp_path / "copy")
    shutil.copytree(tracked_study.root, copy.root)
    sheet = read_json(copy.results / "runs.json")
    new = next(run for run in sheet if run["run"] == _RUN) | {"run": "tiny-delta-s3", "seed": 3}
    (copy.results / "runs.json").write_text(json.dumps([*sheet, new]))
    (copy.results / "runs" / new["run"]).mkdir()
    write_metrics_so_far(copy.results / "runs" / new["run"], training.parameters, training.metrics[:3])
    store = Store.of(copy.results)
    assert show_in_progress(copy.results, store) == 7, "before it is projected again"
    monkeypatch.setattr("rlvr.report.mlflow.server.serve", lambda *_: None)
    assert main(["ui", "--results", str(copy.results), "--port", "0"]) == 0
    client = client_of(copy)
    shown = {}
    for experiment in client.search_experiments():
        runs = client.search_runs([experiment.experiment_id], max_results=1000)
        shown[experiment.name] = sorted(run.data.tags["rlvr.result"] for run in runs)
    former = shown["laptop, copied, experiment 1"]
    assert len(former) == ALL_RUNS + 1 and shown["laptop"] == sorted([*former, "under way tiny-delta-s3"])
    assert {line.partition(":")[0].strip() for line in links(store, "http://here")[1:]} == {"laptop"}
    for name in ("tracking.json", record.name):
        assert project_newer(copy.results / name, copy.results, store) is None


def number_of_runs(training: Training) -> int:
    client = training.client()
    experiment = client.get_experiment_by_name("laptop")
    return len(client.search_runs([experiment.experiment_id], max_results=1000))


class Looks:
    """Stands for the display: what the looks do, one after the other."""

    def __init__(self, *errors: Exception | None) -> None:
        self._errors = list(errors)
        self.number = 0

    def __call__(self, *_: object) -> int:
        self.number += 1
        error = self._errors.pop(0)
        if error is not None:
            raise error
        return 0


def test_watching_goes_on_after_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged, busy = UserError("runs.json: is not JSON"), MlflowException("database is locked\nand more")
    looks = Looks(damaged, damaged, busy, PermissionError("no"), None, KeyboardInterrupt())
    monkeypatch.setattr(in_progress, "show_in_progress", looks)
    with pytest.raises(KeyboardInterrupt):
        watch(tmp_path, Store.of(tmp_path), 0.001)
    assert looks.number == 6
    assert capsys.readouterr().err == "".join(
        f"warning: {reason}\n" for reason in ("runs.json: is not JSON", "database is locked", "no")
    )


def test_a_database_that_was_deleted_is_watched_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    database = tmp_path / "mlflow.db"

    def look(*_: object) -> int:
        database.touch()
        return 0

    monkeypatch.setattr(in_progress, "show_in_progress", look)
    monkeypatch.setattr("time.sleep", lambda _: database.unlink())
    watch(tmp_path, Store.of(tmp_path), 0.001)
    assert capsys.readouterr().err == f"warning: {database}: was deleted; trainings are watched no longer\n"


def test_a_display_that_cannot_be_written_stops_no_training(tmp_path: Path) -> None:
    write_metrics_so_far(tmp_path / "missing", {}, pd.DataFrame({"step": [1]}))
    write_metrics_so_far(tmp_path, {}, pd.DataFrame({"step": [1, 2], "odd": [1, "a"]}))
    assert not (tmp_path / METRICS_SO_FAR).exists()
    write_metrics_so_far(tmp_path, {"seed": 1}, pd.DataFrame())
    assert pd.read_parquet(tmp_path / METRICS_SO_FAR).attrs == {"parameters": {"seed": 1}}
    remove_metrics_so_far(tmp_path)
    assert list(tmp_path.iterdir()) == []
