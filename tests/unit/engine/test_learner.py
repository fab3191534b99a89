"""What a step hands from one part to the next: nothing mixed up between rollouts, steps, rounds and temperatures."""

import itertools
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

import evals.generation.decoder_model
from evals.core.files import read_jsonl
from evals.core.run_spec import LocalRun
from evals.generation.sampler import sample
from evals.grading import GradingPool, Reason, Verdict
from rlvr.engines.local.learner import Learner, Updater
from rlvr.engines.local.policy import TokenBatch, response_states
from rlvr.engines.local.rollout import PromptOrder, Rollouts
from rlvr.methods.losses.base import Tokens
from tests.unit.engine.conftest import MakeRun

TEMPERATURE = 0.6
PARTED = {
    "version": 1,
    "advantage": {"name": "grpo"},
    # Weights of 0 and 1: what reaches the update is a rollout's advantage or nothing.
    "token_weights": {"name": "forking_tokens", "top_ratio": 0.5, "denominator": "all"},
    "loss": {"name": "clipped"},
    "batching": {"assignment": {"name": "random_split"}, "selection": {"name": "reward_balanced", "alpha": 0.5}},
}


class Update:
    """The arguments of one call of :meth:`Updater.update`, and its metrics."""

    def __init__(self, arguments: Sequence[Any], metrics: dict[str, float]) -> None:
        self.tokens: TokenBatch = arguments[0]
        self.old_log_probs: Tensor = arguments[1]
        self.weighted_advantages: Tensor = arguments[2]
        self.group_ids: Tensor = arguments[3]
        self.mini_batches: list[Tensor] = arguments[4]
        self.metrics = metrics


@pytest.fixture
def updates(monkeypatch: pytest.MonkeyPatch) -> list[Update]:
    """Every update that is made during the test."""
    made: list[Update] = []
    original = Updater.update

    def recorded(updater: Updater, *arguments: Any) -> dict[str, float]:
        metrics = original(updater, *arguments)
        made.append(Update(arguments, metrics))
        return metrics

    monkeypatch.setattr(Updater, "update", recorded)
    return made


@pytest.fixture
def sampled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[list[int]], list[list[str]], list[list[list[int]]]]]:
    """Prompts, identities and response tokens of every call of the sampler, one call a round."""
    calls = []
    original = sample

    def recorded(decoder: Any, prompts: Any, identities: Any, *rest: Any) -> Any:
        groups = original(decoder, prompts, identities, *rest)
        calls.append((prompts, identities, [[response.tokens for response in group] for group in groups]))
        return groups

    monkeypatch.setattr(evals.generation.decoder_model, "sample", recorded)
    return calls


def run_steps(run: LocalRun, steps: int) -> Learner:
    learner = Learner(run, "cpu")
    with GradingPool(workers=1) as pool:
        for _ in range(steps):
            learner.position.metrics.append(learner.step(pool))
    return learner


def is_correct(response: str, answer: str) -> bool:
    """A generated problem's answer is one digit in a box; an unfinished response has none."""
    return re.findall(r"\\boxed\{(.)\}", response)[-1:] == [answer]


def test_every_rollout_has_its_own(make_run: MakeRun, study_files: Path, updates: list[Update], sampled: Any) -> None:
    learner = run_steps(make_run(method=PARTED, training={"temperature": TEMPERATURE, "updates_per_step": 1}), 1)
    (update,) = updates
    answers = {
        tuple(learner.tokenizer.encode(row["problem"] + "\n").ids): row["answer"]
        for row in read_jsonl(study_files / "problems" / "problems.jsonl")
    }
    advantages: dict[tuple[int, tuple[int, ...]], float] = {}
    all_rewards: list[float] = []
    groups = [pair for prompts, _, responses in sampled for pair in zip(prompts, responses, strict=True)]
    for group, (prompt, responses) in enumerate(groups):
        texts = [learner.tokenizer.decode(response, skip_special_tokens=True) for response in responses]
        rewards = [float(is_correct(text, answers[tuple(prompt)])) for text in texts]
        all_rewards += rewards
        spread = statistics.stdev(rewards)
        for response, reward in zip(responses, rewards, strict=True):
            value = (reward - statistics.fmean(rewards)) / (spread + 1e-6) if spread else 0.0
            advantages[group, tuple(response)] = value
    assert len(groups) > 4, "one round was enough: nothing was selected"
    metrics = learner.position.metrics[0]
    assert metrics["reward_mean"] == pytest.approx(statistics.fmean(all_rewards)), "not of what the policy does"
    assert metrics["tokens_generated"] == sum(len(response) for _, responses in groups for response in responses)
    assert metrics["prompts_sampled"] == len(groups)
    model = AutoModelForCausalLM.from_pretrained(study_files / "base" / "tiny" / "checkpoint")
    selected = signalled = 0
    for row, (prompt, response) in enumerate(zip(update.tokens.prompts, update.tokens.responses, strict=True)):
        group = int(update.group_ids[row])
        assert list(prompt) == list(groups[group][0])
        weighted = update.weighted_advantages[row, : len(response)]
        expected = advantages[group, tuple(response)]
        kept = weighted[weighted != 0]
        torch.testing.assert_close(kept, torch.full_like(kept, expected))
        selected += len(kept)
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1]
        log_probs = (logits / TEMPERATURE).log_softmax(-1)[torch.arange(len(response)), torch.tensor(response)]
        torch.testing.assert_close(update.old_log_probs[row, : len(response)], log_probs, atol=1e-4, rtol=1e-4)
        assert not update.weighted_advantages[row, len(response) :].any()
        signalled += len(response) if expected else 0
    assert 0.3 * signalled < selected < 0.8 * signalled, "the weights were not used"
    # One update: the policy that is scored is the one that sampled, at the same temperature.
    assert update.metrics["approximate_kl"] == pytest.approx(0.0, abs=1e-9)


