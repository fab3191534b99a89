"""An optimizer step does not depend on how its mini-batch is cut into micro-batches."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from evals.core.run_spec import LocalRun
from evals.generation.checkpoint import Checkpoint
from rlvr.engines.local.adamw import AdamW
from rlvr.engines.local.learner import OtherPolicies, Updater
from rlvr.engines.local.policy import TokenBatch, score_in_chunks, token_log_probs, token_scores, unpack
from rlvr.methods.advantages import GRPO
from rlvr.methods.aggregation import Aggregation, Mode, Normaliser
from rlvr.methods.assignments import RandomSplit
from rlvr.methods.corrections import Truncated
from rlvr.methods.entropy_bonus import Fixed
from rlvr.methods.losses.base import PolicyLoss, TokenLoss, Tokens
from rlvr.methods.losses.sequence_ratios import GSPO
from rlvr.methods.losses.token_ratios import Clipped
from rlvr.methods.method import Method
from rlvr.methods.reference_kl import LossTerm

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
    ("loss", "mode"),
    [(Clipped(), "token-mean"), (GSPO(), "seq-mean-token-mean"), (Clipped(), "seq-mean-token-mean")],
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
