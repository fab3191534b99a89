"""What a step hands from one part to the next: nothing mixed up between rollouts, steps, rounds and temperatures."""

import itertools
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

import evals.generation.decoder_model
from evals.core.files import read_jsonl
from evals.core.run_spec import LocalRun
from evals.generation.checkpoint import Checkpoint
from evals.generation.sampler import sample
from evals.grading import GradingPool, Reason, Verdict
from rlvr.engines.local.adamw import AdamW
from rlvr.engines.local.learner import Learner, OtherPolicies, Updater
from rlvr.engines.local.policy import (
    TokenBatch,
    response_states,
    score_in_chunks,
    token_log_probs,
    token_scores,
    unpack,
)
from rlvr.engines.local.rollout import PromptOrder, Rollouts
from rlvr.methods.advantages import GRPO
from rlvr.methods.aggregation import Aggregation, Mode, Normaliser
from rlvr.methods.assignments import RandomSplit
from rlvr.methods.loss_terms import Fixed, LossTerm, Truncated
from rlvr.methods.losses.base import PolicyLoss, TokenLoss, Tokens
from rlvr.methods.losses.sequence_ratios import GSPO
from rlvr.methods.losses.token_ratios import Clipped
from rlvr.methods.method import Method
from tests.unit.engine.conftest import MakeRun, run_steps

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


# An optimizer step does not depend on how its mini-batch is cut into micro-batches.

GENERATOR = torch.Generator().manual_seed(5)
RESPONSES = [torch.randint(3, 40, (n,), generator=GENERATOR).tolist() for n in (1, 7, 3, 12, 5, 5, 2, 9)]
TOKENS = TokenBatch([[5, 6, 7]] * 8, RESPONSES)
MINI_BATCHES = [torch.tensor([7, 0, 3, 2]), torch.tensor([1, 6, 5, 4])]


