"""Responses that nobody could judge: counted by reason, wrong or left out of their groups, and not too many of them."""

import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from evals.core.errors import InvalidInput, UserError
from evals.core.run_spec import Execution
from evals.grading import UNJUDGED, Case, GradingPool, Reason, Verdict
from rlvr.engines.local.contrast import Viewed
from rlvr.engines.local.learner import Learner
from rlvr.engines.local.train import train
from rlvr.engines.unjudged import training_rewards
from rlvr.methods.method import compose
from rlvr.methods.selections import DynamicSampling
from tests.unit.engine.conftest import MakeRun

DRAWN = (Reason.MATCH, Reason.TIMEOUT, Reason.MISMATCH, Reason.MISMATCH)  # of each group of four


class Pool(GradingPool):
    """Gives the verdicts of ``reasons`` in turn."""

    def __init__(self, *reasons: Reason) -> None:
        super().__init__(workers=1)
        self._reasons = reasons

    def grade(self, cases: Iterable[Case]) -> list[Verdict]:
        return [Verdict.of(None, self._reasons[place % len(self._reasons)], 0.0) for place, _ in enumerate(cases)]


def test_reasons_without_a_judgement_are_all_that_say_nothing_of_the_answer() -> None:
    said = {Reason.MATCH, Reason.MISMATCH, Reason.NO_ANSWER, Reason.TRUNCATED}
    assert set(UNJUDGED) == set(Reason) - said


def test_a_grader_that_runs_out_of_time_is_counted_in_the_step(make_run: MakeRun, tmp_path: Path) -> None:
    """The project's own grader, with a limit that nothing keeps."""
    hard = r"\boxed{\cos(\frac{\pi}{7})-\cos(\frac{2\pi}{7})+\cos(\frac{3\pi}{7})+\sqrt{7-4\sqrt{3}}}"
    case = Case(hard, r"\frac{1}{2}+2-\sqrt{3}")

    class Slow(GradingPool):
        def grade(self, cases: Iterable[Case]) -> list[Verdict]:
            return super().grade([case for _ in cases])

    learner = Learner(make_run({"unjudged_limit": 1}), "cpu")
    with Slow(workers=1, time_limit=0.02) as pool:
        metrics = learner.step(pool)
    assert metrics["unjudged_timeout"] == 16 and metrics["reward_mean"] == 0
    assert [metrics[f"unjudged_{reason}"] for reason in UNJUDGED if reason != "timeout"] == [0] * (len(UNJUDGED) - 1)


@pytest.mark.parametrize("worth", ["wrong", "left_out"])
def test_what_an_unjudged_response_is_worth(make_run: MakeRun, tmp_path: Path, worth: str) -> None:
    learner = Learner(make_run({"unjudged": worth, "unjudged_limit": 1}), "cpu")
    prepared = learner.prepare(Pool(*DRAWN))
    counted = [1.0, 0.0, 0.0, 0.0] if worth == "wrong" else [1.0, 0.0, 0.0]
    mean, spread = statistics.fmean(counted), statistics.stdev(counted)
    right, wrong = ((reward - mean) / (spread + 1e-6) for reward in (1.0, 0.0))
    expected = [right, wrong if worth == "wrong" else 0.0, wrong, wrong]
    torch.testing.assert_close(prepared.batch.advantages, torch.tensor(expected * 4))
    assert prepared.metrics["unjudged_timeout"] == 4
    assert prepared.metrics["reward_mean"] == pytest.approx(mean)


def test_a_method_that_is_compared_leaves_out_the_same_responses(make_run: MakeRun) -> None:
    """RLOO's advantage: the reward less the mean of the others, of three that count; of four the right one had 0.89."""
    learner = Learner(make_run({"unjudged": "left_out", "unjudged_limit": 1}), "cpu")
    rloo = compose({**learner.run.method, "advantage": {"name": "rloo"}})
    viewed = Viewed.by(rloo, learner, learner.prepare(Pool(*DRAWN)))
    torch.testing.assert_close(viewed.weighted_advantages[:, 0], torch.tensor([1.0, 0.0, -0.5, -0.5] * 4))


def test_a_group_that_nobody_judged_has_no_advantage_and_no_contrast() -> None:
    verdicts = [Verdict.of(None, reason, 0.0) for reason in (Reason.MEMORY, Reason.MEMORY, Reason.MATCH, Reason.MEMORY)]
    groups = torch.tensor([0, 0, 1, 1])
    rewards, counted = training_rewards(verdicts, groups, "left_out")
    assert rewards.tolist() == [0, 0, 1, 1] and counted.tolist() == [False, False, True, False]
    assert not DynamicSampling().keeps(rewards.view(2, 2)).any()
    entry: dict[str, Any] = {"advantage": {"name": "rloo"}, "loss": {"name": "clipped"}}
    method = compose({**entry, "batching": {"assignment": {"name": "random_split"}}})
    lengths = torch.tensor([3, 3, 3, 3])
    for alone in (counted, torch.zeros(4, dtype=torch.bool)):
        assert not method.advantages(rewards, groups, lengths, 9, alone).any()


def test_a_training_stops_above_its_share_of_unjudged_responses(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of four: 4 of the first step's 16 responses are allowed, 8 of 32 too, and 12 of 48 are not."""
    monkeypatch.setattr("rlvr.engines.local.train.GradingPool", lambda *_, **__: Pool(*DRAWN))
    run = make_run()
    with pytest.raises(UserError) as error:
        train(run, tmp_path / "run", Execution())
    message = (
        "tiny-dapo-s1: step 3: the grader failed on 12 of 48 responses (timeout 12); accepted: 10 responses, or 10 %"
    )
    assert str(error.value) == message.replace("10 %", "10% of them (training.unjudged_limit)")
    with pytest.raises(UserError, match="12 of 48"):  # continued: the steps before count
        train(run, tmp_path / "run", Execution())
    train(make_run({"unjudged_limit": 0.25}), tmp_path / "allowed", Execution())
    monkeypatch.setattr("rlvr.engines.local.train.GradingPool", lambda *_, **__: Pool(Reason.MATCH, Reason.UNPARSABLE))
    train(make_run(), tmp_path / "unread", Execution())  # the policy's own fault


def test_a_run_without_the_keys_is_the_run_of_before(make_run: MakeRun) -> None:
    assert not {"unjudged", "unjudged_limit"} & make_run({"unjudged": "wrong"}).parameters()["training"].keys()
    with pytest.raises(InvalidInput, match=r"unjudged.*'right'.*wrong, left_out"):
        make_run({"unjudged": "right"})
