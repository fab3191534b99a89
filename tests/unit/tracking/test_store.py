"""The database and its lock: several processes at once, damage, and servers that do not answer."""

import contextlib
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from filelock import FileLock
from mlflow.tracking import MlflowClient

from evals.core.errors import UserError
from rlvr.report.mlflow import store as store_module
from rlvr.report.mlflow.projection import UNJUDGED
from rlvr.report.mlflow.store import Store
from tests.commands import rlvr_bench
from tests.unit.synthetic_results import Study
from tests.unit.tracking.conftest import ALL_RUNS, client_of, project, shown


def refused(directory: Path, **limits: float) -> str:
    with pytest.raises(UserError) as caught, Store(directory).writing(**limits):
        pass
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_two_first_projections_at_once_make_one_copy(tracked_study: Study) -> None:
    (tracked_study.results / "mlflow.db").unlink()
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda _: project(tracked_study), range(2))) == [ALL_RUNS, ALL_RUNS]
    assert len(shown(tracked_study)) == ALL_RUNS and not list(tracked_study.results.glob(".mlflow.db.new*"))


def test_a_held_lock_is_one_line(tmp_path: Path) -> None:
    with FileLock(tmp_path / "mlflow.db.lock"):
        assert "mlflow.db: another process has been writing it" in refused(tmp_path, lock_seconds=0.05)


def test_an_initialisation_that_was_killed_is_started_anew(tmp_path: Path) -> None:
    (tmp_path / ".mlflow.db.new").write_bytes(b"half a database")
    store = Store(tmp_path)
    with store.writing():
        assert store.client.get_experiment("0").name == "Default"


@pytest.mark.parametrize("damage", ["truncated", "overwritten", "foreign"])
def test_a_damaged_database_is_one_line_at_once_and_stays(tmp_path: Path, empty_database: Path, damage: str) -> None:
    path, content = tmp_path / "mlflow.db", bytearray(empty_database.read_bytes())
    if damage == "truncated":
        content = content[: len(content) // 2]
    elif damage == "overwritten":
        content[8192:40960] = b"x" * 32768
    else:
        content = bytearray(b"precious " * 1000)
    path.write_bytes(content)
    assert "delete it: it is made again from the results" in refused(tmp_path) and path.read_bytes() == content


def test_a_database_that_is_held(tmp_path: Path, empty_database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mlflow.db"
    path.write_bytes(empty_database.read_bytes())
    monkeypatch.setattr(store_module, "_BUSY_SECONDS", 0.1)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert "database is locked" in refused(tmp_path)


def test_a_deleted_experiment_is_restored(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.writing():
        number = store.experiment("laptop").experiment_id
        store.client.delete_experiment(number)
        assert store.experiment("laptop").experiment_id == number
        assert store.client.get_experiment(number).lifecycle_stage == "active"


def test_databases_and_directories_of_others_are_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'theirs.db'}")
    with Store(tmp_path).writing():
        pass
    assert (tmp_path / "mlflow.db").exists() and not (tmp_path / "theirs.db").exists()


def test_a_missing_server_is_one_line_without_the_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:secret@127.0.0.1:1")
    message = refused(tmp_path)
    assert message.startswith("MLFLOW_TRACKING_URI: http://127.0.0.1:1: ") and "secret" not in message


def test_a_silent_server_holds_a_job_for_a_bounded_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{listening.getsockname()[1]}")
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
        begun = time.monotonic()
        assert "timed out" in refused(tmp_path).lower()
        listening.setblocking(False)
        listening.accept()[0].close()
        with pytest.raises(BlockingIOError):
            listening.accept()  # it was asked once, so that there is one deadline
        assert time.monotonic() - begun < 30


# A tracking server of somebody else's: a real one, in a process of its own, with its own database.

main = rlvr_bench()
_PATIENCE_SECONDS = 1200  # only a server that hangs takes as long; one that ends is noticed at once


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, empty_database: Path) -> Iterator[str]:
    """The address of a server on loopback."""
    own = tmp_path_factory.mktemp("server")
    (own / "own.db").write_bytes(empty_database.read_bytes())
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{own / 'own.db'}", "--artifacts-destination", str(own / "artifacts")]
    environment = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with open(own / "log", "w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
    address, deadline = f"http://127.0.0.1:{port}", time.monotonic() + _PATIENCE_SECONDS
    try:
        while True:
            try:
                urllib.request.urlopen(f"{address}/health", timeout=30).close()
                break
            except OSError:
                assert time.monotonic() < deadline and process.poll() is None, (own / "log").read_text()
                time.sleep(0.2)
        yield address
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # its workers too, at once; the database is the test's
        process.wait()


def test_a_study_is_shown_on_the_server_that_the_environment_names(
    tracked_study: Study, server: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tracked_study.results / "mlflow.db").unlink()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"{server}/")
    assert project(tracked_study) == ALL_RUNS and not (tracked_study.results / "mlflow.db").exists()
    client = MlflowClient(server)
    experiment = client.get_experiment_by_name("laptop")
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id], max_results=1000)}
    run = runs["tiny-delta-s1"]
    assert len(client.get_metric_history(run.info.run_id, "train/reward_mean")) == 8
    (tracked_study.root / "server_copy").mkdir()
    copied = client.download_artifacts(run.info.run_id, "manifest.json", str(tracked_study.root / "server_copy"))
    assert Path(copied).read_bytes() == (tracked_study.results / "runs/tiny-delta-s1/manifest.json").read_bytes()
    client.create_experiment("of_somebody")
    os.utime(tracked_study.results / "tables/main.csv")
    assert main(["ui", "--results", str(tracked_study.results)]) == 0
    printed = capsys.readouterr().out
    assert f"laptop: curves     {server}/#/experiments/{experiment.experiment_id}/runs" in printed
    assert "of_somebody" not in printed
    again = client.search_runs([experiment.experiment_id], max_results=1000)
    assert {each.info.run_id for each in again} == {each.info.run_id for each in runs.values()}  # links and notes stay


