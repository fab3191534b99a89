"""A replay does what the training did: the same rollouts, up to the step with which it stopped."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from evals.core.errors import InvalidInput, UserError
from evals.core.run_spec import Execution, LocalRun
from rlvr.engines.local.train import train
from rlvr.engines.rollouts import ROLLOUT_COLUMNS, kept_steps
from rlvr.tokens.table import read_token_table
from rlvr_claims.policy import read_snapshots
from rlvr_claims.replay import write_token_table
from tests.unit.engine import stand_in
from tests.unit.engine.conftest import MakeRun, llama, make_run, study_files
from tests.unit.engine.test_stand_in import library, on_stand_in, run_of
from tests.unit.engine.test_what_runs_keep import EXECUTION, STEPS, stopped

__all__ = ["library", "llama", "make_run", "run_of", "stopped", "study_files"]


def test_rollouts_that_a_training_kept_are_those_of_its_replay(make_run: MakeRun, tmp_path: Path) -> None:
    run, directory = make_run(), tmp_path / "kept"
    train(run, directory, Execution(checkpoint_interval=3, lock_wait_seconds=1, rollouts_kept_every=2))
    (tmp_path / "run.json").replace(directory / "run.json")
    write_token_table(directory / "run.json", tmp_path / "replay", [1, 2, 4], "cpu", 1)
    replayed = pd.read_parquet(tmp_path / "replay" / "tokens.parquet", columns=list(ROLLOUT_COLUMNS))
    found = pd.concat([pd.read_parquet(place / "tokens.parquet") for _, place in kept_steps(directory)])
    pd.testing.assert_frame_equal(found.reset_index(drop=True), replayed)
    with pytest.raises(UserError, match="expected 'token_table'"):
        read_snapshots(directory / "rollouts/step-2")
    classes = [
        read_token_table(place, 2)["token_class"] for place in (directory / "rollouts/step-2", tmp_path / "replay")
    ]
    pd.testing.assert_series_equal(classes[0], classes[1].reset_index(drop=True))


def test_a_step_that_was_not_done_cannot_be_replayed(stopped: tuple[LocalRun, int], tmp_path: Path) -> None:
    run, end = stopped
    place = tmp_path / "run"
    train(run, place, EXECUTION)
    (place / "run.json").write_text(run.model_dump_json())
    with pytest.raises(InvalidInput, match=f"1 to {end}, after which .* stopped early"):
        write_token_table(place / "run.json", tmp_path / "tokens", [STEPS], "cpu", 1)


def train_and_replay(run: str, out: str) -> list[float]:
    """Train on the stand-in for a GPU, and replay the training's steps."""
    losses = stand_in.train_with_states(run)
    write_token_table(Path(run), Path(out), [1, 2], "cuda", 1)
    return losses


def test_a_replay_mixes_no_devices(library: Path, run_of: Any, tmp_path: Path) -> None:
    job = {"kind": "tests.test_replay:train_and_replay", "run": run_of("replay"), "out": str(tmp_path / "table")}
    assert isinstance(on_stand_in(library, {"replay": job}, tmp_path)["replay"], list)