def updated_weights(
    study_files: Path, run: LocalRun, method: Method, **micro_batch: int
) -> tuple[list[torch.Tensor], dict[str, float]]:
    model = Checkpoint(study_files / "base" / "tiny" / "checkpoint").model("cpu")
    log_probs, _ = score_in_chunks(model, TOKENS, 1.0, 8)
    advantages = torch.tensor([1.0, -1.0, 0.5, 0.0, -2.0, 1.0, 0.3, -0.1])[:, None].expand(8, 12)
    training = run.training.model_copy(update=micro_batch)
    updater = Updater(model, method, training, 1)
    old_log_probs = unpack(log_probs, TOKENS.response_mask) - 0.1
    metrics = updater.update(TOKENS, old_log_probs, advantages, torch.arange(8) // 4, MINI_BATCHES, 0, 0)
    return [parameter.detach() for parameter in model.parameters()], metrics


@pytest.mark.parametrize(
    ("loss", "mode"), [(Clipped(), "token-mean"), (GSPO(), "seq-mean-token-mean"), (Clipped(), "seq-mean-token-mean")]
)
def test_micro_batches_add_up(
    study_files: Path, make_run: Callable[..., LocalRun], loss: PolicyLoss, mode: Mode
) -> None:
    method = Method(GRPO(), None, loss, Aggregation(mode), RandomSplit(), None)
    whole, metrics = updated_weights(study_files, make_run(), method, micro_batch_size=4)
    for limit in ({"micro_batch_size": 1}, {"micro_batch_tokens": 20}):
        cut, cut_metrics = updated_weights(study_files, make_run(), method, **limit)
        for left, right in zip(whole, cut, strict=True):
            torch.testing.assert_close(left, right, atol=1e-5, rtol=1e-4)
        assert metrics == pytest.approx(cut_metrics, rel=1e-4, abs=1e-6)
    # Two updates within a warm-up of two: half the learning rate, then all of it.
    assert metrics["learning_rate"] == pytest.approx((0.0005 + 0.001) / 2)


@dataclass(frozen=True)
class Entropic(Clipped):
    """A loss with a term that no advantage multiplies."""

    def token_loss(self, tokens: Tokens) -> TokenLoss:
        loss = super().token_loss(tokens)
        return replace(loss, values=loss.values + 0.1 * tokens.log_probs)


@pytest.mark.parametrize("loss", [Clipped(), Entropic()])
def test_the_gradient_of_a_part(study_files: Path, make_run: Callable[..., LocalRun], loss: PolicyLoss) -> None:
    """Nothing for one loss, and another term's for the other: as by one backward pass through everything."""
    advantages = torch.tensor([1.0, 0.0, 0.5, 0.0, 0.0, 1.0, 0.0, -0.1])[:, None].expand(8, 12)
    method = Method(GRPO(), None, loss, Aggregation("token-mean"), RandomSplit(), None)
    model = Checkpoint(study_files / "base" / "tiny" / "checkpoint").model("cpu")
    old = unpack(score_in_chunks(model, TOKENS, 1.0, 8)[0], TOKENS.response_mask) - 0.1
    found = Updater(model, method, make_run().training.model_copy(update={"gradient_clip": 1e9}), 1)
    everything = [torch.arange(8)]
    metrics = found.update(TOKENS, old, advantages, torch.arange(8) // 4, everything, 0, 0)
    other = Checkpoint(study_files / "base" / "tiny" / "checkpoint").model("cpu")
    mask = TOKENS.response_mask
    log_probs = unpack(token_log_probs(other, TOKENS, 1.0), mask)
    token_loss, _ = loss(log_probs, old, advantages, mask, torch.arange(8) // 4, GENERATOR, method.aggregation)
    total = method.aggregation(token_loss, mask, Normaliser.of(mask))
    total.backward()
    assert metrics["loss"] == pytest.approx(float(total.detach()), rel=1e-4)
    for left, right in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(left.grad, right.grad, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("constants", [((0.9, 0.999), 1e-8), ((0.8, 0.9), 1e-3)])
def test_the_optimizer_is_torchs_and_survives_a_round_trip(constants: tuple[tuple[float, float], float]) -> None:
    betas, epsilon = constants
    generator = torch.Generator().manual_seed(3)
    ours = [torch.randn(5, 3, generator=generator, requires_grad=True), torch.randn(4, requires_grad=True)]
    theirs = [each.detach().clone().requires_grad_() for each in ours]
    optimizer = AdamW(ours, 0.1, betas, epsilon)
    reference = torch.optim.AdamW(theirs, weight_decay=0.1, betas=betas, eps=epsilon)
    for step in range(4):
        if step == 2:  # a new optimizer goes on where the other one ended
            optimizer, before = AdamW(ours, 0.1, betas, epsilon), optimizer
            optimizer.load_state_dict(before.state_dict())
        for left, right in zip(ours, theirs, strict=True):
            left.grad = torch.randn(left.shape, generator=generator)
            right.grad = left.grad.clone()
        reference.param_groups[0]["lr"] = 0.01 * (step + 1)
        reference.step()
        optimizer.step(0.01 * (step + 1))
        torch.testing.assert_close(ours, theirs)


def test_terms_have_the_gradient_of_one_pass(study_files: Path, make_run: Callable[..., LocalRun]) -> None:
    """KL, entropy bonus and a correction, with rollouts without an advantage, in micro-batches of three."""
    advantages = torch.tensor([1.0, 0.0, 0.5, 0.0, 0.0, 1.0, 0.0, -0.1])[:, None].expand(8, 12)
    method = Method(
        GRPO(),
        None,
        Clipped(),
        Aggregation("prompt-mean"),
        RandomSplit(),
        None,
        correction=Truncated(cap=1.05),
        kl=LossTerm(coefficient=0.3),
        entropy_bonus=Fixed(),
    )
    mask, groups = TOKENS.response_mask, torch.arange(8) // 4
    model = Checkpoint(study_files / "base" / "tiny" / "checkpoint").model("cpu")
    scored = unpack(score_in_chunks(model, TOKENS, 1.0, 8)[0], mask)
    old, sampler, reference = scored - 0.1, scored - 0.2, scored + 0.3
    training = make_run().training.model_copy(update={"gradient_clip": 1e9, "micro_batch_size": 3})
    others = OtherPolicies(sampler, reference, entropy_coefficient=0.2)
    updater = Updater(model, method, training, 1)
    metrics = updater.update(TOKENS, old, advantages, groups, [torch.arange(8)], 0, 0, others)
    other = Checkpoint(study_files / "base" / "tiny" / "checkpoint").model("cpu")
    log_probs, entropies = (unpack(each, mask) for each in token_scores(other, TOKENS, 1.0))
    ratios = (log_probs - old).exp()
    surrogate = -torch.minimum(ratios * advantages, ratios.clamp(0.8, 1.28) * advantages) * 1.05
    divergence = (reference - log_probs).exp() - (reference - log_probs) - 1
    values = (surrogate + 0.3 * divergence - 0.2 * entropies) * mask
    loss = sum(values[rows].sum() / mask[rows].sum() for rows in (groups == 0, groups == 1)) / 2
    loss.backward()
    gradients = zip(model.parameters(), other.parameters(), strict=True)
    assert metrics["loss"] == pytest.approx(loss.item(), rel=1e-4)
    assert metrics["correction_weight"] == pytest.approx(1.05, rel=1e-4)
    for one, expected in gradients:
        torch.testing.assert_close(one.grad, expected.grad, atol=1e-6, rtol=1e-3)
