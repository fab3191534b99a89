"""The contrast of methods: angles against what is known of them, on a run that looking does not change."""

import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import torch

from evals.core.errors import InvalidInput, UserError
from evals.core.run_spec import LocalRun
from evals.grading import GradingPool
from rlvr.engines.local.learner import Learner
from rlvr.methods.method import compose
from rlvr.study.catalogue import load_catalogue, resolve_method
from rlvr_claims.contrast import directions_along, write_contrast
from tests.commands import rlvr_bench
from tests.unit.engine.conftest import make_run, study_files

__all__ = ["make_run", "study_files"]
NAMES = ("dapo", "positive_only", "negative_only", "delta", "delta_lambda_0_5_1_5", "rloo")
METHODS = {name: compose(resolve_method(name, {}, load_catalogue(), name), name, 64) for name in NAMES}
STEPS = (2, 3)
TRAINING = {"prompts_per_step": 32, "samples_per_prompt": 8, "learning_rate": 0.003, "micro_batch_size": 32}


@pytest.fixture
def learner(make_run: Callable[..., LocalRun], tmp_path: Path) -> Callable[[], Learner]:
    """Makes a learner at the start of the same run."""
    dapo = resolve_method("dapo", {}, load_catalogue(), "dapo")
    return lambda: Learner(make_run(TRAINING, method=dapo), "cpu")


def test_angles_agree_with_what_is_known_of_the_methods(learner: Callable[[], Learner]) -> None:
    of_rloo = []
    for _, _, found in directions_along(learner(), METHODS, (*STEPS, 4)):
        # acos is steep at 0: rounding of 1e-9 in the cosine is 0.003 degrees.
        assert found["dapo"].degrees == pytest.approx(0, abs=0.01)
        assert found["dapo"].norm_ratio == pytest.approx(1, abs=1e-6)
        # The two halves add up to the whole: their projections on it do too.
        halves = [found["positive_only"], found["negative_only"]]
        some = [half for half in halves if half.norm_ratio > 0]  # a half without a gradient has no direction
        projections = [half.norm_ratio * math.cos(math.radians(half.degrees)) for half in some]
        assert sum(projections) == pytest.approx(1, abs=1e-4)
        assert 0.1 < found["delta"].degrees < found["delta_lambda_0_5_1_5"].degrees
        of_rloo.append(found["rloo"].degrees)
    # Without the standard deviation, groups of other accuracies count otherwise. Not every step has some.
    assert max(of_rloo) > 0.5


def test_a_selection_that_parts_groups_leaves_the_advantages_as_they_are(
    make_run: Callable[..., LocalRun], tmp_path: Path
) -> None:
    entry = resolve_method("dapo_reward_balanced", {}, load_catalogue(), "dapo_reward_balanced")
    learner = Learner(make_run(TRAINING, method=entry), "cpu")
    methods = {"own": compose(entry, "own"), "dapo": METHODS["dapo"]}
    parted = False
    for _, prepared, found in directions_along(learner, methods, STEPS):
        parted |= len(prepared.rollouts.group_ids.unique(return_counts=True)[1].unique()) > 1
        assert [found[name].degrees for name in methods] == pytest.approx([0, 0], abs=0.01)
    assert parted


def test_looking_does_not_change_the_training(learner: Callable[[], Learner]) -> None:
    looked_at, plain = learner(), learner()
    assert [step for step, _, _ in directions_along(looked_at, METHODS, STEPS)] == list(STEPS)
    with GradingPool(workers=1) as pool:
        for _ in range(max(STEPS)):
            plain.position.metrics.append(plain.step(pool))
    assert (looked_at.position.step, looked_at.position.updates) == (plain.position.step, plain.position.updates)
    for name, value in plain.model.named_parameters():
        assert torch.equal(value, dict(looked_at.model.named_parameters())[name]), name


def test_the_command_writes_a_row_for_each_step_and_method(
    make_run: Callable[..., LocalRun], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(TRAINING)
    out = tmp_path / "contrast"
    arguments = ["--methods", "dapo", "dapo_forking_tokens", "--steps", "1", "3", "--out", str(out)]
    assert rlvr_bench("claims", "contrast")([str(tmp_path / "run.json"), *arguments]) == 0
    assert "dapo_forking_tokens" in capsys.readouterr().out
    frame = pd.read_parquet(out / "contrast.parquet")
    assert list(zip(frame["step"], frame["method"], strict=True)) == [
        (step, name) for step in (1, 3) for name in ("dapo", "dapo_forking_tokens")
    ]
    assert frame["entropy"].between(0, 3).all() and frame["reward"].between(0, 1).all()


def test_a_damaged_base_model_is_refused(
    make_run: Callable[..., LocalRun], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "base"
    shutil.copytree(make_run().base, copy)
    make_run(TRAINING, base=str(copy))
    config = copy / "checkpoint" / "config.json"
    config.write_text(config.read_text() + "\n")
    with pytest.raises(UserError, match=r"config\.json"):
        write_contrast(tmp_path / "run.json", {}, [1], tmp_path / "out", "cpu", 1)


def test_a_step_that_the_run_does_not_have_is_refused(make_run: Callable[..., LocalRun], tmp_path: Path) -> None:
    make_run()
    with pytest.raises(InvalidInput) as caught:
        write_contrast(tmp_path / "run.json", {}, [5], tmp_path / "out", "cpu", 1)
    assert caught.value.key == "--steps" or caught.value.source == "--steps"
