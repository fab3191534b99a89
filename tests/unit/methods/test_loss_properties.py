"""What the equations imply: who keeps a gradient, what cancels, what a micro-batch may part, what stays finite."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.methods.aggregation import Aggregation, Mode, Normaliser
from rlvr.methods.losses.mini_batch_losses import FIPO, ClipCov, KLCov
from rlvr.methods.losses.sequence_ratios import DFPO, GMPO, GSPO, GSPOToken
from rlvr.methods.losses.token_ratios import CISPO, Clipped, GRPOFix
from rlvr.methods.losses.trust_regions import DPPOKL, DPPOTV, IPO, M2PO, TOPR, VESPO
from rlvr_conform.loss_references import Batch, covariances

ORTHOGONAL = DFPO(transform="advantage_orthogonal")
GROUP_LOSSES = [DFPO(), ORTHOGONAL]
MINI_BATCH_LOSSES = [ClipCov(clip_fraction=1.0, covariance_low=0.0), FIPO(dual_clip=1.5), KLCov(), M2PO(tau=0.5)]


def call(loss: Any, inputs: Any, rows: Any = slice(None), log_probs: Any = None) -> Any:
    """Token loss and metrics of some rollouts."""
    aggregation = Aggregation(loss.default_aggregation)
    return loss(*inputs.part(rows, log_probs), torch.Generator().manual_seed(0), aggregation)


def gradient_of(loss: Any, inputs: Any, parts: list[Any]) -> torch.Tensor:
    """Gradient [B, T] of the mini-batch's loss, accumulated over micro-batches."""
    log_probs = inputs.log_probs.clone().requires_grad_()
    normaliser = Normaliser.of(inputs.response_mask)
    for rows in parts:
        token_loss, _ = call(loss, inputs, rows, log_probs)
        Aggregation(loss.default_aggregation)(token_loss, inputs.response_mask[rows], normaliser).backward()
    assert log_probs.grad is not None
    return log_probs.grad


@pytest.mark.parametrize("loss", [*GROUP_LOSSES, *MINI_BATCH_LOSSES], ids=repr)
def test_a_loss_says_no_wider_coupling_than_it_has(loss: Any, draw_loss_inputs: Callable[..., Any]) -> None:
    inputs = draw_loss_inputs(4, 1.0)
    finer = {"group": [torch.tensor([i]) for i in range(8)], "mini_batch": [torch.arange(4), torch.arange(4, 8)]}
    whole = gradient_of(loss, inputs, [torch.arange(8)])
    assert float((gradient_of(loss, inputs, finer[loss.coupling]) - whole).abs().max()) > 1e-3


@pytest.mark.parametrize(
    "loss",
    [
        Clipped(),
        GRPOFix(),
        GMPO(),
        GSPO(epsilon_low=0.1, epsilon_high=0.2),
        GSPOToken(epsilon_low=0.1, epsilon_high=0.2),
        DPPOTV(),
        DPPOKL(),
        IPO(kl_coefficient=0.0),
    ],
    ids=repr,
)
def test_clip_fractions_mark_the_tokens_without_gradient(loss: Any, draw_loss_inputs: Callable[..., Any]) -> None:
    for seed in range(3):
        inputs = draw_loss_inputs(seed, 1.0)
        gradient = gradient_of(loss, inputs, [torch.arange(8)])
        metrics = call(loss, inputs)[1]
        acts = inputs.response_mask & (inputs.advantages != 0)
        assert torch.equal(gradient[acts] == 0, metrics["clip_fraction"][acts] == 1)
        assert torch.equal(metrics["clip_fraction"], metrics["clip_fraction_lower"] + metrics["clip_fraction_upper"])
        assert 0 < int((gradient[acts] == 0).sum()) < int(acts.sum())


