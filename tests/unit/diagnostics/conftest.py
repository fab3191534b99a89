"""A trained run of the engine tests' size, and its token table."""

from pathlib import Path

import pytest
import torch

from evals.core.files import write_json
from evals.core.run_spec import Execution, LocalRun
from rlvr.diagnostics.policy import PolicySnapshot, read_snapshots
from rlvr.diagnostics.replay import write_token_table
from rlvr.engines.local.train import train
from tests.unit.engine.conftest import run_content, study_files

__all__ = ["study_files"]
EXECUTION = Execution(lock_wait_seconds=1.0)
KEPT_STEPS = (1, 3)


@pytest.fixture(scope="session")
def trained_run(study_files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """run.json of a finished run whose ratios leave the clip range now and then."""
    torch.set_num_threads(1)
    directory = tmp_path_factory.mktemp("results") / "runs" / "tiny-dapo-s1"
    training = {"prompts_per_step": 8, "samples_per_prompt": 8, "learning_rate": 0.02, "warmup_updates": 0}
    write_json(directory / "run.json", run_content(study_files, training))
    train(LocalRun.read(directory / "run.json"), directory, EXECUTION)
    return directory / "run.json"


@pytest.fixture(scope="session")
def token_table(trained_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of its token table."""
    directory = tmp_path_factory.mktemp("tokens")
    write_token_table(trained_run, directory, KEPT_STEPS, "cpu", 1)
    return directory


@pytest.fixture
def snapshots(token_table: Path) -> list[PolicySnapshot]:
    """The snapshots of that table, for this test alone."""
    return read_snapshots(token_table)