def test_tokens_are_drawn_at_the_temperature_they_are_scored_at(make_run: MakeRun, updates: list[Update]) -> None:
    """The mean surprise of the tokens is then the mean entropy that the step reports."""
    run = make_run(training={"temperature": TEMPERATURE, "samples_per_prompt": 64, "max_new_tokens": 12})
    learner = run_steps(run, 1)
    (update,) = updates
    surprises = torch.cat([-row[: len(response)] for row, response in zip(
        update.old_log_probs, update.tokens.responses, strict=True)])  # fmt: skip
    error = float(surprises.std()) / len(surprises) ** 0.5
    assert abs(float(surprises.mean()) - learner.position.metrics[0]["entropy"]) < 4 * error
    assert 4 * error < 0.15 * learner.position.metrics[0]["entropy"]


def test_random_numbers_and_prompts(make_run: MakeRun, study_files: Path, updates: list[Update], sampled: Any) -> None:
    run = make_run(method=PARTED)
    learner = run_steps(run, 3)
    identities = [name for _, names, _ in sampled for name in itertools.chain(*names)]
    assert len(set(identities)) == len(identities)
    assert all(name.startswith("rollout/1/") for name in identities)
    problems = read_jsonl(study_files / "problems" / "problems.jsonl")
    expected = PromptOrder(problems, run.seed).take(0, len(sampled) * run.training.prompts_per_step)
    found = [
        learner.tokenizer.decode(prompt, skip_special_tokens=False) for prompts, _, _ in sampled for prompt in prompts
    ]
    assert found == [row["problem"] + "\n" for row in expected]
    assert learner.position.prompts_used == len(expected)
    parts = {tuple(update.mini_batches[0].tolist()) for update in updates}
    assert len(parts) == len(updates), "steps share their random partition"


@pytest.mark.parametrize("coupling", ["rollout", "group", "mini_batch"])
def test_a_loss_is_called_with_the_rollouts_that_it_may_not_be_parted_from(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, updates: list[Update], coupling: str
) -> None:
    run = make_run(training={"micro_batch_size": 3})
    learner = Learner(run, "cpu")
    loss = learner.method.loss
    calls: list[tuple[Tensor, Tensor]] = []
    original = type(loss).token_loss

    def recorded(self: Any, tokens: Tokens) -> Any:
        calls.append((tokens.advantages[:, 0], tokens.group_ids))
        return original(self, tokens)

    monkeypatch.setattr(type(loss), "token_loss", recorded)
    monkeypatch.setattr(type(loss), "coupling", coupling)
    with GradingPool(workers=1) as pool:
        learner.step(pool)
    (update,) = updates
    assert [len(advantages) for advantages, _ in calls] == ([3, 3, 2] if coupling == "rollout" else [8]) * 2
    order = torch.cat(update.mini_batches)
    torch.testing.assert_close(torch.cat([advantages for advantages, _ in calls]), update.weighted_advantages[order, 0])
    assert torch.equal(torch.cat([group_ids for _, group_ids in calls]), update.group_ids[order])