def test_an_experiment_of_others_is_left_alone(tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each of two people with a study of one name would delete the runs of the other."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    for name in ("mine", "other"):
        (tmp_path / name).mkdir()
    mine, other = Store(tmp_path / "mine"), Store(tmp_path / "other")
    with mine.writing():
        number = mine.experiment("shared").experiment_id
        assert mine.experiment("shared").experiment_id == number
    with other.writing(), pytest.raises(UserError, match=r"has an experiment shared of .*/mine, not of"):
        other.experiment("shared")


@pytest.mark.parametrize("port", [-1, 70000, None])
def test_a_port_that_is_taken(port: int | None, tracked_study: Study, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = port or taken.getsockname()[1]
        assert main(["ui", "--results", str(tracked_study.results), f"--port={port}"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: --port: {port} cannot be served") and error.count("\n") == 1
    assert "a free port, or 0 for any" in error


def test_results_without_a_study_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ui", "--results", str(tmp_path)]) == 2
    assert "holds no study that was started; run one first" in capsys.readouterr().err and not list(tmp_path.iterdir())
    (tmp_path / "smoke/results").mkdir(parents=True)
    (tmp_path / "smoke/results/runs.json").write_text("[]")
    assert main(["ui", "--results", str(tmp_path)]) == 2
    assert f"--results {tmp_path}/smoke/results does" in capsys.readouterr().err


def test_the_interface_is_served_on_loopback_and_ends_with_its_command(tracked_study: Study, tmp_path: Path) -> None:
    """Also after kill -9; a study that lacks a file is shown as far as it goes, and trainings grow meanwhile."""
    (tracked_study.results / "runs/tiny-grpo-s1/metrics.parquet").write_text("damaged")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "rlvr", "ui", "--results", str(tracked_study.results), "--port", str(port)]
    log = tmp_path / "log"
    with open(log, "w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
    _wait(lambda: "laptop: responses" in log.read_text(), process, log)
    assert "metrics.parquet: is not parquet" in log.read_text() and "showing what there is" in log.read_text()
    listening = [each for each in psutil.net_connections("tcp") if each.laddr.port == port and each.status == "LISTEN"]
    assert {each.laddr.ip for each in listening} == {"127.0.0.1"}
    process.kill()
    process.wait()
    _wait(lambda: not _answers(port), None, log)


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def _wait(condition: Callable[[], bool], process: subprocess.Popen[bytes] | None, log: Path) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline and (process is None or process.poll() is None), log.read_text()
        time.sleep(0.2)


def test_a_view_that_the_user_changed_stays(tracked_study: Study) -> None:
    project(tracked_study)
    client, tag = client_of(tracked_study), "mlflow.sharedViewState.rlvr-scores"
    experiment = client.get_experiment_by_name("laptop")
    view = json.loads(experiment.tags[tag])
    columns = json.loads(view["state"])["selectedColumns"]
    assert columns[:3] == [f"metrics.`eval/{name}/avg_at_32`" for name in ("all", "chain_3", "nested_sums")]
    assert f"metrics.`{UNJUDGED}`" in columns
    changed = json.dumps(view | {"name": "mine", "updatedAt": view["updatedAt"] + 1})
    client.set_experiment_tag(experiment.experiment_id, tag, changed)
    os.utime(tracked_study.results / "tables/main.csv")
    project(tracked_study)
    assert client.get_experiment_by_name("laptop").tags[tag] == changed
