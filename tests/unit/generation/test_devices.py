"""Processes that stand for GPUs: each has devices of its own, at any moment, and a killed one gives them back."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from evals.core.errors import UserError
from evals.core.files import write_json
from evals.generation.checkpoint import Checkpoint, ServedModel
from evals.generation.devices import claim_devices, drivers, require_driver
from evals.generation.plan import SamplePlan
from evals.generation.settings import EvaluationSettings
from tests.unit.generation.conftest import settings_of

REPOSITORY = Path(__file__).resolve().parents[3]
JOB = """
import os, sys, time
from pathlib import Path
from evals.generation.checkpoint import Checkpoint
from evals.generation.devices import claim_devices
locks, log, count, seconds = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
def say(word):
    with open(log, "a") as file:
        file.write(f"{word} {os.environ['CUDA_VISIBLE_DEVICES']}\\n")
claim_devices(count, locks)
claim_devices(count, locks)
say("start")
time.sleep(seconds)
say("end")
"""


def start(directory: Path, count: int, seconds: float, visible: str = "0,1,2,3") -> subprocess.Popen[bytes]:
    words = [str(directory / "locks"), str(directory / "log"), str(count), str(seconds)]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": visible}
    return subprocess.Popen([sys.executable, "-c", JOB, *words], cwd=REPOSITORY, env=environment)


def lines(directory: Path) -> list[str]:
    path = directory / "log"
    return path.read_text().splitlines() if path.is_file() else []


def test_jobs_share_the_devices_out_and_all_are_used(tmp_path: Path) -> None:
    jobs = [start(tmp_path, 1 + number % 2, 0.6) for number in range(7)]
    assert [job.wait(60) for job in jobs] == [0] * 7
    busy: set[str] = set()
    most = 0
    for line in lines(tmp_path):
        word, devices = line.split()
        own = set(devices.split(","))
        assert own.isdisjoint(busy) if word == "start" else own <= busy, line
        busy = busy | own if word == "start" else busy - own
        most = max(most, len(busy))
    assert most == 4 and len(lines(tmp_path)) == 14


def test_a_killed_job_gives_its_devices_back(tmp_path: Path) -> None:
    first = start(tmp_path, 2, 60, "4,5")
    while not lines(tmp_path):
        time.sleep(0.02)
    second = start(tmp_path, 1, 0, "4,5")
    time.sleep(1.0)
    assert second.poll() is None and len(lines(tmp_path)) == 1
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    assert second.wait(30) == 0 and lines(tmp_path)[1:] == ["start 4", "end 4"]


def test_more_devices_than_there_are_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with pytest.raises(UserError, match="tensor_parallel_size: is 2 with 1 GPUs"):
        claim_devices(2, tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    claim_devices(1, tmp_path)
    assert not list(tmp_path.iterdir()), "nothing is known of the GPUs, and nothing claimed"


@pytest.fixture
def old_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nprintf '570.195.03\\nNo devices were found\\n'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.usefixtures("old_driver")
def test_an_old_driver_is_said_before_vllm_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = EvaluationSettings.model_construct(backend="vllm", device="cuda")
    plan = SamplePlan([Checkpoint(tmp_path)], settings, [], [], 8, [], {}, {}, 0, False)
    monkeypatch.setattr("torch.version.cuda", "13.0")
    with pytest.raises(UserError, match=r"driver of this machine is 570\.195\.03; accepted: 580\.65\.06 or newer"):
        plan.load_backend()


@pytest.mark.usefixtures("old_driver")
def test_a_server_needs_neither_torch_nor_a_gpu_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_json(tmp_path / "server.json", {"base_url": "http://127.0.0.1:1/v1", "model": "m"})
    settings = settings_of(backend="server", device="cuda")
    plan = SamplePlan([ServedModel(tmp_path)], settings, [], [], 8, [], {}, {}, 0, False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,7")
    monkeypatch.setitem(sys.modules, "torch", None)  # an import of it then fails
    assert type(plan.load_backend()).__name__ == "ServerBackend"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "6,7"


@pytest.mark.usefixtures("old_driver")
def test_torch_of_an_older_cuda_takes_an_older_driver() -> None:
    assert drivers() == ["570.195.03"]
    require_driver("12.8", drivers())
    require_driver(None, drivers())
    require_driver("13.0", ["580.65.06", "595.1"])


def test_without_nvidia_smi_no_driver_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert drivers() == []
