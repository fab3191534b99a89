"""Responses that nobody could judge: counted by reason, wrong or left out of their groups, and not too many of them."""

import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, get_args

import pandas as pd
import pytest
import torch
from transformers import AutoModelForCausalLM

from evals.core.errors import InvalidInput, UserError
from evals.core.manifest import read_manifest
from evals.core.random import generator_for
from evals.core.run_spec import Execution, LocalRun
from evals.grading import UNJUDGED, Case, GradingPool, Reason, Verdict
from rlvr.engines.local.contrast import Viewed
from rlvr.engines.local.learner import Learner
from rlvr.engines.local.policy import token_log_probs
from rlvr.engines.local.rollout import Rollouts
from rlvr.engines.local.train import train
from rlvr.engines.unjudged import COUNTED, training_rewards
from rlvr.methods.advantages import GRPO, FlippedRewards, MajorityVote, RandomRewards
from rlvr.methods.aggregation import Mode
from rlvr.methods.method import compose
from rlvr.methods.selections import DynamicSampling
from rlvr.study.catalogue import load_catalogue, resolve_method
from tests.unit.engine.conftest import DAPO, MakeRun

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
    assert [metrics[f"unjudged_{reason}"] for reason in COUNTED if reason != "timeout"] == [0] * (len(COUNTED) - 1)


@pytest.mark.parametrize("worth", ["wrong", "left_out"])
def test_what_an_unjudged_response_is_worth(make_run: MakeRun, tmp_path: Path, worth: str) -> None:
    learner = Learner(make_run({"unjudged": worth, "unjudged_limit": 1}), "cpu")
    prepared = learner.prepare(Pool(*DRAWN))
    counted = [1.0, 0.0, 0.0, 0.0] if worth == "wrong" else [1.0, 0.0, 0.0]
    mean, spread = statistics.fmean(counted), statistics.stdev(counted)
    expected = [(reward - mean) / (spread + 1e-6) for reward in counted]
    torch.testing.assert_close(prepared.batch.advantages, torch.tensor(expected * 4))
    assert prepared.metrics["unjudged_timeout"] == 4
    assert prepared.metrics["reward_mean"] == pytest.approx(mean)


@pytest.mark.parametrize("aggregation", get_args(Mode))
def test_what_is_left_out_is_in_no_mean(make_run: MakeRun, aggregation: str) -> None:
    """The first update's gradient is worked out by hand over the judged responses, three of each prompt's four."""
    method = {**DAPO, "loss": {"name": "clipped", "aggregation": aggregation}}
    learner = Learner(make_run({"unjudged": "left_out", "unjudged_limit": 1}, method=method), "cpu")
    prepared = learner.prepare(Pool(*DRAWN))
    assert prepared.rollouts.group_ids.tolist() == [group for group in range(4) for _ in range(3)]
    assert sum(map(len, prepared.mini_batches)) == 12
    rows = prepared.mini_batches[0]
    tokens, groups = prepared.rollouts.tokens.select(rows), prepared.rollouts.group_ids[rows]
    lengths = torch.tensor([len(response) for response in tokens.responses])
    log_probs = token_log_probs(learner.model, tokens, 1.0).split(lengths.tolist())
    sums = torch.stack([part.sum() for part in log_probs]) * prepared.batch.advantages[rows]
    by_hand = {
        "token-mean": sums.sum() / lengths.sum(),
        "seq-mean-token-mean": (sums / lengths).mean(),
        "seq-mean-token-sum": sums.mean(),
        "seq-mean-token-sum-norm": sums.mean() / 16,
        "prompt-mean": torch.stack(
            [sums[groups == g].sum() / lengths[groups == g].sum() for g in groups.unique()]
        ).mean(),
    }
    expected = torch.autograd.grad(-by_hand[aggregation], list(learner.model.parameters()))
    found: list[torch.Tensor] = []
    learner.updater.observer = lambda number: found.extend(
        weight.grad.clone() for weight in learner.model.parameters() if number == 0 and weight.grad is not None
    )
    metrics = learner.update(prepared)
    for gradient, one in zip(found, expected, strict=True):
        torch.testing.assert_close(gradient, one, rtol=1e-3, atol=1e-5)
    assert metrics["response_length_mean"] == pytest.approx(float(prepared.rollouts.lengths.float().mean()))


