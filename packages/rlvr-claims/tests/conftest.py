"""A trained run of the engine tests' size, and its token table; and two small, random Qwen3 models."""

from pathlib import Path

import pytest
import torch

from evals.core.files import write_json
from evals.core.run_spec import LocalRun
from rlvr.engines.local.train import train
from rlvr.runs.state import save_checkpoint
from rlvr_claims.policy import PolicySnapshot, read_snapshots
from rlvr_claims.replay import write_token_table
from tests.claims.replayed_run import EXECUTION, KEPT_STEPS
from tests.random_model import save_random_model
from tests.unit.engine.conftest import run_content, study_files

__all__ = ["study_files"]


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


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A base, and a model that training could have made of it; with the laptop study's tokenizer."""
    base, trained = (tmp_path_factory.mktemp(name) for name in ("base", "trained"))
    model, tokenizer = save_random_model(base, initializer_range=0.2)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.05 * torch.randn_like(weight)
    save_checkpoint(model, tokenizer, trained)
    return base, trained
