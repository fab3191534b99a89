"""Every loss of ours that verl 0.9.1 registers too: the same tensors give the same loss and the same gradient.

Where they differ the difference is computed here and explained in docs/results/verl.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from torch import Tensor

from rlvr.methods.aggregation import Aggregation, Mode, Normaliser
from rlvr.methods.losses.base import PolicyLoss
from rlvr.methods.losses.mini_batch_losses import ClipCov, KLCov
from rlvr.methods.losses.sequence_ratios import GMPO, GSPO, GSPOToken
from rlvr.methods.losses.token_ratios import CISPO, SAPO, Clipped, Reinforce
from rlvr.methods.losses.trust_regions import DPPOKL, DPPOTV, DRO
from tests.engines.mini_batches import EXTREME, MIXED, UNIFORM, Drawing, MiniBatch, drawings

pytest.importorskip("verl", reason="verl is in .venv-engines: make test-engines")

from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY, get_policy_loss_fn
from verl.workers.config import ActorConfig, PolicyLossConfig

Agrees = Callable[[str, Tensor, Tensor], None]

NEVER = 1e9
"""A dual clip that no ratio reaches: verl has no way of switching it off."""


@dataclass(frozen=True)
class Case:
    """A loss of ours, verl's registered name for it, and the settings that make verl's the same.

    Attributes:
        limit: the log-ratios compared; verl lets any pass where ours stops at 20.
        weighted: whether tokens of one response may have different advantages.
        mode: the aggregation; None for the loss's own.
    """

    loss: PolicyLoss
    verl: str
    actor: dict[str, Any]
    limit: float = float("inf")
    weighted: bool = True
    mode: Mode | None = None

    @property
    def name(self) -> str:
        """For test ids and the summary."""
        return f"loss {self.verl} ({type(self.loss).__name__})"

    @property
    def aggregation(self) -> Aggregation:
        return Aggregation(self.mode or self.loss.default_aggregation)


def clip(low: float, high: float) -> dict[str, Any]:
    return {"clip_ratio": low, "clip_ratio_low": low, "clip_ratio_high": high}


CASES = [
    Case(Clipped(), "vanilla", {**clip(0.2, 0.28), "clip_ratio_c": 10.0}),
    Case(Clipped(0.2, 0.2, None), "vanilla", {**clip(0.2, 0.2), "clip_ratio_c": NEVER}, mode="seq-mean-token-mean"),
    Case(GSPO(), "gspo", clip(3e-4, 4e-4), weighted=False),
    Case(GSPOToken(), "gspo", clip(3e-4, 4e-4)),
    Case(SAPO(), "sapo", {"tau_pos": 1.0, "tau_neg": 1.05}),
    Case(CISPO(), "cispo", clip(1.0, 0.28)),
    Case(GMPO(), "geo_mean", clip(0.4, 0.4), limit=19.0),
    Case(
        ClipCov(clip_fraction=0.2, covariance_low=0.1, covariance_high=5.0),
        "clip_cov",
        {**clip(0.2, 0.2), "policy_loss": PolicyLossConfig(clip_cov_ratio=0.2, clip_cov_lb=0.1, clip_cov_ub=5.0)},
        limit=19.0,
    ),
    Case(
        KLCov(top_fraction=0.2, kl_coefficient=1.0),
        "kl_cov",
        {"policy_loss": PolicyLossConfig(kl_cov_ratio=0.2, ppo_kl_coef=1.0)},
        limit=19.0,
    ),
    Case(Reinforce(), "gpg", {}),
    Case(DPPOTV(), "dppo_tv", {**clip(0.15, 0.15), "clip_ratio_c": 20.0}),
    Case(DPPOKL(delta_low=0.01, ratio_cap=3.0), "dppo_kl", {**clip(0.01, 0.05), "clip_ratio_c": 3.0}),
    Case(DRO(beta=0.3), "dro", {"policy_loss": PolicyLossConfig(dro_beta=0.3)}, limit=19.0),
]

NOT_OURS = {"bypass_mode"}  # a choice of verl's own losses, correction: bypass here


def actor(settings: dict[str, Any], **batch: Any) -> ActorConfig:
    """verl's configuration of the loss; ``batch`` is what its workers say about the whole mini-batch."""
    return ActorConfig(
        strategy="fsdp", rollout_n=4, ppo_micro_batch_size_per_gpu=8, **settings, global_batch_info=batch
    )


def of_ours(case: Case, batch: MiniBatch, normaliser: Normaliser | None = None) -> tuple[Tensor, Tensor]:
    """Loss [] and gradient [B, T] of our function."""
    log_probs = batch.log_probs.clone().requires_grad_()
    token_loss, _ = case.loss(
        log_probs,
        batch.old_log_probs,
        batch.advantages,
        batch.response_mask,
        batch.group_ids,
        torch.Generator().manual_seed(0),
        case.aggregation,
    )
    whole = normaliser or Normaliser.of(batch.response_mask)
    value = case.aggregation(token_loss, batch.response_mask, whole)
    return value, torch.autograd.grad(value, log_probs)[0]