def test_one_response_that_is_left_teaches_nothing(make_run: MakeRun) -> None:
    """Of the second prompt's group one of four was judged: it is left out with the others, and its reward too."""
    lone = (Reason.MATCH, Reason.TIMEOUT, Reason.TIMEOUT, Reason.TIMEOUT)
    learner = Learner(make_run({"unjudged": "left_out", "unjudged_limit": 1}), "cpu")
    prepared = learner.prepare(Pool(*DRAWN, *lone))
    assert prepared.rollouts.group_ids.tolist() == [0, 0, 0, 2, 2, 2]
    assert sorted(torch.cat(prepared.mini_batches).tolist()) == list(range(6))
    assert prepared.metrics["reward_mean"] == pytest.approx(1 / 3) and prepared.metrics["unjudged_timeout"] == 8
    with pytest.raises(UserError, match="step 1: of 16 responses none is left in"):
        Learner(learner.run, "cpu").prepare(Pool(*lone))


def test_a_method_that_is_compared_leaves_out_the_same_responses(make_run: MakeRun) -> None:
    """RLOO's advantage: the reward less the mean of the others, of three that count; of four the right one had 0.89."""
    learner = Learner(make_run({"unjudged": "left_out", "unjudged_limit": 1}), "cpu")
    rloo = compose({**learner.run.method, "advantage": {"name": "rloo"}})
    viewed = Viewed.by(rloo, learner, learner.prepare(Pool(*DRAWN)))
    torch.testing.assert_close(viewed.weighted_advantages[:, 0], torch.tensor([1.0, -0.5, -0.5] * 4))


def test_a_group_that_nobody_judged_has_no_advantage_and_no_contrast() -> None:
    verdicts = [Verdict.of(None, reason, 0.0) for reason in (Reason.MEMORY, Reason.MEMORY, Reason.MATCH, Reason.MEMORY)]
    groups = torch.tensor([0, 0, 1, 1])
    rewards, counted = training_rewards(verdicts, groups, "left_out")
    assert rewards.tolist() == [0, 0, 1, 1] and not counted.any()
    assert not DynamicSampling().keeps(rewards.view(2, 2)).any()
    entry: dict[str, Any] = {"advantage": {"name": "rloo"}, "loss": {"name": "clipped"}}
    method = compose({**entry, "batching": {"assignment": {"name": "random_split"}}})
    lengths = torch.tensor([3, 3, 3, 3])
    assert not method.advantages(rewards, groups, lengths, 9, counted).any()