def test_cispo_bounds_weights_and_stops_no_gradient(draw_loss_inputs: Callable[..., Any]) -> None:
    inputs = draw_loss_inputs(0, 50.0)
    loss = CISPO(epsilon_low=0.2)
    gradient = gradient_of(loss, inputs, [torch.arange(8)])
    metrics = call(loss, inputs)[1]
    acts = inputs.response_mask & (inputs.advantages != 0)
    weights = (gradient / inputs.advantages)[acts].abs() * int(inputs.response_mask.sum())
    assert bool((gradient[acts] != 0).all())
    for side, bound in (("lower", 0.8), ("upper", 1.28)):
        bounded = weights[metrics[f"clip_fraction_{side}"][acts] == 1]
        torch.testing.assert_close(bounded, torch.full_like(bounded, bound), rtol=1e-12, atol=0)
        assert bounded.numel() > 3


@given(
    seed=st.integers(0, 10_000),
    spread=st.sampled_from([0.0, 0.3, 3.0]),
    lengths=st.lists(st.integers(1, 7), min_size=8, max_size=8),
    rewards=st.lists(st.sampled_from([0.0, 1.0]), min_size=8, max_size=8),
)
@settings(max_examples=25)
def test_weighted_advantages_of_a_group_sum_to_zero_under_dfpo(
    draw_loss_inputs: Callable[..., Any], seed: int, spread: float, lengths: list[int], rewards: list[float]
) -> None:
    inputs = draw_loss_inputs(seed, spread, lengths=lengths, rewards=rewards)
    for loss in (DFPO(), DFPO(weight="product"), ORTHOGONAL, DFPO(transform="advantage_orthogonal", weight="product")):
        token_loss, metrics = call(loss, inputs)
        weights = metrics["sequence_weight"][:, 0].view(2, 4)
        scale = max(1.0, float(weights.abs().max()))
        assert bool((token_loss[:, 0].view(2, 4).sum(dim=1).abs() < 1e-12 * scale).all())
        if loss.transform == "min_replace":
            assert torch.equal(weights, weights[:, :1].expand(2, 4))


def test_the_log_of_a_product_of_ratios_is_limited_on_both_sides() -> None:
    for log_ratio, limit in ((15.0, 20.0), (-15.0, -20.0)):
        _, metrics = result_of(DFPO(weight="product"), [[log_ratio, log_ratio]], [1.0])
        assert metrics["sequence_weight"].tolist() == [[pytest.approx(math.exp(limit), rel=1e-12)] * 2]


def shared_token_gradient(loss: Any, old_shared: float = -0.6) -> float:
    """Gradient on the logit behind a first token that a right and a wrong response of one group share."""
    logit = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    suffixes = torch.tensor([[-0.4, -0.9], [-1.2, -0.3]], dtype=torch.float64)
    shared = torch.nn.functional.logsigmoid(logit)
    log_probs = torch.cat([shared.expand(2, 1), suffixes], dim=1)
    old = torch.tensor([[old_shared, -0.5, -0.8], [old_shared, -1.1, -0.5]], dtype=torch.float64)
    advantages = torch.tensor([[1.0], [-1.0]], dtype=torch.float64).repeat(1, 3)
    mask = torch.ones(2, 3, dtype=torch.bool)
    groups = torch.zeros(2, dtype=torch.int64)
    token_loss, _ = loss(
        log_probs, old, advantages, mask, groups, torch.Generator(), Aggregation(loss.default_aggregation)
    )
    (gradient,) = torch.autograd.grad(
        Aggregation(loss.default_aggregation)(token_loss, mask, Normaliser.of(mask)), logit
    )
    return float(gradient)


def test_a_shared_prefix_token_cancels_under_dfpo_and_not_under_gspo() -> None:
    wide: dict[str, Any] = {"epsilon_low": 0.9, "epsilon_high": 0.9}
    for cancelling in (DFPO(), ORTHOGONAL, DFPO(weight="product")):
        assert abs(shared_token_gradient(cancelling)) < 1e-15
    for breaking in (GSPO(**wide), GSPOToken(**wide), GMPO()):
        assert abs(shared_token_gradient(breaking)) > 1e-3


