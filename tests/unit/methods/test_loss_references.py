"""The losses with statistics or stop-gradients against their references: values and gradients."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rlvr.methods.aggregation import Aggregation, Mode, Normaliser
from rlvr.methods.losses.mini_batch_losses import FIPO, ClipCov, KLCov
from rlvr.methods.losses.sequence_ratios import DFPO, GMPO, GSPO, GSPOToken
from rlvr.methods.losses.token_ratios import CISPO, SAPO, Clipped, GRPOFix, Reinforce
from rlvr.methods.losses.trust_regions import DPPOKL, DPPOTV, DRO, IPO, M2PO, TOPR, VESPO
from rlvr_conform.expected import REFERENCES
from rlvr_conform.loss_references import Batch, covariances


@dataclass(frozen=True)
class Case:
    """A loss, and the mode that it is aggregated by, or None for the loss's own."""

    loss: Any
    mode: Mode | None = None

    @property
    def aggregation(self) -> Aggregation:
        return Aggregation(self.mode or self.loss.default_aggregation)


_MODES: tuple[Mode, ...] = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum")
CASES = [
    *(Case(loss, mode) for loss in (Clipped(), SAPO(), GSPO()) for mode in _MODES),
    Case(Clipped(epsilon_high=0.2, dual_clip=None)),
    Case(CISPO()),
    Case(CISPO(epsilon_low=0.2), "seq-mean-token-mean"),
    Case(Reinforce()),
    Case(GRPOFix()),
    Case(GSPOToken()),
    Case(GSPOToken(epsilon_low=0.2, epsilon_high=0.3), "token-mean"),
    Case(GMPO()),
    Case(FIPO()),
    Case(FIPO(half_life=2.0, future_low=0.2, safety_ratio=3.0, dual_clip=3.0)),
    Case(FIPO(future_high=None, safety_rule="reset", safety_ratio=1.5), "seq-mean-token-mean"),
    Case(DFPO()),
    Case(DFPO(weight="product"), "seq-mean-token-mean"),
    Case(DFPO(transform="advantage_orthogonal")),
    Case(DFPO(transform="advantage_orthogonal", weight="product")),
    Case(KLCov()),
    Case(KLCov(top_fraction=0.3, kl_coefficient=0.1)),
    Case(ClipCov(clip_fraction=1.0, covariance_low=1e-9)),
    Case(DPPOTV()),
    Case(DPPOTV(delta_low=0.01, delta_high=0.02, ratio_cap=1.5), "seq-mean-token-mean"),
    Case(DPPOKL()),
    Case(DPPOKL(delta_low=0.001, delta_high=0.002, ratio_cap=1.5)),
    Case(IPO()),
    Case(IPO(epsilon=0.02, kl_coefficient=0.3), "seq-mean-token-mean"),
    Case(M2PO()),
    Case(M2PO(tau=1.0)),
    Case(TOPR()),
    Case(TOPR(level="token"), "token-mean"),
    Case(DRO()),
    Case(DRO(beta=2.0)),
    Case(VESPO()),
    Case(VESPO(power_positive=1.0, decay_positive=0.5, power_negative=0.5, decay_negative=4.0)),
]

SPREADS = [0.0, 0.0003, 0.3, 3.0, 50.0]


def draw_cases(draw_loss_inputs: Callable[..., Any], spread: float) -> list[Any]:
    """Mixed advantages, one per response as of a group; all of one sign; none."""
    cases = []
    for seed in range(3):
        inputs = draw_loss_inputs(seed, spread)
        cases.append(inputs)
        cases.append(replace(inputs, advantages=inputs.advantages.abs()))
        cases.append(replace(inputs, advantages=-inputs.advantages.abs()))
        cases.append(replace(inputs, advantages=inputs.advantages * 0))
    return cases


def run(
    loss: Any, inputs: Any, aggregation: Aggregation | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """Token losses [B, T], loss of the mini-batch, its gradient [B, T], and metrics [B, T]."""
    aggregation = aggregation or Aggregation(loss.default_aggregation)
    log_probs = inputs.log_probs.clone().requires_grad_()
    token_loss, metrics = loss(*inputs.part(log_probs=log_probs), torch.Generator().manual_seed(0), aggregation)
    value = aggregation(token_loss, inputs.response_mask, Normaliser.of(inputs.response_mask))
    (gradient,) = torch.autograd.grad(value, log_probs)
    return token_loss.detach(), value.detach(), gradient, metrics


def rounding(batch: Batch) -> float:
    """Rounding in float64 of weights, limited to exp(20), that cancel; far below 1e-9 unless log-ratios are extreme."""
    drifts = [sum(abs(batch.delta(i, t)) for t in range(length)) for i, length in enumerate(batch.lengths)]
    return 1e-15 * math.exp(min(20.0, max(drifts)))


def assert_equals_reference(case: Case, inputs: Any) -> None:
    """Compare token losses, loss of the mini-batch and gradient, to 1e-9 and the rounding of extreme weights."""
    loss, aggregation = case.loss, case.aggregation
    batch = Batch.of(inputs, aggregation.mode)
    if not batch.tokens:
        return  # test_a_batch_of_empty_responses_has_loss_and_gradient_zero
    if isinstance(loss, KLCov) and len({round(each, 12) for each in covariances(batch).values()}) < len(batch.tokens):
        return  # the paper does not say which of equal covariances is penalised; rounding decides
    token_loss, value, gradient, metrics = run(loss, inputs, aggregation)
    exact = 1e-9 + rounding(batch)
    total, expected, slopes = 0.0, torch.zeros_like(gradient), torch.zeros_like(gradient)
    shares = batch.shares()
    for (i, t), (one, slope) in REFERENCES[loss.name](loss, batch).items():
        total += shares[i] * one
        expected[i, t], slopes[i, t] = one, shares[i] * slope
    divergence = math.fsum(math.expm1(batch.limited(*token)) - batch.limited(*token) for token in batch.tokens)
    measured = metrics["approximate_kl"][inputs.response_mask].mean().item()
    assert measured == pytest.approx(divergence / len(batch.tokens), rel=1e-9, abs=1e-9)
    torch.testing.assert_close(token_loss, expected, rtol=1e-9, atol=exact)
    torch.testing.assert_close(value.item(), total, rtol=1e-9, atol=exact)
    torch.testing.assert_close(gradient, slopes, rtol=1e-9, atol=exact)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.loss}-{case.aggregation.mode}")
