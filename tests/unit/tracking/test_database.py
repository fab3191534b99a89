from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from filelock import FileLock
from mlflow.entities import ViewType
from mlflow.tracking import MlflowClient

from evals.core.errors import UserError
from rlvr.report.mlflow import database, server
from rlvr.report.mlflow.database import Store
from rlvr.report.mlflow.experiment import Experiment
from rlvr.report.mlflow.projected import project_newer
from tests.commands import rlvr_bench
from tests.unit.synthetic_results import Study
from tests.unit.tracking.conftest import client_of, project

main = rlvr_bench()


@pytest.fixture
def small_study(tracked_study: Study) -> Study:
    """The base model and GRPO's two seeds: the comparisons with DAPO are then not asked for."""
    runs = tracked_study.runs()[:3]
    tracked_study.runs_file.write_text(json.dumps(runs))
    return tracked_study


def test_two_first_projections_at_once_both_succeed_and_make_one_copy(small_study: Study) -> None:
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: project(small_study), range(2))
    total = 1 + 2 + 3 + 6
    assert sorted([first["created"], second["created"]]) == [0, total]
    assert sorted([first["kept"], second["kept"]]) == [0, total]
    assert not list(small_study.results.glob(".mlflow.db.new*"))


def test_a_held_lock_is_one_line(tmp_path: Path) -> None:
    with (
        FileLock(tmp_path / "mlflow.db.lock"),
        pytest.raises(UserError, match=r"mlflow\.db: another process"),
        Store.of(tmp_path).writing(lock_seconds=0.05),
    ):
        pass


def test_an_initialisation_that_was_killed_is_started_anew(tmp_path: Path) -> None:
    (tmp_path / ".mlflow.db.new").write_bytes(b"half a database")
    with Store.of(tmp_path).writing() as client:
        assert client.get_experiment("0").name == "Default"


def test_a_file_that_is_no_database_is_one_line_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    path.write_bytes(b"precious " * 1000)
    with (
        pytest.raises(UserError, match=r"mlflow\.db: is not an SQLite database") as caught,
        Store.of(tmp_path).writing(),
    ):
        pass
    assert "\n" not in str(caught.value) and path.read_bytes() == b"precious " * 1000