@pytest.mark.parametrize("old_shared", [-1.0, -0.6, -0.2])
def test_grpo_fix_drops_a_shared_token_in_all_responses_or_in_none(old_shared: float) -> None:
    """Its ratio is 1.56, 1.05, 0.70; PPO's minimum drops it in one of the two when it is outside the range."""
    assert abs(shared_token_gradient(GRPOFix(), old_shared)) < 1e-15
    one_sided = abs(shared_token_gradient(Clipped(), old_shared))
    assert one_sided < 1e-15 if old_shared == -0.6 else one_sided > 1e-2


def result_of(
    loss: Any, log_ratios: list[list[float]], advantages: list[float], mode: Mode = "token-mean"
) -> tuple[float, dict[str, Any]]:
    """Loss of a mini-batch of equally long responses, and its metrics."""
    old = torch.full((len(log_ratios), len(log_ratios[0])), -1.0, dtype=torch.float64)
    of_tokens = torch.tensor(advantages, dtype=torch.float64)[:, None].expand_as(old)
    mask, groups = torch.ones_like(old, dtype=torch.bool), torch.zeros(len(log_ratios), dtype=torch.int64)
    new = old + torch.tensor(log_ratios, dtype=torch.float64)
    aggregation = Aggregation(mode)
    token_loss, metrics = loss(new, old, of_tokens, mask, groups, torch.Generator(), aggregation)
    return float(aggregation(token_loss, mask, Normaliser.of(mask))), metrics


def ratio(log_ratio: float) -> float:
    """The ratio of a log-ratio, as torch rounds it."""
    return float(torch.tensor([log_ratio], dtype=torch.float64).exp())


BOUNDS: dict[str, Any] = {"epsilon_low": 1 - ratio(-0.25), "epsilon_high": ratio(0.5) - 1}


@pytest.mark.parametrize(
    "loss",
    [
        *[of(**BOUNDS) for of in (Clipped, GRPOFix, CISPO, GSPO, GSPOToken, FIPO)],
        ClipCov(**BOUNDS, covariance_low=9.0, covariance_high=9.5),
        GMPO(epsilon_low=0.25, epsilon_high=0.5),
    ],
    ids=repr,
)
def test_a_token_is_clipped_beyond_a_bound_and_not_at_it(loss: Any) -> None:
    """Responses of one token: at the lower and the upper bound, beyond them, and beyond without an advantage."""
    log_ratios = [[-0.25], [0.5], [-0.375], [0.625], [-0.375], [0.625]]
    _, metrics = result_of(loss, log_ratios, [-1.0, 1.0, -1.0, 1.0, 0.0, 0.0])
    idle = isinstance(loss, CISPO)  # it bounds weights, whatever the advantage
    assert metrics["clip_fraction_lower"][:, 0].tolist() == [0, 0, 1, 0, idle, 0]
    assert metrics["clip_fraction_upper"][:, 0].tolist() == [0, 0, 0, 1, 0, idle]


def test_ratios_at_the_dual_clip_and_the_safety_ratio_are_within() -> None:
    """FIPO's weight of a token at the dual clip counts the token itself; two of them drop no response."""
    at_both, beyond = [[2.0, 2.0]], [[2.125, 2.125]]
    for loss in (Clipped(dual_clip=ratio(2.0)), FIPO(dual_clip=ratio(2.0))):
        assert result_of(loss, at_both, [-1.0])[1]["clip_fraction_upper"].tolist() == [[0, 0]]
        assert result_of(loss, beyond, [-1.0])[1]["clip_fraction_upper"].tolist() == [[1, 1]]
    _, metrics = result_of(FIPO(dual_clip=ratio(2.0)), at_both, [-1.0])
    assert metrics["future_weight"].tolist() == [[1.2, 1.2]] and not metrics["dropped_fraction"].any()
    assert result_of(FIPO(dual_clip=ratio(2.0)), beyond, [-1.0])[1]["dropped_fraction"].all()
    for log_ratios, weight in ((at_both, 1.2), (beyond, 1.0)):
        assert result_of(FIPO(safety_ratio=ratio(2.0)), log_ratios, [-1.0])[1]["future_weight"][0, 1] == weight


