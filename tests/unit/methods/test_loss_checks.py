"""The checks of a loss: those of the package pass, and each check finds a loss that is wrong on purpose."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evals.core.errors import InvalidInput
from rlvr.methods.aggregation import Aggregation, Mode, Normaliser, TokenShares
from rlvr.methods.components import components
from rlvr.methods.loss_checks import check_loss, print_findings
from rlvr.methods.losses.base import PolicyLoss, TokenLoss, Tokens
from rlvr.methods.losses.sequence_ratios import GSPO
from rlvr.methods.losses.token_ratios import Clipped
from rlvr.methods.method import compose
from rlvr.methods.parameters import component, hyper_parameter
from rlvr.study.catalogue import load_catalogue
from tests.unit.methods.conftest import LossInputs

LOSSES = components()["loss"]


def aggregation_of(loss: PolicyLoss) -> Aggregation:
    mode = type(loss).default_aggregation
    return Aggregation(mode, 64.0 if mode == "seq-mean-token-sum-norm" else None)


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_of_the_package_passes(name: str) -> None:
    loss = LOSSES[name]()
    assert print_findings(check_loss(loss, aggregation_of(loss)))


@component("mask_forgotten")
class MaskForgotten(PolicyLoss):
    def token_loss(self, tokens: Tokens) -> TokenLoss:
        ratios = (tokens.given_log_probs - tokens.given_old_log_probs).exp()
        return TokenLoss(-tokens.given_advantages * ratios, {})


@component("summed")
class Summed(PolicyLoss):
    def token_loss(self, tokens: Tokens) -> TokenLoss:
        return TokenLoss((-tokens.advantages * tokens.ratios).sum(), {})


@component("no_slope")
class NoSlope(PolicyLoss):
    """The gradient of the ratio is lost in a number of Python's."""

    def token_loss(self, tokens: Tokens) -> TokenLoss:
        return TokenLoss(-tokens.advantages * tokens.ratios * float(tokens.ratios.mean()), {})


@component("constant")
class Constant(PolicyLoss):
    def token_loss(self, tokens: Tokens) -> TokenLoss:
        return TokenLoss(-tokens.advantages * tokens.ratios.detach(), {})


@component("coupled")
class Coupled(PolicyLoss):
    """The mini-batch's mean ratio, and no word of coupling."""

    def token_loss(self, tokens: Tokens) -> TokenLoss:
        return TokenLoss(-tokens.advantages * tokens.ratios * tokens.ratios.mean(), {})


@component("overflowing")
class Overflowing(PolicyLoss):
    def token_loss(self, tokens: Tokens) -> TokenLoss:
        return TokenLoss(-tokens.advantages * (40.0 * tokens.log_ratios).exp(), {})


@component("drawn")
class Drawn(PolicyLoss):
    def token_loss(self, tokens: Tokens) -> TokenLoss:
        return TokenLoss(-tokens.advantages * tokens.ratios * torch.rand_like(tokens.ratios), {})


@component("bad_metric")
class BadMetric(Clipped):
    def token_loss(self, tokens: Tokens) -> TokenLoss:
        return TokenLoss(super().token_loss(tokens).values, {"mean_ratio": tokens.ratios.mean()})


@component("by_equation")
class ByEquation(PolicyLoss):
    """A loss by one of :data:`EQUATIONS`."""

    equation: str = hyper_parameter("", "its key")

    def token_loss(self, tokens: Tokens) -> TokenLoss:
        values: Any = EQUATIONS[self.equation](tokens)
        return TokenLoss(values, {}) if isinstance(values, torch.Tensor) else values