def of_verl(name: str, batch: MiniBatch, mode: str, config: ActorConfig) -> tuple[Tensor, Tensor]:
    """Loss [] and gradient [B, T] of verl's function, drawing as our generator of seed 0 draws."""
    clean = batch.without_rubbish()
    log_probs = clean.log_probs.clone().requires_grad_()
    torch.manual_seed(0)
    value, _ = get_policy_loss_fn(name)(
        old_log_prob=clean.old_log_probs,
        log_prob=log_probs,
        advantages=clean.advantages,
        response_mask=clean.response_mask.long(),
        loss_agg_mode=mode,
        config=config,
    )
    return value, torch.autograd.grad(value, log_probs)[0]


def non_empty_share(batch: MiniBatch) -> float:
    """verl's geo_mean divides by all responses, ours by those with tokens."""
    return float(batch.response_mask.any(dim=1).double().mean())


def test_every_loss_that_verl_registers_is_compared_or_named_as_not_ours() -> None:
    assert set(POLICY_LOSS_REGISTRY) == {case.verl for case in CASES} | NOT_OURS


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@given(drawing=drawings)
@example(drawing=EXTREME)
@example(drawing=UNIFORM)
@example(drawing=MIXED)
@settings(max_examples=60)
def test_loss_and_gradient_are_verls(assert_agrees: Agrees, case: Case, drawing: Drawing) -> None:
    batch = drawing.mini_batch(case.weighted).within(case.limit)
    value, gradient = of_ours(case, batch)
    expected, slopes = of_verl(case.verl, batch, case.aggregation.mode, actor(case.actor))
    if case.verl == "geo_mean":
        expected, slopes = expected / non_empty_share(batch), slopes / non_empty_share(batch)
    assert_agrees(f"{case.name}, value", value, expected)
    assert_agrees(f"{case.name}, gradient", gradient, slopes)


def test_the_batches_reach_every_branch_of_the_losses() -> None:
    """Without clipped, dual-clipped, limited and drawn tokens the comparison would say little."""
    for drawing, largest in ((EXTREME, 10.0), (MIXED, 1.28)):
        batch = drawing.mini_batch()
        ratios = (batch.log_probs - batch.old_log_probs)[batch.response_mask].exp()
        signs = batch.advantages[batch.response_mask]
        assert ((signs > 0) & (ratios > 1.28)).any()
        assert ((signs < 0) & (ratios < 0.8)).any()
        assert ((signs < 0) & (ratios > largest)).any()
    for loss, metric in ((ClipCov(0.2, 0.1, 5.0), "covariance_clipped_fraction"), (KLCov(0.2), "penalised_fraction")):
        batch = MIXED.mini_batch()
        arguments = (batch.old_log_probs, batch.advantages, batch.response_mask, batch.group_ids)
        assert loss(batch.log_probs, *arguments, torch.Generator(), Aggregation("token-mean"))[1][metric].sum() > 2


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_single_precision_agrees_to_single_precision(case: Case) -> None:
    for drawing in (UNIFORM, MIXED):
        batch = drawing.mini_batch(case.weighted).with_floats(Tensor.float)
        value, gradient = of_ours(case, batch)
        expected, slopes = of_verl(case.verl, batch, case.aggregation.mode, actor(case.actor))
        assert value.dtype == expected.dtype == torch.float32
        torch.testing.assert_close(value, expected, rtol=2e-6, atol=1e-6)
        torch.testing.assert_close(gradient, slopes, rtol=2e-6, atol=1e-6)


# What differs, and why.


def test_verls_sapo_takes_the_response_mean_whatever_it_is_told(assert_agrees: Agrees) -> None:
    batch, sapo = MIXED.mini_batch(), next(case for case in CASES if case.verl == "sapo")
    told, _ = of_verl("sapo", batch, "token-mean", actor({}))
    untold, _ = of_verl("sapo", batch, "seq-mean-token-mean", actor({}))
    assert told == untold
    assert_agrees("loss sapo, told token-mean", of_ours(sapo, batch)[0], told)
    assert abs(of_ours(replace(sapo, mode="token-mean"), batch)[0] - told) > 0.01


def test_verls_geo_mean_ignores_the_mode_and_the_mini_batch(assert_agrees: Agrees) -> None:
    """It takes the mean of each micro-batch, empty responses included, and those means are added up."""
    batch = MIXED.mini_batch()
    case = next(case for case in CASES if case.verl == "geo_mean")
    whole = actor(case.actor, dp_size=1, batch_num_tokens=int(batch.response_mask.sum()), global_batch_size=8)
    halves = [batch.rows(rows) for rows in torch.arange(8).split(4)]
    summed = sum(of_verl("geo_mean", half, "token-mean", whole)[0] for half in halves)
    ours = sum(of_ours(case, half, Normaliser.of(batch.response_mask))[0] for half in halves)
    assert_agrees("loss geo_mean, two micro-batches, half of verl's sum", torch.as_tensor(ours), summed / 2)
    with_empty = EXTREME.mini_batch().within(19.0)
    assert with_empty.response_mask.any(dim=1).sum() == 6
    theirs = of_verl("geo_mean", with_empty, "token-mean", whole)[0]
    assert_agrees("loss geo_mean, empty responses, 8/6 of verl's", of_ours(case, with_empty)[0], theirs * 8 / 6)