def test_fipo_future_weights_by_hand() -> None:
    """Half-life 1: each step halves. The last of the second response, over the bound, counts for nobody's future."""
    loss = FIPO(half_life=1.0, future_low=1.0, future_high=None)
    _, metrics = result_of(loss, [[0.1, -0.2, 0.3], [0.1, -0.2, 3.0], [2.0, 2.0, 0.0]], [1.0, 1.0, 1.0])
    expected = [[0.075, -0.05, 0.3], [0.0, -0.2, 0.0], [math.log(10), 2.0, 0.0]]
    torch.testing.assert_close(
        metrics["future_weight"].log(), torch.tensor(expected, dtype=torch.float64), atol=1e-12, rtol=0
    )


@pytest.mark.parametrize(("rule", "expected"), [("limit", [0.8, 0.6, 1.0]), ("reset", [1.0, 0.6, 1.0])])
def test_fipo_safety_rule_by_hand(rule: Any, expected: list[float]) -> None:
    """Over the safety ratio and bad future; bad future alone; over the safety ratio and good future."""
    loss = FIPO(future_low=0.4, safety_ratio=3.0, safety_rule=rule)
    _, metrics = result_of(loss, [[1.2, -5.0], [0.0, -5.0], [1.2, 0.5]], [-1.0, -1.0, -1.0])
    torch.testing.assert_close(metrics["future_weight"][:, 0].tolist(), expected)
    _, metrics = result_of(loss, [[1.2, -5.0], [0.0, -5.0], [1.2, 0.5]], [1.0, 1.0, 1.0])
    torch.testing.assert_close(metrics["future_weight"][:, 0].tolist(), [0.6, 0.6, 1.2])
    assert result_of(loss, [[1.2, 0.5]], [0.0])[1]["future_weight"][0, 0] == 1.2  # no advantage is no negative one


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"])
def test_fipo_drops_a_response_as_if_it_had_not_been_sampled(mode: Mode) -> None:
    loss = FIPO()
    kept, signs = [[0.1, 0.2, -0.3], [0.4, 3.0, 0.1]], [1.0, -1.0]
    expected, _ = result_of(loss, kept, signs, mode)
    twice_over, metrics = result_of(loss, [*kept, [3.0, 0.1, 3.0]], [*signs, -1.0], mode)
    assert twice_over == pytest.approx(expected, rel=1e-12)
    assert metrics["dropped_fraction"].sum(dim=1).tolist() == [0, 0, 3]
    assert result_of(loss, [*kept, [3.0, 0.1, 3.0]], [*signs, 1.0], mode)[0] != pytest.approx(expected, rel=1e-3)
    assert result_of(loss, [*kept, [3.0, 0.1, 2.0]], [*signs, -1.0], mode)[0] != pytest.approx(expected, rel=1e-3)