def test_too_many_unjudged_end_a_training(make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


# A run on random rewards: true ones in the metrics, drawn ones in the advantages, anew at each step.


def test_a_training_draws_its_rewards_anew_at_each_step(make_run: Callable[..., LocalRun]) -> None:
    entry = resolve_method("dapo_random_rewards", {}, load_catalogue(), "test")
    run = make_run({"prompts_per_step": 8, "samples_per_prompt": 8}, method=entry, method_name="dapo_random_rewards")
    learner, seen = Learner(run, "cpu"), list[torch.Tensor]()
    with GradingPool(workers=1) as pool:
        for step in range(2):
            prepared = learner.prepare(pool)
            rollouts = prepared.rollouts
            drawn = RandomRewards()(prepared.rewards, rollouts.lengths, 16, generator_for("rewards", run.seed, step))
            expected = GRPO()(drawn, rollouts.group_ids, rollouts.lengths)
            torch.testing.assert_close(prepared.batch.advantages, expected)
            assert abs(prepared.metrics["reward_mean"] - float(prepared.rewards.mean())) < 1e-6
            assert not torch.equal(drawn, prepared.rewards)
            seen.append(drawn)
            learner.update(prepared)
    assert not torch.equal(*seen)


# What a run records of itself: its distance to the base model, passes over its problems, its optimizer.


def test_scores_along_a_training_have_the_distance_to_the_base_model(
    make_run: MakeRun, study_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As transformers computes both models, from the responses that the policy drew."""
    validation = {"problems": str(study_files / "problems"), "every": 2, "samples_per_problem": 2}
    run = make_run({"learning_rate": 0.01}, validation=validation)
    learner, drawn, measure = Learner(run, "cpu"), [], Learner._base_kl

    def recorded(own: Learner, rollouts: Rollouts) -> float:
        drawn.append(rollouts.tokens)
        return measure(own, rollouts)

    monkeypatch.setattr(Learner, "_base_kl", recorded)
    with GradingPool(workers=1) as pool:
        learner.validate(pool)
        for _ in range(2):
            learner.position.metrics.append(learner.step(pool))
        learner.validate(pool)
    start, end = (row["base_kl"] for row in learner.position.validation)
    assert start == 0 and end > 1e-4
    base = study_files / "base" / "tiny" / "checkpoint"
    models = [AutoModelForCausalLM.from_pretrained(base).double() for _ in range(2)]
    models[1].load_state_dict({name: value.double() for name, value in learner.model.weights().items()}, strict=False)
    terms = []
    for prompt, response in zip(drawn[1].prompts, drawn[1].responses, strict=True):
        tokens, own = torch.tensor([[*prompt, *response]]), torch.tensor(response)[:, None]
        with torch.no_grad():
            of_base, of_policy = (
                model(tokens).logits[0, len(prompt) - 1 : -1].log_softmax(-1).gather(1, own) for model in models
            )
        log_ratio = of_base - of_policy
        terms.append((log_ratio.exp() - 1 - log_ratio)[:, 0])
    assert end == pytest.approx(float(torch.cat(terms).mean()), rel=1e-3)


def test_a_training_counts_passes_over_its_problems(make_run: MakeRun, tmp_path: Path) -> None:
    train(make_run({"adam_beta2": 0.95}), tmp_path / "run", Execution())
    metrics = pd.read_parquet(tmp_path / "run" / "metrics.parquet")
    assert metrics["training_passes"].tolist() == pytest.approx([0.4, 0.8, 1.2, 1.6])  # 4 of 10 problems a step
    optimizer = {"name": "AdamW", "betas": [0.9, 0.95], "epsilon": 1e-8}
    assert read_manifest(tmp_path / "run" / "manifest.json", "run").details["optimizer"] == optimizer
    parameters = make_run({"adam_beta2": 0.95, "adam_epsilon": 1e-8}).parameters()["training"]
    assert parameters["adam_beta2"] == 0.95 and not {"adam_beta1", "adam_epsilon"} & parameters.keys()
    with pytest.raises(InvalidInput, match="adam_beta1"):
        make_run({"adam_beta1": 1.0})


def test_a_majority_is_that_of_the_last_boxes_of_a_group() -> None:
    said = [
        "so \\boxed{1} or \\boxed{3}",
        "\\boxed{ 3}",
        "\\boxed{1}",
        "none",
        "\\boxed{3}",
        "\\boxed{7}",
        "\\boxed{8}",
        "no",
    ]
    groups = torch.tensor([5, 5, 5, 5, 2, 2, 2, 9])
    shaped = MajorityVote().of_texts(torch.zeros(8), groups, said)
    halves = ["\\boxed{\\frac{1}{2}}", "or \\boxed{ \\frac{1}{2} } it is", "\\boxed{3}", "\\boxed{\\frac{1}{2}"]
    assert MajorityVote().of_texts(torch.zeros(4), groups[:4], halves).tolist() == [1, 1, 0, 0]
    assert shaped.tolist() == [1, 1, 0, 0, 1, 0, 0, 0], "of 3, 7 and 8, one each, the first; nothing where none is said"


def test_a_training_on_majority_votes_takes_them_from_the_texts(make_run: Callable[..., LocalRun]) -> None:
    changes = {"reward_shaping": {"name": "majority_vote"}}
    entry = resolve_method("dapo", changes, load_catalogue(), "test")
    learner = Learner(make_run({"prompts_per_step": 8, "samples_per_prompt": 8}, method=entry), "cpu")
    with GradingPool(workers=1) as pool:
        prepared = learner.prepare(pool)
    rollouts, texts = prepared.rollouts, [case.prediction for case in prepared.rollouts.cases]
    votes = MajorityVote().of_texts(prepared.rewards, rollouts.group_ids, texts)
    assert not torch.equal(votes, prepared.rewards) and 0 < float(votes.mean()) < 1
    torch.testing.assert_close(prepared.batch.advantages, GRPO()(votes, rollouts.group_ids, rollouts.lengths))
    of_rollouts = prepared.rewards, rollouts.group_ids, rollouts.lengths, 16
    counted = rollouts.group_ids != 3
    left = compose(entry, "dapo", 16).advantages(*of_rollouts, counted, texts=texts)
    torch.testing.assert_close(left[counted], prepared.batch.advantages[counted])
    with pytest.raises(ValueError, match="texts"):
        compose(entry, "dapo", 16).advantages(*of_rollouts)


def test_flipped_rewards_are_flipped_as_often_as_asked() -> None:
    rewards = torch.tensor([0.0, 1.0]).repeat(5000)
    flipped = FlippedRewards(0.4)(rewards, rewards, 1, generator_for("rewards", 1, 0))
    assert float((flipped != rewards).double().mean()) == pytest.approx(0.4, abs=0.02)
    assert set(flipped.tolist()) == {0.0, 1.0}