def test_rollouts_are_drawn_from_the_likeliest_tokens_and_scored_under_all(make_run: MakeRun, tmp_path: Path) -> None:
    """Every token of top-p 0.5 is among the likeliest that reach one half, and its log-prob is not made to fit them."""
    run = make_run({"top_p": 0.5, "temperature": TEMPERATURE})
    learner = Learner(run, "cpu")
    with GradingPool(workers=1) as pool:
        batch, tokens = (prepared := learner.prepare(pool)).batch, prepared.rollouts.tokens
    states, drawn = response_states(learner.model, tokens)
    distribution = learner.model.logits(states, TEMPERATURE).double().softmax(dim=-1)
    own = distribution.gather(1, drawn[:, None])
    likelier = (distribution * (distribution > own)).sum(dim=1)
    assert bool((likelier < 0.5 + 1e-5).all())
    torch.testing.assert_close(batch.old_log_probs[batch.response_mask], own[:, 0].log().float(), atol=1e-5, rtol=1e-4)
    assert float(own.detach().min()) < 0.5  # the truncated distribution would say 1 of some of these
    descending = distribution.sort(dim=-1, descending=True).values
    nucleus = descending * (descending.cumsum(dim=-1) - descending < 0.5)
    nucleus = nucleus / nucleus.sum(dim=-1, keepdim=True)
    for name, probabilities in {"entropy": distribution, "entropy_drawn": nucleus}.items():
        by_hand = -(probabilities * probabilities.clamp(min=1e-300).log()).sum(dim=-1).mean()
        assert prepared.metrics[name] == pytest.approx(float(by_hand), abs=1e-5), name
    assert prepared.metrics["entropy_drawn"] < prepared.metrics["entropy"] - 0.1
    # A run without the key is the run of today.
    assert "top_p" not in make_run({"top_p": 1}).parameters()["training"]


def test_metrics_of_sampled_tokens(make_run: MakeRun, updates: list[Update], monkeypatch: pytest.MonkeyPatch) -> None:
    """A selection that keeps the mixed groups: of two prompts' eight rollouts the first has rewards 0 and 1."""
    rounds = itertools.count()

    def verdicts(rollouts: Rollouts, pool: Any) -> list[Verdict]:
        mixed = [Reason.MATCH, *[Reason.MISMATCH] * 3]
        return [Verdict.of(None, reason, 0.0) for reason in [*mixed, *[Reason.MATCH] * 4]] if next(rounds) < 2 else []

    monkeypatch.setattr(Rollouts, "verdicts", verdicts)
    batching = {"assignment": {"name": "random_split"}, "selection": {"name": "dynamic_sampling"}}
    learner = Learner(make_run({"prompts_per_step": 2}, method={**PARTED, "batching": batching}), "cpu")
    with GradingPool(workers=1) as pool:
        prepared = learner.prepare(pool)
    metrics, rollouts = prepared.metrics, prepared.rollouts
    assert metrics["prompts_sampled"] == 4 and metrics["reward_mean"] == 10 / 16
    assert metrics["reward_mean_trained"] == 2 / 8 == float(prepared.rewards.mean())
    assert metrics["response_length_mean_trained"] == float(rollouts.lengths.float().mean())
    assert metrics["response_length_mean"] == metrics["tokens_generated"] / 16
    of_kept = float(rollouts.entropies.double().sum()) / int(rollouts.lengths.sum())
    assert metrics["entropy"] == pytest.approx(of_kept, rel=1e-5) != pytest.approx(metrics["entropy_sampled"], rel=1e-5)


def test_a_step_with_prompts_computed_once_is_the_same_up_to_rounding(make_run: MakeRun, tmp_path: Path) -> None:
    """Of DelTA, which reads hidden states besides; no training without the setting is another run because of it."""
    method = {**make_run().method, "token_weights": {"name": "delta"}}
    found = []
    for changes in ({}, {"share_prompts": True}):
        run = make_run(changes, method=method, method_name="delta")
        assert ("share_prompts" in run.parameters()["training"]) is bool(changes)
        learner = Learner(run, "cpu")
        with GradingPool(workers=1) as pool:
            prepared = learner.prepare(pool)
            metrics = learner.update(prepared)
        assert prepared.rewards.any()
        found.append((prepared, metrics, [weight.detach() for weight in learner.model.parameters()]))
    (each, each_metrics, each_weights), (once, once_metrics, once_weights) = found
    assert each.rollouts.tokens.responses == once.rollouts.tokens.responses
    torch.testing.assert_close(once.weights, each.weights, atol=1e-4, rtol=1e-4)
    assert once_metrics["grad_norm"] == pytest.approx(each_metrics["grad_norm"], rel=1e-4)
    assert once_metrics["grad_norm"] > 0
    for one, other in zip(once_weights, each_weights, strict=True):
        torch.testing.assert_close(one, other, atol=1e-3, rtol=1e-3)