def test_clip_cov_draws_the_asked_fraction_of_eligible_tokens_at_random_and_repeatably() -> None:
    generator = torch.Generator().manual_seed(0)
    old = -torch.rand(10, 100, generator=generator, dtype=torch.float64)
    new = old + 0.2 * torch.randn(10, 100, generator=generator, dtype=torch.float64)
    advantages = torch.randn(10, 1, generator=generator, dtype=torch.float64).repeat(1, 100)
    mask, groups = torch.ones(10, 100, dtype=torch.bool), torch.zeros(10, dtype=torch.int64)
    loss = ClipCov(clip_fraction=0.01, covariance_low=0.1, covariance_high=0.5)
    generators = [torch.Generator().manual_seed(seed) for seed in (1, 1, 2)]
    results = [
        loss(new, old, advantages, mask, groups, each, Aggregation(loss.default_aggregation))[1] for each in generators
    ]
    drawn = [metrics["covariance_clipped_fraction"].bool() for metrics in results]
    assert [int(tokens.sum()) for tokens in drawn] == [10, 10, 10]
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
    covariance = (advantages - advantages.mean()) * (new - new.mean())
    for tokens in drawn:
        assert bool(((covariance[tokens] > 0.1) & (covariance[tokens] < 0.5)).all())
        assert not results[0]["clip_fraction"][tokens].any()


@pytest.mark.parametrize(("low", "high", "drawn"), [(0.5, 1.5, 1), (1.0, 1.5, 0), (0.5, 1.0, 0)])
def test_clip_cov_draws_one_token_at_least(low: float, high: float, drawn: int) -> None:
    """A rewarded token of log-probability -1 and a punished one of -3: each has covariance 1."""
    new, advantages = torch.tensor([[-1.0], [-3.0]]), torch.tensor([[1.0], [-1.0]])
    mask, groups = torch.ones(2, 1, dtype=torch.bool), torch.zeros(2, dtype=torch.int64)
    loss = ClipCov(covariance_low=low, covariance_high=high)
    metrics = loss(new, new, advantages, mask, groups, torch.Generator(), Aggregation(loss.default_aggregation))[1]
    assert float(metrics["covariance_clipped_fraction"].sum()) == drawn


def test_clip_cov_without_eligible_tokens_is_ppo(draw_loss_inputs: Callable[..., Any]) -> None:
    inputs = draw_loss_inputs(1, 0.3)
    none = ClipCov(covariance_low=1e6, covariance_high=1e7)
    assert torch.equal(call(none, inputs)[0], call(Clipped(epsilon_high=0.2, dual_clip=None), inputs)[0])


def test_kl_cov_penalises_one_token_at_least(draw_loss_inputs: Callable[..., Any]) -> None:
    inputs = draw_loss_inputs(1, 0.3)
    penalised = call(KLCov(), inputs)[1]["penalised_fraction"]
    by_covariance = covariances(Batch.of(inputs))
    assert penalised.nonzero().tolist() == [list(max(by_covariance, key=lambda token: by_covariance[token]))]


def test_a_divergence_region_stops_a_token_beyond_its_bound_and_only_in_the_direction_of_its_advantage() -> None:
    """Probabilities rise from e^-1 or fall from it; at the bound a token is within."""
    old = math.exp(-1.0)
    rise, fall = math.exp(-0.5) - old, old - math.exp(-1.5)
    log_ratios, advantages = [[0.5], [0.5], [-0.5], [-0.5], [0.5], [-0.5]], [1.0, -1.0, -1.0, 1.0, 0.0, 0.0]
    for loss, marked in (
        (DPPOTV(delta_low=fall - 1e-9, delta_high=rise - 1e-9), True),
        (DPPOTV(delta_low=fall + 1e-9, delta_high=rise + 1e-9), False),
        (DPPOKL(delta_low=0.02, delta_high=0.02), True),
        (DPPOKL(delta_low=0.2, delta_high=0.2), False),
    ):
        _, metrics = result_of(loss, log_ratios, advantages)
        assert metrics["clip_fraction_upper"][:, 0].tolist() == [marked, 0, 0, 0, 0, 0]
        assert metrics["clip_fraction_lower"][:, 0].tolist() == [0, 0, marked, 0, 0, 0]
    _, metrics = result_of(IPO(epsilon=fall - 1e-9), log_ratios, advantages)  # whatever the advantage's sign
    assert metrics["clip_fraction_upper"][:, 0].tolist() == [1, 1, 0, 0, 0, 0]
    assert metrics["clip_fraction_lower"][:, 0].tolist() == [0, 0, 1, 1, 0, 0]