CALLS = iter(range(10**9))
EQUATIONS: dict[str, Callable[[Tokens], Any]] = {
    "infinite slope at 1": lambda t: -t.advantages * (t.ratios - 1.0).abs().sqrt(),
    "mixed at 1": lambda t: torch.where(t.advantages > 0, -t.advantages * t.ratios, (t.ratios - 1.0).abs().sqrt()),
    "divided by A": lambda t: -t.advantages.square() / t.advantages.masked_fill(~t.mask, 1.0) * t.ratios,
    "log of 1 - p": lambda t: -t.advantages * t.ratios * (1.0 - t.log_probs.clamp(max=0.0).exp()).log().abs().tanh(),
    "next token": lambda t: -t.advantages * torch.roll(t.ratios, -1, dims=1) * t.mask,
    "over the width": lambda t: -t.advantages * t.ratios / t.mask.shape[1],
    "first group": lambda t: -t.advantages * t.ratios * (1.0 + (t.group_ids == 0)[:, None]),
    "by row": lambda t: -t.advantages * t.ratios * (1.0 + torch.arange(len(t.mask))[:, None]),
    "by position": lambda t: -t.advantages * t.ratios * torch.linspace(0, 1, t.mask.shape[1] + 1)[1:].double(),
    "wrong sign": lambda t: t.advantages * t.ratios,
    "size of A": lambda t: -t.advantages.abs() * t.ratios,
    "in place": lambda t: -t.given_advantages.mul_(0.5) * t.mask * t.ratios,
    "mask in place": lambda t: -t.advantages * t.ratios * t.mask.logical_not_().logical_not(),
    "derived in place": lambda t: -t.advantages.mul_(0.5) * t.ratios,
    "in place without effect": lambda t: -t.advantages * t.ratios.clamp_(max=1e9),
    "counted": lambda t: -t.advantages * t.ratios * (1.0 + next(CALLS)),
    "up to 200 tokens": lambda t: -t.advantages * t.ratios * torch.ones(200)[: t.mask.shape[1]],
    "tuple": lambda t: (-t.advantages * t.ratios, {}),
    "number as metric": lambda t: TokenLoss(-t.advantages * t.ratios, {"beta": 3.0}),  # type: ignore[dict-item]
    "misspelt": lambda t: -t.advantages * t.ratio,  # type: ignore[attr-defined]
}