def test_a_token_of_weight_0_leaves_the_geometric_mean_in_verl_and_not_in_ours(assert_agrees: Agrees) -> None:
    case = next(case for case in CASES if case.verl == "geo_mean")
    new = torch.tensor([[0.3, -0.1, 0.2]], dtype=torch.float64)
    batch = MiniBatch(new, new * 0, torch.tensor([[1.0, 0.0, 1.0]]), torch.ones(1, 3, dtype=torch.bool), torch.zeros(1))
    theirs = of_verl("geo_mean", batch, "token-mean", actor(case.actor))[0]
    assert_agrees("loss geo_mean, a token of weight 0, verl's", theirs, -2 / 3 * torch.tensor(0.5 / 3).double().exp())
    ours = of_ours(case, batch)[0]
    assert_agrees("loss geo_mean, a token of weight 0, ours", ours, -2 / 3 * torch.tensor(0.4 / 3).double().exp())


@pytest.mark.parametrize("case", [case for case in CASES if case.verl.endswith("_cov")], ids=lambda case: case.name)
def test_verls_covariances_are_those_of_a_micro_batch(case: Case, assert_agrees: Agrees) -> None:
    """Cut in two, verl's loss is the sum of ours on each half alone, and not that of the mini-batch."""
    batch = MIXED.mini_batch()
    whole = Normaliser.of(batch.response_mask)
    config = actor(case.actor, dp_size=1, batch_num_tokens=whole.tokens, global_batch_size=8)
    halves = [batch.rows(rows) for rows in torch.arange(8).split(4)]
    summed = sum(of_verl(case.verl, half, "token-mean", config)[0] for half in halves)
    alone = sum(of_ours(case, half, whole)[0] for half in halves)
    assert_agrees(f"{case.name}, each micro-batch alone", torch.as_tensor(alone), torch.as_tensor(summed))
    assert abs(of_ours(case, batch)[0] - summed) > 1e-4


def test_verls_clip_cov_draws_from_the_global_generator() -> None:
    """Another state of torch's generator draws other tokens; ours depends on the optimizer step's own alone."""
    batch = MIXED.mini_batch()
    case = next(case for case in CASES if case.verl == "clip_cov")
    clean = batch.without_rubbish()
    losses = set()
    for seed in range(5):
        torch.manual_seed(seed)
        loss, _ = get_policy_loss_fn("clip_cov")(
            clean.old_log_probs,
            clean.log_probs,
            clean.advantages,
            clean.response_mask.long(),
            "token-mean",
            actor(case.actor),
        )
        losses.add(float(loss))
        assert of_ours(case, batch)[0] == of_ours(case, batch)[0]
    assert len(losses) > 1


@pytest.mark.parametrize("name", ["clip_cov", "kl_cov"])
def test_beyond_20_verls_ratio_goes_on_growing(name: str) -> None:
    """In float32 it overflows at a log-ratio of 88.7; ours stops at 20, as verl's other losses do."""
    case = next(case for case in CASES if case.verl == name)
    one = torch.tensor([[-100.0, -100.0]])
    new = torch.tensor([[-1.0, -100.0]])
    batch = MiniBatch(new, one, -torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool), torch.zeros(1))
    assert of_verl(name, batch, "token-mean", actor(case.actor))[0].isinf()
    assert of_ours(case, batch)[0].isfinite()


def test_with_token_weights_verls_gspo_is_the_token_form() -> None:
    """Same loss, but each token's gradient follows its own advantage; in ours (GSPO) it follows the response's mean."""
    drawing = Drawing(3, 1e-4, [5, 9, 3, 8, 5, 5, 7, 9], MIXED.rewards, True)
    batch = drawing.mini_batch()
    value, gradient = of_ours(Case(GSPO(), "gspo", {}), batch)
    expected, slopes = of_verl("gspo", batch, "seq-mean-token-mean", actor(clip(3e-4, 4e-4)))
    torch.testing.assert_close(value, expected)
    assert (gradient - slopes).abs().max() > 1e-3
    torch.testing.assert_close(gradient.sum(dim=1), slopes.sum(dim=1))


def test_a_mini_batch_without_tokens_is_nan_in_verl() -> None:
    empty = Drawing(0, 0.3, [0] * 8, [1.0] * 8, False).mini_batch()
    for case in CASES:
        value, gradient = of_ours(case, empty)
        assert value == 0 and not gradient.any()
    assert of_verl("vanilla", empty, "token-mean", actor(CASES[0].actor))[0].isnan()
