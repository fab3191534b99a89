"""Rollouts that a training keeps: what they say, that keeping them changes nothing, and that a kill does not either."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch

from evals.core.errors import UserError
from evals.core.files import sha256_file, write_parquet
from evals.core.manifest import read_manifest, verify_outputs
from evals.core.run_spec import Execution
from rlvr.engines import rollouts
from rlvr.engines.local.learner import Learner
from rlvr.engines.local.train import train
from rlvr.engines.rollouts import chosen_rollouts, is_kept, kept_steps
from rlvr.methods.rollout_batch import RolloutBatch
from rlvr.tokens.table import read_token_table
from tests.unit.engine.conftest import MakeRun

KEEPING = Execution(checkpoint_interval=3, lock_wait_seconds=1, rollouts_kept_every=2)


def tables(directory: Path) -> dict[int, str]:
    """The hash of every step's table."""
    return {step: sha256_file(place / "tokens.parquet") for step, place in kept_steps(directory)}


def test_the_first_step_and_every_so_many_th_are_kept() -> None:
    assert [step for step in range(1, 8) if is_kept(step, 3)] == [1, 3, 6]
    assert not any(is_kept(step, None) for step in range(1, 8))


def test_kept_rollouts_change_nothing_of_the_run(make_run: MakeRun, tmp_path: Path) -> None:
    run, directory = make_run(), tmp_path / "kept"
    train(run, tmp_path / "plain", Execution(lock_wait_seconds=1))
    train(run, directory, KEEPING)
    plain, keeping = (verify_outputs(tmp_path / name / "manifest.json", "run") for name in ("plain", "kept"))
    assert plain.fingerprint == keeping.fingerprint and not (tmp_path / "plain" / "rollouts").exists()
    weights = "checkpoint/model.safetensors"
    assert plain.outputs[weights] == keeping.outputs[weights] and plain.outputs.keys() == keeping.outputs.keys()
    assert list(tables(directory)) == [1, 2, 4]
    kept = read_token_table(directory / "rollouts/step-2")
    assert kept["new_log_prob"].isna().all() and set(kept["side"]) <= {-1, 0, 1}


def test_a_kill_changes_no_kept_rollouts(make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(make_run(), tmp_path / "undisturbed", KEEPING)

    def torn(path: Path, frame: pd.DataFrame) -> None:
        if "step-4" in path.parts:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"half")
            raise KeyboardInterrupt
        write_parquet(path, frame)

    monkeypatch.setattr(rollouts, "write_parquet", torn)
    with pytest.raises(KeyboardInterrupt):
        train(make_run(), tmp_path / "killed", KEEPING)
    monkeypatch.undo()
    steps: list[int] = []
    original = Learner.step

    def watched(learner: Learner, pool: object) -> dict[str, float]:
        steps.append(learner.position.step + 1)
        return original(learner, pool)  # type: ignore[arg-type]

    monkeypatch.setattr(Learner, "step", watched)
    train(make_run(), tmp_path / "killed", KEEPING)
    assert steps == [4], "the steps before were done"
    assert tables(tmp_path / "killed") == tables(tmp_path / "undisturbed")


def test_rollouts_of_another_training_are_not_taken_for_this_one_s(make_run: MakeRun, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    train(make_run(seed=1), directory, KEEPING)
    train(make_run(seed=2), directory, Execution(lock_wait_seconds=1))
    assert tables(directory) == {}
    train(make_run(seed=3), directory, KEEPING)
    assert list(tables(directory)) == [1, 2, 4]
    (directory / "rollouts/step-2/tokens.parquet").write_bytes(b"")
    with pytest.raises(UserError, match="its bytes differ"):
        tables(directory)


def test_rollouts_after_an_early_stop_are_no_longer_the_runs(make_run: MakeRun, tmp_path: Path) -> None:
    train(make_run(), tmp_path, KEEPING)
    assert list(tables(tmp_path)) == [1, 2, 4]
    manifest = read_manifest(tmp_path / "manifest.json", "run")
    replace(manifest, details={**manifest.details, "steps": 3}).write(tmp_path / "manifest.json")
    assert list(tables(tmp_path)) == [1, 2]


def test_of_a_large_step_whole_groups_are_kept_mixed_ones_first() -> None:
    groups, lengths = torch.tensor([0, 1, 2, 0, 1, 2]), torch.tensor([3, 2, 3, 3, 2, 1])
    mask = torch.arange(3) < lengths[:, None]
    numbers = torch.zeros(6, 3)
    batch = RolloutBatch(
        advantages=torch.tensor([0.0, 1.0, 0.5, 0.0, -1.0, -0.5]),
        old_log_probs=numbers,
        entropies=numbers,
        response_mask=mask,
        mini_batch_ids=groups,
        group_ids=groups,
        token_ids=numbers.long(),
        temperature=1.0,
        generator=torch.Generator(),
    )
    assert chosen_rollouts(batch, 14) == [0, 1, 2, 3, 4, 5]
    assert chosen_rollouts(batch, 13) == [1, 2, 4, 5]
    assert chosen_rollouts(batch, 7) == chosen_rollouts(batch, 1) == [1, 4]