@pytest.mark.parametrize("spread", SPREADS)
def test_losses_equal_their_references(case: Case, spread: float, draw_loss_inputs: Callable[..., Any]) -> None:
    for inputs in draw_cases(draw_loss_inputs, spread):
        assert_equals_reference(case, inputs)


@given(
    seed=st.integers(0, 10_000),
    spread=st.sampled_from(SPREADS),
    lengths=st.lists(st.integers(0, 7), min_size=8, max_size=8),
    rewards=st.lists(st.sampled_from([0.0, 1.0]), min_size=8, max_size=8),
)
@example(seed=0, spread=0.3, lengths=[1] * 8, rewards=[1.0] * 4 + [0.0] * 4)
@example(seed=0, spread=50.0, lengths=[0, 0, 0, 0, 7, 1, 0, 7], rewards=[1.0] * 4 + [1.0, 0.0, 0.0, 0.0])
@settings(max_examples=15)
def test_losses_equal_their_references_on_groups_of_any_lengths_and_rewards(
    draw_loss_inputs: Callable[..., Any], seed: int, spread: float, lengths: list[int], rewards: list[float]
) -> None:
    """All right, all wrong and mixed groups; whole groups of empty responses."""
    inputs = draw_loss_inputs(seed, spread, lengths=lengths, rewards=rewards)
    for case in CASES:
        assert_equals_reference(case, inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("loss", [case.loss for case in CASES], ids=repr)
def test_low_precision_loses_nothing(loss: Any, dtype: torch.dtype, draw_loss_inputs: Callable[..., Any]) -> None:
    for seed in range(5):
        inputs = draw_loss_inputs(seed, 0.3).cast(dtype)
        _, value, gradient, _ = run(loss, inputs)
        _, expected_value, expected_gradient, _ = run(loss, inputs.cast(torch.float64))
        assert gradient.dtype == dtype and value.dtype == torch.float32
        torch.testing.assert_close(value.double(), expected_value, rtol=1e-5, atol=1e-5)
        rounding = 2.0**-8 if dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(gradient.double(), expected_gradient, rtol=rounding, atol=1e-5)


@pytest.mark.parametrize(
    "loss",
    [
        *[Clipped(), SAPO(), CISPO(), FIPO(), GMPO(), GSPO(), GSPOToken(), GRPOFix(), Reinforce(), DFPO(), KLCov()],
        *[DPPOTV(), DPPOKL(), IPO(), M2PO(), TOPR(), DRO(), VESPO()],
    ],
    ids=repr,
)
def test_gradient_at_ratio_one_is_that_of_reinforce(loss: Any, draw_loss_inputs: Callable[..., Any]) -> None:
    inputs = draw_loss_inputs(7, 0.0)
    gradient = run(loss, inputs)[2]
    expected = run(Reinforce(), inputs, Aggregation(loss.default_aggregation))[2]
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-12)


def test_fipo_on_the_first_update_is_dapo(draw_loss_inputs: Callable[..., Any]) -> None:
    inputs = draw_loss_inputs(3, 0.0)
    for fipo_part, dapo_part in zip(run(FIPO(), inputs)[:3], run(Clipped(), inputs)[:3], strict=True):
        assert torch.equal(fipo_part, dapo_part)


def test_gspo_token_has_the_gradient_of_gspo(draw_loss_inputs: Callable[..., Any]) -> None:
    settings: dict[str, Any] = {"epsilon_low": 0.1, "epsilon_high": 0.2}
    for seed in range(5):
        inputs = draw_loss_inputs(seed, 0.3)
        torch.testing.assert_close(
            run(GSPOToken(**settings), inputs)[2], run(GSPO(**settings), inputs)[2], rtol=1e-12, atol=1e-14
        )


@pytest.mark.parametrize("loss", [case.loss for case in CASES], ids=repr)
def test_a_batch_of_empty_responses_has_loss_and_gradient_zero(loss: Any) -> None:
    mask = torch.zeros(2, 3, dtype=torch.bool)
    log_probs = torch.full((2, 3), -torch.inf, requires_grad=True)
    garbage = torch.full((2, 3), torch.nan)
    groups, aggregation = torch.zeros(2, dtype=torch.int64), Aggregation(loss.default_aggregation)
    token_loss, _ = loss(log_probs, garbage, garbage, mask, groups, torch.Generator(), aggregation)
    value = aggregation(token_loss, mask, Normaliser.of(mask))
    (gradient,) = torch.autograd.grad(value, log_probs)
    assert value.item() == 0.0 and torch.equal(gradient, torch.zeros(2, 3))
