"""The loss of a mini-batch, whatever its method has in it, is the same however ranks and micro-batches cut it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from rlvr.engines.verl.loss import MiniBatchLoss, fields_of_tokens
from rlvr.methods.aggregation import Normaliser
from rlvr.methods.losses.base import Tokens
from rlvr.methods.method import Method, compose
from rlvr.study.catalogue import load_catalogue
from tests.unit.verl.conftest import run_content

METHODS = {name: compose(run_content(name)["method"], longest=6) for name in load_catalogue()}
DIVISIBLE = [name for name, method in METHODS.items() if method.loss.coupling == "rollout"]
ROLLOUTS, LENGTH, COEFFICIENT = 8, 6, 0.3


class MiniBatch:
    """Rollouts of ragged lengths, with rubbish at padding, in groups of four."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(5)

        def drawn(scale: float) -> Tensor:
            return scale * torch.randn(ROLLOUTS, LENGTH, generator=generator, dtype=torch.float64)

        lengths = torch.randint(1, LENGTH + 1, (ROLLOUTS, 1), generator=generator)
        self.mask = torch.arange(LENGTH) < lengths
        self.groups = torch.arange(ROLLOUTS) // 4
        old = -torch.rand(ROLLOUTS, LENGTH, generator=generator, dtype=torch.float64)
        self.given = {
            "old_log_probs": old,
            "advantages": drawn(1.0)[:, :1].expand(-1, LENGTH).clone(),
            "rollout_log_probs": old + drawn(0.4),
            "ref_log_prob": old + drawn(0.6),
        }
        self.current = {"log_probs": old + drawn(0.5), "entropy": drawn(1.0).abs()}
        for values in (*self.given.values(), *self.current.values()):
            values[~self.mask] = torch.nan
        self.current = {name: values.requires_grad_() for name, values in self.current.items()}

    def loss(self, method: Method) -> MiniBatchLoss:
        return MiniBatchLoss(method, Normaliser.of(self.mask, self.groups), torch.Generator(), COEFFICIENT)

    def of_model(self, method: Method) -> dict[str, Tensor]:
        """What verl's model gives in an update: entropies where the method has a bonus for them."""
        names = ["log_probs"] if method.entropy_bonus is None else ["log_probs", "entropy"]
        return {name: self.current[name] for name in names}


def rows(values: Mapping[str, Tensor], part: Tensor) -> dict[str, Tensor]:
    return {name: each[part] for name, each in values.items()}


@pytest.mark.parametrize("name", DIVISIBLE)
def test_parts_add_up_to_what_the_local_engine_computes_of_the_mini_batch(name: str) -> None:
    """All of the method: ratios, corrections of the sampler, the divergence, the bonus, and its own aggregation."""
    method, batch = METHODS[name], MiniBatch()
    of_model = batch.of_model(method)
    tokens = Tokens(
        of_model["log_probs"],
        batch.given["old_log_probs"],
        batch.given["advantages"],
        batch.mask,
        batch.groups,
        torch.Generator(),
        batch.given["rollout_log_probs"],
        batch.given["ref_log_prob"],
        of_model.get("entropy"),
        COEFFICIENT,
    )
    values, metrics = method.token_loss(tokens)
    normaliser = Normaliser.of(batch.mask, batch.groups)
    expected = method.aggregation(values, batch.mask, normaliser, batch.groups)
    slopes = torch.autograd.grad(expected, list(of_model.values()))
    given = {field: batch.given[field] for field in fields_of_tokens(method)}
    total, means = torch.zeros((), dtype=torch.float64), dict.fromkeys(metrics, 0.0)
    for part in torch.arange(ROLLOUTS).split(3):
        of_part = rows(of_model, part), rows(given, part), batch.mask[part], batch.groups[part]
        value, shares = batch.loss(method)(*of_part)
        total = total + value
        means = {metric: means[metric] + share for metric, share in shares.items()}
    torch.testing.assert_close(total, expected)
    for found, slope in zip(torch.autograd.grad(total, list(of_model.values())), slopes, strict=True):
        torch.testing.assert_close(found, slope)
    tokens_of_all = int(batch.mask.sum())
    assert means == pytest.approx(
        {metric: float(of_tokens.detach()[batch.mask].sum()) / tokens_of_all for metric, of_tokens in metrics.items()}
    )


def test_a_loss_is_given_what_its_method_asks_for_and_no_more() -> None:
    assert fields_of_tokens(METHODS["dapo"]) == ["old_log_probs", "advantages"]
    assert fields_of_tokens(METHODS["grpo"]) == ["old_log_probs", "advantages", "ref_log_prob"]
    assert fields_of_tokens(METHODS["grpo_kl_in_reward"]) == fields_of_tokens(METHODS["dapo"])
    for name, method in METHODS.items():
        assert ("rollout_log_probs" in fields_of_tokens(method)) == (method.correction is not None), name


@pytest.mark.parametrize(
    ("name", "field"), [("dapo_tis", "rollout_log_probs"), ("grpo", "ref_log_prob"), ("dapo_entropy_bonus", "entropy")]
)
def test_each_of_them_changes_the_loss(name: str, field: str) -> None:
    losses = []
    for shift in (0.0, 0.5):
        batch = MiniBatch()
        for values in (batch.given, batch.current):
            if field in values:
                values[field] = (values[field] + shift * torch.arange(LENGTH)).detach()
        method = METHODS[name]
        value, _ = batch.loss(method)(batch.of_model(method), batch.given, batch.mask, batch.groups)
        losses.append(float(value.detach()))
    assert abs(losses[0] - losses[1]) > 1e-6
