"""Trainings that end because their reward no longer rises (training.early_stop)."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
import pytest

from evals.core.manifest import verify_outputs
from evals.core.run_spec import Execution, LocalRun
from evals.core.training_settings import EarlyStop
from evals.tables.main import early_stop_note
from rlvr.engines.local.learner import Learner
from rlvr.engines.local.train import train
from rlvr.engines.result import checkpoint_directory
from tests.unit.engine.conftest import MakeRun, checkpoint_hash

EXECUTION = Execution(checkpoint_interval=2, lock_wait_seconds=1)
STEPS = 8


def last_step(rewards: Sequence[float], window: int, patience: int) -> int | None:
    """The rule as docs/evaluation.md says it, looked at anew after every step."""
    for done in range(1, len(rewards) + 1):
        averages = {end: sum(rewards[end - window : end]) / window for end in range(window, done + 1)}
        if averages:
            highest = max(averages.values())
            newest_high = min(end for end, average in averages.items() if average == highest)
            if done - newest_high >= patience:
                return done
    return None


def test_the_rule_is_that_of_the_documentation() -> None:
    drawn, ends = random.Random(4), set()
    for number in range(500):
        parts = (4, 8, 2)[number % 3]  # sums of such rewards are exact
        rewards = [drawn.randrange(parts + 1) / parts for _ in range(drawn.randrange(13))]
        window, patience = drawn.randrange(1, 4), drawn.randrange(1, 5)
        expected = last_step(rewards, window, patience)
        assert EarlyStop(window=window, patience=patience).last_step(rewards) == expected, (rewards, window, patience)
        ends.add(expected)
    assert None in ends and len(ends) > 8


def test_an_average_as_high_as_the_highest_is_no_new_one() -> None:
    assert EarlyStop(window=2, patience=3).last_step([0.5] * 9) == 5
    rewards = [number / 24 for number in (5, 7, 11, 5, 7, 11, 5, 7, 11)]  # any three in a row are 23 / 24
    assert EarlyStop(window=3, patience=4).last_step(rewards) == 7, "rounding is no rise"
    assert EarlyStop(window=1, patience=2).last_step([0.1, 0.0, 0.2, 0.1, 0.3]) is None


@pytest.fixture
def stopped(make_run: MakeRun, tmp_path: Path) -> tuple[LocalRun, int]:
    """A run of eight steps that ends after fewer, and after how many."""
    plain = make_run(training={"steps": STEPS})
    assert "early_stop" not in plain.to_json()["training"]
    train(plain, tmp_path / "plain", EXECUTION)
    rewards = pd.read_parquet(tmp_path / "plain" / "metrics.parquet")["reward_mean"].tolist()
    rules = [(window, patience) for window in (1, 2) for patience in (1, 2, 3)]
    found = {rule: end for rule in rules if 2 < (end := last_step(rewards, *rule) or 0) < STEPS - 1}
    (window, patience), end = next(iter(found.items()))
    return make_run(training={"steps": STEPS, "early_stop": {"window": window, "patience": patience}}), end


def test_a_training_ends_with_the_policy_of_a_training_of_that_length(
    stopped: tuple[LocalRun, int], make_run: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, end = stopped
    train(make_run(training={"steps": end}), tmp_path / "shorter", EXECUTION)
    train(run, tmp_path / "runs" / "r", EXECUTION, checkpoints_at=[1, STEPS - 1])
    assert f"stopped after step {end} of {STEPS}: no new highest mean reward" in capsys.readouterr().out
    place = tmp_path / "runs" / "r"
    assert checkpoint_hash(place) == checkpoint_hash(tmp_path / "shorter")
    assert pd.read_parquet(place / "metrics.parquet")["step"].tolist() == list(range(1, end + 1))
    manifest = verify_outputs(place / "manifest.json", "run")
    assert manifest.details["steps"] == end and manifest.parameters["training"]["steps"] == STEPS
    later = checkpoint_directory(place, STEPS - 1)
    assert checkpoint_hash(later) == checkpoint_hash(place) != checkpoint_hash(checkpoint_directory(place, 1))
    assert verify_outputs(later / "manifest.json", "run").details["steps"] == end
    made = (place / "manifest.json").stat().st_mtime_ns
    train(run, place, EXECUTION, checkpoints_at=[STEPS - 2])  # of the finished run
    assert checkpoint_hash(checkpoint_directory(place, STEPS - 2)) == checkpoint_hash(place)
    assert (place / "manifest.json").stat().st_mtime_ns == made
    note = f"Stopped early: r after {end} of {STEPS} steps. They count as they ended."
    assert early_stop_note([place / "manifest.json"]) == [note]
    assert early_stop_note([tmp_path / "shorter" / "manifest.json"]) == []


def test_a_kill_ends_alike(stopped: tuple[LocalRun, int], tmp_path: Path, train_until: Callable[..., Learner]) -> None:
    run, end = stopped
    train(run, tmp_path / "undisturbed", EXECUTION)
    train_until(end - 1, run, tmp_path / "killed", EXECUTION)
    train(run, tmp_path / "killed", EXECUTION)
    assert checkpoint_hash(tmp_path / "killed") == checkpoint_hash(tmp_path / "undisturbed")
