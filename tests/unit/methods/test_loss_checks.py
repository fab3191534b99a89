"""The checks of a loss: those of the package pass, and each check finds a loss that is wrong on purpose."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rlvr.methods.aggregation import Aggregation, Normaliser, TokenShares
from rlvr.methods.components import components
from rlvr.methods.loss_checks import check_loss, failed, printed
from rlvr.methods.losses.base import PolicyLoss, TokenLoss, Tokens
from rlvr.methods.losses.token_ratios import Clipped
from rlvr.methods.parameters import component

LOSSES = components()["loss"]


def aggregation_of(loss: PolicyLoss) -> Aggregation:
    mode = type(loss).default_aggregation
    return Aggregation(mode, 64.0 if mode == "seq-mean-token-sum-norm" else None)


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_of_the_package_passes(name: str) -> None:
    loss = LOSSES[name]()
    findings = check_loss(loss, aggregation_of(loss))
    assert not failed(findings), "\n".join(printed(findings))


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


@pytest.mark.parametrize(
    ("loss", "check", "words"),
    [
        (MaskForgotten(), "padding", "is not 0 at padding"),
        (Summed(), "shapes", "the token loss has shape [], not [B, T] = [1, 1]"),
        (NoSlope(), "gradient", "the slope of the loss"),
        (Constant(), "gradient", "does not depend on the current policy"),
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


@pytest.mark.parametrize(("name", "holds"), [("clipped", True), ("cispo", True), ("sapo", True), ("gspo", True)])
def test_losses_begin_as_the_plain_policy_gradient(name: str, holds: bool) -> None:
    loss = LOSSES[name]()
    assert (check_loss(loss, Aggregation("seq-mean-token-mean"))[-1].outcome == "holds") == holds


def test_a_multiple_of_the_policy_gradient_is_no_fault_and_is_said() -> None:
    @component("doubled")
    class Doubled(Clipped):
        def token_loss(self, tokens: Tokens) -> TokenLoss:
            return TokenLoss(2.0 * super().token_loss(tokens).values, {})

    finding = check_loss(Doubled(), Aggregation("token-mean"))[-1]
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