def test_m2po_drops_the_farthest_tokens_of_the_trust_region_until_the_mean_of_the_rest_is_below_tau() -> None:
    """Squares 0.25, 0.09, 0.01 in the region: their means from each on are 0.1167, 0.05, 0.01."""
    log_ratios, advantages = [[0.5, 0.1, -2.0], [-0.3, 0.0, 2.0], [2.0, -2.0, 0.0]], [1.0, -1.0, 0.0]
    for tau, second in ((0.06, 0), (0.04, 1)):
        metrics = result_of(M2PO(tau=tau), log_ratios, advantages)[1]
        assert metrics["dropped_fraction"].tolist() == [[1, 0, 0], [second, 0, 0], [0, 0, 0]]
    metrics = result_of(M2PO(tau=0.1), [[0.5, 0.1], [-0.5, 0.5]], [1.0, -1.0])[1]  # equally far: all or none
    assert metrics["dropped_fraction"].tolist() == [[1, 0], [1, 0]]


def test_m2po_masks_nothing_where_only_tokens_outside_the_trust_region_are_far() -> None:
    """An update has moved them against their advantage, or without one: every other token keeps its gradient."""
    metrics = result_of(M2PO(tau=1e-6), [[-3.0, 0.0], [3.0, 0.0]], [1.0, -1.0])[1]
    assert metrics["dropped_fraction"].sum() == 0


def test_topr_tapers_wrong_responses_alone_and_vespo_weighs_by_the_whole_response() -> None:
    log_ratios = [[-0.5, -1.0], [-0.5, -1.0], [0.5, 1.0]]
    metrics = result_of(TOPR(), log_ratios, [1.0, -1.0, -1.0])[1]
    assert metrics["tapered_fraction"].tolist() == [[0, 0], [1, 1], [0, 0]]
    weights = result_of(VESPO(), log_ratios, [1.0, -1.0, -1.0])[1]["sequence_weight"][:, 0].tolist()
    low, high = math.exp(-1.5), math.exp(1.5)
    assert weights == pytest.approx(
        [low**2 * math.exp(3 - 3 * low), low**3 * math.exp(2 - 2 * low), high**3 * math.exp(2 - 2 * high)]
    )
    assert result_of(VESPO(), [[0.0, 0.0]], [1.0])[1]["sequence_weight"].tolist() == [[1.0, 1.0]]


@given(delta=st.floats(-60, 60), advantage=st.floats(-5, 5).filter(lambda a: abs(a) > 1e-3), scale=st.floats(0.01, 100))
@settings(max_examples=60)
def test_clip_depends_on_the_sign_of_the_advantage_alone(delta: float, advantage: float, scale: float) -> None:
    """A positive token weight scales the loss; the dual clip acts on negative advantages only and bounds their loss."""
    mask, groups = torch.ones(1, 1, dtype=torch.bool), torch.zeros(1, dtype=torch.int64)
    new, old = torch.tensor([[delta]], dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64)
    advantages, aggregation = torch.tensor([[advantage]], dtype=torch.float64), Aggregation("token-mean")
    dual, metrics = Clipped()(new, old, advantages, mask, groups, torch.Generator(), aggregation)
    scaled, scaled_metrics = Clipped()(new, old, advantages * scale, mask, groups, torch.Generator(), aggregation)
    plain, _ = Clipped(dual_clip=None)(new, old, advantages, mask, groups, torch.Generator(), aggregation)
    torch.testing.assert_close(scaled, dual * scale, rtol=1e-12, atol=0)
    assert torch.equal(metrics["clip_fraction"], scaled_metrics["clip_fraction"])
    if advantage > 0:
        assert torch.equal(dual, plain)
    else:
        assert dual.item() == pytest.approx(min(plain.item(), -10 * advantage), rel=1e-12)