@pytest.mark.parametrize(
    ("loss", "check", "words"),
    [
        (MaskForgotten(), "padding", "is not 0 at padding"),
        (Summed(), "shapes", "the token loss has shape [], not [B, T] = [1, 1]"),
        (NoSlope(), "gradient", "the slope of the loss"),
        (Constant(), "shapes", "does not depend on the current policy"),
        (Coupled(), "micro-batches", 'say coupling = "group" or "mini_batch"'),
        (Overflowing(), "extremes", "in float32"),
        (Drawn(), "repetition", "tokens.generator"),
        (BadMetric(), "shapes", "metric mean_ratio has shape []"),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_a_loss_that_is_wrong_on_purpose_is_found_with_a_small_input(loss: Any, check: str, words: str) -> None:
    findings = {finding.check: finding for finding in check_loss(loss, Aggregation("token-mean"))}
    assert findings[check].outcome == "fails" and words in findings[check].words
    assert findings[check].smallest_input.startswith("log_probs [[")
    assert findings[check].smallest_input.endswith("padded to 2 tokens") == (check == "padding")


@pytest.mark.parametrize(
    ("equation", "check", "words"),
    [
        ("infinite slope at 1", "extremes", "ratios of 1"),
        ("mixed at 1", "extremes", "ratios of 1"),
        ("divided by A", "extremes", "advantages of 0"),
        ("log of 1 - p", "extremes", "probabilities of 1"),
        ("next token", "padding", "one more column of padding"),
        ("over the width", "padding", "one more column of padding"),
        ("by position", "padding", "one more column of padding"),
        ("first group", "ranks", "other numbers of the groups"),
        ("by row", "micro-batches", 'say coupling = "group"'),
        ("in place without effect", "shapes", "tokens.ratios is changed in place"),
        ("wrong sign", "on-policy", "lowers the probability of what is rewarded"),
        ("size of A", "on-policy", "raises the probability of what is punished"),
        ("in place", "shapes", "tokens.given_advantages is changed in place"),
        ("mask in place", "shapes", "tokens.mask is changed in place"),
        ("derived in place", "shapes", "tokens.advantages is changed in place"),
        ("counted", "repetition", "another gradient the second time"),
        ("up to 200 tokens", "time", "64 rollouts of up to 256 tokens: RuntimeError: "),
        ("tuple", "shapes", "returns a tuple; accepted: TokenLoss"),
        ("number as metric", "shapes", "metric beta is a float, not a tensor"),
        ("misspelt", "shapes", "has no attribute 'ratio'"),
    ],
)
def test_a_fault_is_found_and_said_once(equation: str, check: str, words: str) -> None:
    findings = list(check_loss(ByEquation(equation), Aggregation("token-mean")))
    faults = [finding for finding in findings if finding.outcome == "fails"]
    assert (faults[0].check, len(faults)) == (check, 1) and words in faults[0].words
    if check in ("shapes", "repetition", "time"):
        assert findings[-1] == faults[0]


def test_a_loss_of_the_mini_batch_knows_no_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ByEquation, "coupling", "mini_batch")
    faults = [finding for finding in check_loss(ByEquation("by row"), Aggregation("token-mean"))]
    assert [(fault.check, fault.words) for fault in faults if fault.outcome == "fails"] == [
        ("ranks", "the gradient depends on the order of the rollouts, or on how they are divided among ranks")
    ]


def test_findings_come_one_by_one_with_the_time_beside_another_method() -> None:
    findings = check_loss(Clipped(), Aggregation("token-mean"), {"dapo": compose(load_catalogue()["dapo"])})
    assert next(findings).check == "shapes"
    assert re.fullmatch(r"a call with its gradient takes [\d.]+ ms, dapo [\d.]+ ms", next(findings).words)


def test_the_smallest_input_is_that_of_the_fault() -> None:
    faults = [finding for finding in check_loss(ByEquation("infinite slope at 1"), Aggregation("token-mean"))]
    ours, old = re.findall(r"log_probs \[\[([-\d.]+)\]\]", faults[-1].smallest_input)
    assert ours == old  # the ratio is 1


@pytest.mark.parametrize(("name", "holds"), [("clipped", True), ("cispo", True), ("sapo", True), ("gspo", True)])
def test_losses_begin_as_the_plain_policy_gradient(name: str, holds: bool) -> None:
    loss = LOSSES[name]()
    assert ([*check_loss(loss, Aggregation("seq-mean-token-mean"))][-1].outcome == "holds") == holds


def test_a_multiple_of_the_policy_gradient_is_no_fault_and_is_said() -> None:
    @component("doubled")
    class Doubled(Clipped):
        def token_loss(self, tokens: Tokens) -> TokenLoss:
            return TokenLoss(2.0 * super().token_loss(tokens).values, {})

    *_, finding = check_loss(Doubled(), Aggregation("token-mean"))
    assert finding.outcome == "note" and finding.words.endswith(
        "0.0 degrees from the plain policy gradient, 2 times it"
    )


@component("of_the_micro_batch")
class OfTheMicroBatch(TokenShares):
    """Wrong on purpose: it counts the tokens that it is shown, and not the mini-batch's."""

    def shares(self, response_mask: torch.Tensor, normaliser: Normaliser, group_ids: torch.Tensor) -> torch.Tensor:
        return response_mask / response_mask.sum()


def test_an_aggregation_that_does_not_add_up_is_found() -> None:
    findings = {finding.check: finding for finding in check_loss(Clipped(), OfTheMicroBatch())}
    assert findings["micro-batches"].outcome == "fails" and findings["gradient"].outcome == "holds"


# Aggregation: hand-computed values, exactness over micro-batches, indifference to padding.

MODES: list[Mode] = [*get_args(Mode)]
MASK = torch.tensor([[1, 1, 1], [1, 0, 0], [0, 0, 0]]).bool()
TOKEN_LOSS = torch.tensor([[1.0, 2.0, 6.0], [4.0, torch.nan, torch.inf], [torch.nan, 7.0, 8.0]])


def aggregation(mode: Mode, constant: float) -> Aggregation:
    return Aggregation(mode, constant if mode == "seq-mean-token-sum-norm" else None)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token-mean", 13 / 4),
        ("seq-mean-token-mean", (3 + 4) / 2),
        ("seq-mean-token-sum", (9 + 4) / 2),
        ("seq-mean-token-sum-norm", (9 + 4) / 2 / 5),
    ],
)
def test_values_by_hand(mode: Mode, expected: float) -> None:
    assert aggregation(mode, 5.0)(TOKEN_LOSS, MASK, Normaliser.of(MASK)).item() == pytest.approx(expected)


