"""A tracking server of somebody else's: a real one, in a process of its own, with its own database."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from evals.core.errors import UserError
from rlvr.report.mlflow import server as server_page
from rlvr.report.mlflow.database import Store
from rlvr.report.mlflow.experiment import Experiment
from tests.commands import rlvr_bench
from tests.unit.synthetic_results import Study
from tests.unit.tracking.conftest import project

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


def test_a_study_is_projected_to_the_server_that_the_environment_names(
    tracked_study: Study, server: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"{server}/")
    created = project(tracked_study)["created"]
    assert created == 26 and not (tracked_study.results / "mlflow.db").exists()
    assert project(tracked_study) == {"created": 0, "kept": created, "replaced": 0, "removed": 0}
    client = MlflowClient(server)
    experiment = client.get_experiment_by_name("laptop")
    runs = {
        run.data.tags["rlvr.result"]: run for run in client.search_runs([experiment.experiment_id], max_results=1000)
    }
    run = runs["run tiny-delta-s1"]
    assert len(client.get_metric_history(run.info.run_id, "train/reward_mean")) == 8
    version = client.get_model_version_by_alias("laptop-tiny-delta", "s1")
    checkpoint = (tracked_study.results / "runs/tiny-delta-s1/checkpoint").as_uri()
    assert version.run_id == run.info.run_id and version.tags["checkpoint"] == checkpoint
    (tracked_study.root / "server_copy").mkdir()
    copied = client.download_artifacts(run.info.run_id, "manifest.json", str(tracked_study.root / "server_copy"))
    own = tracked_study.results / "runs/tiny-delta-s1/manifest.json"
    assert Path(copied).read_bytes() == own.read_bytes()
    client.create_experiment("of_somebody")
    assert main(["ui", "--results", str(tracked_study.results)]) == 0
    shown = capsys.readouterr().out
    assert f"laptop: curves     {server}/#/experiments/{experiment.experiment_id}/runs" in shown
    assert "of_somebody" not in shown


def test_an_experiment_of_other_results_is_left_alone(
    tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each of two people with a study of one name would delete the runs of the other."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    with Store.of(tmp_path / "mine").writing() as client:
        mine = Experiment.of(client, "shared", Store.of(tmp_path / "mine"))
        assert Experiment.of(client, "shared", Store.of(tmp_path / "mine")) == mine
        with pytest.raises(UserError, match=r"MLFLOW_TRACKING_URI: http.*: has an experiment shared of .*mine, not of"):
            Experiment.of(client, "shared", Store.of(tmp_path / "theirs"))
        client.create_experiment("by_hand")
        with pytest.raises(UserError, match="has an experiment by_hand of others"):
            Experiment.of(client, "by_hand", Store.of(tmp_path / "mine"))


def test_a_server_that_does_not_answer_is_one_line_without_the_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:secret@127.0.0.1:1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    message = r"MLFLOW_TRACKING_URI: http://127\.0\.0\.1:1: "
    with pytest.raises(UserError, match=message) as caught, Store.of(tmp_path).writing():
        pass
    assert "\n" not in str(caught.value) and "secret" not in str(caught.value)


def test_databases_and_directories_of_others_are_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'theirs.db'}")
    with Store.of(tmp_path).writing():
        pass
    assert (tmp_path / "mlflow.db").exists() and not (tmp_path / "theirs.db").exists()


@pytest.mark.parametrize(
    ("terminal", "display", "opened"), [(True, ":0", True), (False, ":0", False), (True, "", False)]
)
def test_the_curves_open_in_a_browser_only_where_somebody_sees_it(
    terminal: bool,
    display: str,
    opened: bool,
    tracked_study: Study,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    project(tracked_study)
    visited: list[str] = []
    monkeypatch.setattr("webbrowser.open", visited.append)
    monkeypatch.setattr(server_page, "wait_until_served", lambda port: None)
    monkeypatch.setattr(server_page, "watch", lambda results, store: None)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    monkeypatch.setenv("DISPLAY", display)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    server_page._accompany(tracked_study.results, Store.of(tracked_study.results), 5001)
    curves = capsys.readouterr().out.splitlines()[1].split()[-1]
    assert curves.startswith("http://127.0.0.1:5001/#/experiments/") and curves.endswith("compareRunsMode=CHART")
    assert visited == [curves] * opened