@pytest.mark.parametrize("damage", ["truncated", "overwritten"])
def test_a_damaged_database_is_one_line_at_once(tmp_path: Path, empty_database: Path, damage: str) -> None:
    path = tmp_path / "mlflow.db"
    content = bytearray(empty_database.read_bytes())
    if damage == "truncated":
        content = content[: len(content) // 2]
    else:
        content[8192:40960] = b"x" * 32768
    path.write_bytes(content)
    with (
        pytest.raises(UserError, match=r"mlflow\.db: is damaged .*; delete it") as caught,
        Store.of(tmp_path).writing(),
    ):
        pass
    assert "\n" not in str(caught.value) and path.read_bytes() == content


def test_a_database_that_another_program_holds_is_one_line(
    tmp_path: Path, empty_database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mlflow.db"
    path.write_bytes(empty_database.read_bytes())
    monkeypatch.setattr(database, "_BUSY_SECONDS", 0.1)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(UserError, match="database is locked"), Store.of(tmp_path).writing():
            pass
        other.execute("ROLLBACK")
    with Store.of(tmp_path).writing() as client:
        assert client.get_experiment("0").name == "Default"


def test_a_deleted_experiment_is_restored(tmp_path: Path) -> None:
    store = Store.of(tmp_path)
    with store.writing() as client:
        experiment = Experiment.of(client, "laptop", store).identity
        client.delete_experiment(experiment)
        assert Experiment.of(client, "laptop", store).identity == experiment
    assert MlflowClient(store.uri).get_experiment(experiment).lifecycle_stage == "active"


def test_a_copied_study_has_an_experiment_of_its_own_and_keeps_the_other(tmp_path: Path) -> None:
    """However often it is copied to and fro, deleted or not: nobody has to delete a database."""
    store, seen = Store.of(tmp_path), []
    with store.writing() as client:
        for place in ("here", "there", "here", "there"):
            seen.append(Experiment.of(client, "laptop", Store(store.database, tmp_path / place)).identity)
            if place == "there":
                client.delete_experiment(seen[-1])
        names = {each.experiment_id: each.name for each in client.search_experiments(view_type=ViewType.ALL)}
    assert len(set(seen)) == 4 and names[seen[-1]] == "laptop"
    assert names[seen[0]] == f"laptop, copied, experiment {seen[0]}"


def test_replay_projects_only_where_something_is_newer(small_study: Study, empty_database: Path) -> None:
    results, record, store = small_study.results, small_study.results / "tracking.json", Store.of(small_study.results)
    shutil.copy(empty_database, store.database)
    with pytest.raises(UserError, match=r"tracking\.json: no such file"):
        project_newer(record, results, store)
    project(small_study)
    assert project_newer(record, results, store) is None
    future = record.stat().st_mtime + 10
    os.utime(small_study.scores[0], (future, future))
    counts = project_newer(record, results, store)
    assert counts is not None and counts["created"] == counts["replaced"] == 0 and counts["kept"] == 12
    recreated = project_newer(record, results, Store(results / "lost.db", store.artifacts))
    assert recreated is not None and recreated["created"] == 12


def test_a_missing_table_is_one_line(small_study: Study) -> None:
    (small_study.results / "tables/main.md").unlink()
    with pytest.raises(UserError, match=r"tables/main\.md: no such file"):
        project(small_study)
    assert not (small_study.results / "mlflow.db").exists()


def test_usage_reports_are_off() -> None:
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true" and os.environ["DO_NOT_TRACK"] == "true"


def test_a_taken_port_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["ui", "--results", str(tmp_path), "--port", str(port)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: --port: {port} is taken; accepted: a free port") and error.count("\n") == 1


@pytest.mark.parametrize("port", [-1, 70000])
def test_an_impossible_port_is_one_line(port: int) -> None:
    with pytest.raises(UserError, match=rf"--port: {port} cannot be used"):
        server.check_port(port)


def test_the_interface_listens_on_loopback_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow's command starts the server as a process of its own, and nothing else starts any."""
    started: list[list[str]] = []

    def start(command: list[str], **_: object) -> None:
        started.append(list(map(str, command)))
        raise OSError("started")

    monkeypatch.setenv("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "true")
    monkeypatch.setattr("subprocess.Popen", start)
    monkeypatch.setattr(server, "_accompany", lambda *_: None)
    # MLflow's command names its database for the whole process, which is this one: taken back after the test.
    monkeypatch.setattr("mlflow.tracking._model_registry.utils._registry_uri", None)
    monkeypatch.setenv("MLFLOW_REGISTRY_URI", "")
    with pytest.raises((OSError, SystemExit)):
        server.serve(tmp_path, Store.of(tmp_path), 0)
    (command,) = started
    assert os.environ["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] == "false"
    assert command[command.index("--host") + 1] == "127.0.0.1" and command.count("--host") == 1
    assert command[command.index("--workers") + 1] == "1"


def test_the_printed_addresses_lead_to_views_of_the_trainings_that_users_can_change(
    small_study: Study, empty_database: Path
) -> None:
    store, tag = Store.of(small_study.results), "mlflow.sharedViewState.rlvr-scores"
    shutil.copy(empty_database, store.database)
    project(small_study)
    client = client_of(small_study)
    number = client.get_experiment_by_name("laptop").experiment_id
    first, *lines = server.links(store, "http://127.0.0.1:5123")
    assert first.startswith("MLflow on http://127.0.0.1:5123 ")
    page = f"http://127.0.0.1:5123/#/experiments/{number}/runs?workflowType=machine_learning&viewStateShareKey="
    modes = {"curves": "rlvr-curves&compareRunsMode=CHART", "scores": "rlvr-scores"}
    modes["responses"] = "rlvr-scores&compareRunsMode=ARTIFACT"
    assert [line.split() for line in lines] == [["laptop:", name, page + mode] for name, mode in modes.items()]
    view = json.loads(client.get_experiment(number).tags[tag])
    assert view["name"] == "Final scores"
    columns = json.loads(view["state"])["selectedColumns"]
    assert "metrics.`train/unjudged_responses`" in columns
    assert columns[:3] == [f"metrics.`eval/{name}/avg_at_32`" for name in ("all", "chain_3", "nested_sums")]
    changed = json.dumps(view | {"name": "mine", "updatedAt": view["updatedAt"] + 1})
    client.set_experiment_tag(number, tag, changed)
    server.links(store, "http://127.0.0.1:5123")
    assert client.get_experiment(number).tags[tag] == changed


def test_the_address_is_printed_once_something_answers_there(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))

        def look(_: float) -> None:
            looks.append(1)
            listening.listen()

        monkeypatch.setattr("time.sleep", look)
        server.wait_until_served(listening.getsockname()[1])
    assert looks == [1]


def test_a_study_under_way_can_still_be_browsed(
    small_study: Study, empty_database: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(empty_database, Store.of(small_study.results).database)
    project(small_study)
    small_study.comparisons.unlink()
    future = (small_study.results / "tracking.json").stat().st_mtime + 10
    os.utime(small_study.scores[0], (future, future))
    served: list[object] = []
    monkeypatch.setattr("rlvr.report.mlflow.server.serve", lambda *arguments: served.append(arguments))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    assert main(["ui", "--results", str(small_study.results), "--port", str(port)]) == 0
    assert len(served) == 1
    assert "comparisons.json: no such file; showing what there is" in capsys.readouterr().err