def test_the_mean_over_prompts_is_of_each_ones_token_mean() -> None:
    """Prompt 4 has tokens of losses 1, 2, 6 and 4; prompt 9 one of loss 5; prompt 2 an empty response."""
    mask = torch.cat([MASK, torch.tensor([[1, 0, 0]]).bool()])
    values = torch.cat([TOKEN_LOSS, torch.tensor([[5.0, torch.nan, torch.inf]])])
    groups = torch.tensor([4, 4, 2, 9])
    value = aggregation("prompt-mean", 0.0)(values, mask, Normaliser.of(mask, groups), groups)
    assert value.item() == pytest.approx((13 / 4 + 5) / 2)
    kept = mask & torch.tensor([True, False, True, True])[:, None]  # a loss that drops the second response
    factor = aggregation("prompt-mean", 0.0).correction(mask, kept, groups)
    dropped = aggregation("prompt-mean", 0.0)(
        values.masked_fill(~kept, 0.0) * factor, mask, Normaliser.of(mask, groups), groups
    )
    assert dropped.item() == pytest.approx((9 / 3 + 5) / 2)


@given(seed=st.integers(0, 10_000), cuts=st.lists(st.integers(1, 7), max_size=3), mode=st.sampled_from(MODES))
@settings(max_examples=40)
def test_micro_batches_add_up_to_the_mini_batch(
    draw_loss_inputs: Callable[..., Any], seed: int, cuts: list[int], mode: Mode
) -> None:
    inputs: LossInputs = draw_loss_inputs(seed)
    aggregated = aggregation(mode, 9.0)
    normaliser = Normaliser.of(inputs.response_mask, inputs.group_ids)
    for loss in (Clipped(), GSPO()):
        bounds = [0, *sorted(set(cuts)), 8]
        parts = []
        for start, stop in itertools.pairwise(bounds):
            rows = slice(start, stop)
            token_loss, _ = loss(*inputs.part(rows), torch.Generator(), aggregated)
            parts.append(aggregated(token_loss, inputs.response_mask[rows], normaliser, inputs.group_ids[rows]))
        whole, _ = loss(*inputs.part(), torch.Generator(), aggregated)
        expected = aggregated(whole, inputs.response_mask, normaliser, inputs.group_ids)
        torch.testing.assert_close(torch.stack(parts).sum(), expected, rtol=1e-12, atol=1e-14)


def test_the_constant_is_asked_for_exactly_where_it_is_used() -> None:
    entry = {"advantage": {"name": "grpo"}, "loss": {"name": "clipped", "aggregation_constant": 5.0}}
    with pytest.raises(InvalidInput) as error:
        compose({**entry, "batching": {"assignment": {"name": "random_split"}}})
    assert error.value.key == "loss" and "aggregation_constant" in error.value.found
    with pytest.raises(ValueError, match="accepted: a number with seq-mean-token-sum-norm"):
        Aggregation("seq-mean-token-sum-norm")
