"""The database and its lock: several processes at once, damage, and servers that do not answer."""

import contextlib
import socket
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from filelock import FileLock

from evals.core.errors import UserError
from rlvr.report.mlflow import store as store_module
from rlvr.report.mlflow.store import Store
from tests.unit.synthetic_results import Study
from tests.unit.tracking.conftest import ALL_RUNS, project, shown


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
