"""Trainings on GPUs take one each; environment variables and locks stand for the GPUs."""

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from evals.core.errors import UserError
from evals.core.files import write_jsonl
from evals.core.run_spec import Execution, LocalRun
from evals.generation import devices
from rlvr.engines.local.fine_tune import FineTuningSettings, fine_tune
from rlvr.engines.local.learner import Learner
from rlvr.engines.local.train import train
from tests.unit.engine.test_fine_tune import SETTINGS


@pytest.fixture
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory of the locks, of which another process has that of GPU 4; torch sees no GPU at all."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(devices, "_held", [])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.delenv(devices._CLAIMED, raising=False)
    directory = tmp_path / f"rlvr-devices-{os.getuid()}"
    directory.mkdir()
    with FileLock(directory / "4.lock"):
        yield directory
    for lock in devices._held:
        lock.release()


@pytest.mark.parametrize("job", ["training", "warm start", "replay"])
def test_a_free_gpu(job: str, make_run: Callable[..., LocalRun], llama: Path, locks: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="device: cuda was asked for, but torch sees no GPU; accepted here: cpu"):
        if job == "training":
            train(make_run(), tmp_path / "run", Execution(device="cuda", lock_wait_seconds=1))
        elif job == "replay":
            Learner(make_run(), "cuda")
        else:
            write_jsonl(tmp_path / "solutions.jsonl", [{"problem": "1+1", "solution": "2"}])
            settings = FineTuningSettings.parse(SETTINGS, "settings")
            fine_tune(settings, llama, [tmp_path / "solutions.jsonl"], tmp_path / "warm", "cuda", 5, 1)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "5" and len(devices._held) == 1


def test_a_child_has_the_gpu_of_its_parent(locks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    devices.claim_devices(1)
    parent, taken = list(devices._held), os.environ["CUDA_VISIBLE_DEVICES"]
    monkeypatch.setattr(devices, "_held", [])  # as in a child, which inherits the environment alone
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("it waits for its parent"))
    devices.claim_devices(1)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == taken == "5" and not devices._held
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6")  # a child that is given another one claims it
    devices.claim_devices(1)
    assert len(devices._held) == 1
    devices._held += parent


def test_slurms_own_numbers(locks: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4")
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    devices.claim_devices(1)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "4" and not capsys.readouterr().out
