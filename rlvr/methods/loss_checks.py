"""Checks of a policy loss that take seconds, each with the smallest input that shows a fault.

They hold a loss to what both engines take for granted: values and gradients are numbers, padding counts for nothing,
and a mini-batch may be cut wherever the loss's ``coupling`` allows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal
from unittest import mock

from evals.core.lazy_torch import torch
from rlvr.methods.aggregation import AnyAggregation, Normaliser
from rlvr.methods.losses.base import PolicyLoss, Tokens
from rlvr.methods.losses.token_ratios import Reinforce

if TYPE_CHECKING:
    from torch import Tensor

_SIZES = ((1, 1, 1), (1, 2, 1), (1, 2, 2), (2, 2, 2), (2, 4, 5))
"""Groups, rollouts of each and tokens of the longest, from the smallest input on."""
_DRAWS = 4
_STEP = 1e-6
_EXTREME = 50.0
Outcome = Literal["holds", "fails", "note"]


@dataclass(frozen=True)
class Finding:
    """The outcome of one check."""

    check: str
    outcome: Outcome
    words: str = ""
    smallest_input: str = ""  # that shows a fault


class Fault(Exception):
    """What a check found on one input."""


@dataclass(frozen=True)
class Batch:
    """A mini-batch that a loss is tried on."""

    tokens: Tokens

    @classmethod
    def draw(cls, size: tuple[int, int, int], seed: int, spread: float = 0.3) -> Batch:
        """Draw a mini-batch in float64 whose log-ratios have the standard deviation ``spread``."""
        groups, of_group, longest = size
        rollouts, generator = groups * of_group, torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        old = -0.2 - normal(rollouts, longest).abs()
        lengths = torch.randint(1, longest + 1, (rollouts,), generator=generator)
        lengths[0] = longest
        advantages = normal(rollouts, 1).expand(-1, longest).clone()
        mask = torch.arange(longest) < lengths[:, None]
        group_ids = torch.arange(groups).repeat_interleave(of_group)
        drawn = old + spread * normal(rollouts, longest)
        return cls(Tokens(drawn, old, advantages, mask, group_ids, torch.Generator()))

    def part(self, rows: Tensor) -> Tokens:
        """The tokens of some rollouts, as a micro-batch."""
        whole = self.tokens
        tensors = {
            name: getattr(whole, name)[rows]
            for name in ("given_log_probs", "given_old_log_probs", "given_advantages", "mask", "group_ids")
        }
        return Tokens(**tensors, generator=torch.Generator().manual_seed(0))

    def of(self, log_probs: Tensor) -> Batch:
        """The same mini-batch under another current policy."""
        return Batch(replace(self.tokens, given_log_probs=log_probs))

    def __str__(self) -> str:
        def rows(values: Tensor) -> str:
            cut = [[round(float(x), 3) for x in row[on]] for row, on in zip(values, whole.mask, strict=True)]
            return str(cut)

        whole = self.tokens
        parts = {
            "log_probs": rows(whole.given_log_probs),
            "old_log_probs": rows(whole.given_old_log_probs),
            "advantages": [round(float(x), 3) for x in whole.given_advantages[:, 0]],
            "group_ids": whole.group_ids.tolist(),
        }
        padded = f", padded to {whole.mask.shape[1]} tokens" if not bool(whole.mask.all()) else ""
        return ", ".join(f"{name} {values}" for name, values in parts.items()) + padded


@dataclass(frozen=True)
class TriedLoss:
    """A loss with the aggregation of its method."""

    loss: PolicyLoss
    aggregation: AnyAggregation

    def values(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute token losses and metrics [B, T]."""
        return self.loss.of(tokens, self.aggregation)

    def total(self, batch: Batch, parts: Sequence[Tensor]) -> Tensor:
        """Compute the loss [] of a mini-batch that is cut into micro-batches."""
        normaliser = Normaliser.of(batch.tokens.mask, batch.tokens.group_ids)
        losses = []
        for rows in parts:
            tokens = batch.part(rows)
            losses.append(self.aggregation(self.values(tokens)[0], tokens.mask, normaliser, tokens.group_ids))
        return torch.stack(losses).sum()

    def gradient(self, batch: Batch, parts: Sequence[Tensor] | None = None) -> Tensor:
        """Compute the gradient [B, T] of that loss by the log-probs."""
        log_probs = batch.tokens.given_log_probs.clone().requires_grad_()
        total = self.total(batch.of(log_probs), parts or [torch.arange(len(log_probs))])
        if not total.requires_grad:
            raise Fault("the loss does not depend on the current policy's log-probs")
        (gradient,) = torch.autograd.grad(total, log_probs, allow_unused=True)
        if gradient is None:
            raise Fault("the loss does not depend on the current policy's log-probs")
        return gradient


def check_loss(loss: PolicyLoss, aggregation: AnyAggregation) -> list[Finding]:
    """Try a loss on mini-batches from one token to eight rollouts."""
    tried = TriedLoss(loss, aggregation)
    findings = [_first_fault(name, check, tried) for name, check in _CHECKS.items()]
    if any(finding.outcome == "fails" for finding in findings):
        return findings
    return [*findings, _on_policy(tried)]


def _first_fault(name: str, check: Callable[[TriedLoss, Batch], None], tried: TriedLoss) -> Finding:
    spread = _EXTREME if check is _extremes else 0.3
    for size in _SIZES:
        for seed in range(_DRAWS):
            batch = Batch.draw(size, seed, spread)
            try:
                check(tried, batch)
            except Fault as fault:
                return Finding(name, "fails", str(fault), str(batch))
            except Exception as error:
                return Finding(name, "fails", f"{type(error).__name__}: {error}", str(batch))
    return Finding(name, "holds")


def _same(one: Tensor, other: Tensor, tolerance: float = 1e-9) -> bool:
    return torch.allclose(one, other, rtol=tolerance, atol=tolerance * 1e-2, equal_nan=True)


def _shapes(tried: TriedLoss, batch: Batch) -> None:
    tokens = batch.part(torch.arange(len(batch.tokens.mask)))
    values, metrics = tried.values(tokens)
    for name, tensor in {"the token loss": values, **{f"metric {key}": each for key, each in metrics.items()}}.items():
        if tensor.shape != tokens.mask.shape:
            raise Fault(f"{name} has shape {list(tensor.shape)}, not [B, T] = {list(tokens.mask.shape)}")
        if tensor.dtype != torch.float64:
            raise Fault(f"{name} of inputs in float64 is {str(tensor.dtype).removeprefix('torch.')}")
        if not bool(tensor[tokens.mask].isfinite().all()):
            raise Fault(f"{name} is not finite")


def _padding(tried: TriedLoss, batch: Batch) -> None:
    whole, rows = batch.tokens, torch.arange(len(batch.tokens.mask))
    values, metrics = tried.values(batch.part(rows))
    for name, tensor in {"token loss": values, **metrics}.items():
        if bool(tensor[~whole.mask].any()):
            raise Fault(f"{name} is not 0 at padding")
    gradient = tried.gradient(batch)
    for filler in (7.0, float("inf"), float("nan")):
        filled = {
            name: getattr(whole, name).masked_fill(~whole.mask, filler)
            for name in ("given_log_probs", "given_old_log_probs", "given_advantages")
        }
        other = Batch(replace(whole, **filled))
        if not _same(tried.values(other.part(rows))[0], values) or not _same(tried.gradient(other), gradient):
            raise Fault(
                f"padding that holds {filler:g} changes the loss or its gradient (use tokens.log_probs, not given_*)"
            )


def _slopes(tried: TriedLoss, batch: Batch) -> None:
    gradient, whole = tried.gradient(batch), batch.tokens
    parts = [torch.arange(len(whole.mask))]
    with _constants() as replay:
        tried.total(batch, parts)
        for index in whole.mask.nonzero().tolist():
            slopes = []
            for sign in (1.0, -1.0):
                moved = whole.given_log_probs.clone()
                moved[tuple(index)] += sign * _STEP
                replay()
                slopes.append(float(tried.total(batch.of(moved), parts)))
            slope, derivative = (slopes[0] - slopes[1]) / (2.0 * _STEP), float(gradient[tuple(index)])
            if abs(slope - derivative) > 1e-4 * max(1.0, abs(slope)):
                words = "what is constant is detached; .item(), .data and no_grad are not seen"
                raise Fault(f"the gradient at {index} is {derivative:.6g}, the slope of the loss {slope:.6g} ({words})")


@contextmanager
def _constants() -> Iterator[Callable[[], None]]:
    """Keep what a loss detaches as it was in the first call; the value starts another call."""
    kept: list[Tensor] = []
    position: list[int] = []
    detach = torch.Tensor.detach

    def constant(tensor: Tensor) -> Tensor:
        if not position:
            kept.append(detach(tensor))
            return kept[-1]
        position[0] += 1
        return kept[position[0] - 1]

    def replay() -> None:
        position[:] = [0]

    with mock.patch.object(torch.Tensor, "detach", constant):
        yield replay


def _units(tried: TriedLoss, batch: Batch) -> list[Tensor]:
    """The rollouts that a micro-batch may not part."""
    whole = batch.tokens
    if tried.loss.coupling == "mini_batch":
        return [torch.arange(len(whole.mask))]
    if tried.loss.coupling == "group":
        return [(whole.group_ids == group).nonzero().flatten() for group in whole.group_ids.unique()]
    return [torch.tensor([row]) for row in range(len(whole.mask))]


def _cuts(tried: TriedLoss, batch: Batch) -> None:
    if not _same(tried.gradient(batch, _units(tried, batch)), tried.gradient(batch), 1e-8):
        raise Fault(
            f'micro-batches add up to another gradient than the mini-batch; say coupling = "group" or "mini_batch", '
            f"not {tried.loss.coupling}"
        )


def _ranks(tried: TriedLoss, batch: Batch) -> None:
    units = _units(tried, batch)
    parts = [torch.cat(units[start::2]).flip(0) for start in (0, 1) if units[start::2]]
    if tried.loss.coupling != "mini_batch" and not _same(tried.gradient(batch, parts), tried.gradient(batch), 1e-8):
        raise Fault("two ranks with every second unit in another order add up to another gradient than one")


def _extremes(tried: TriedLoss, batch: Batch) -> None:
    whole = batch.tokens
    for dtype in (torch.float32, torch.bfloat16):
        cast = {
            name: getattr(whole, name).to(dtype)
            for name in ("given_log_probs", "given_old_log_probs", "given_advantages")
        }
        low = Batch(replace(whole, **cast))
        values, metrics = tried.values(low.part(torch.arange(len(whole.mask))))
        for name, tensor in {"token loss": values, "gradient": tried.gradient(low), **metrics}.items():
            if not bool(tensor[whole.mask].isfinite().all()):
                words = f"log-ratios of some {_EXTREME:g} in {str(dtype).removeprefix('torch.')}"
                raise Fault(f"{name} is not finite at {words} (tokens.ratios is limited)")


def _repeats(tried: TriedLoss, batch: Batch) -> None:
    if not torch.equal(tried.gradient(batch), tried.gradient(batch)):
        raise Fault("the same input has another gradient the second time (random numbers come from tokens.generator)")


_CHECKS: dict[str, Callable[[TriedLoss, Batch], None]] = {
    "shapes": _shapes,
    "padding": _padding,
    "gradient": _slopes,
    "micro-batches": _cuts,
    "ranks": _ranks,
    "extremes": _extremes,
    "repetition": _repeats,
}


def _on_policy(tried: TriedLoss) -> Finding:
    """Compare the gradient before the first update with the plain policy gradient, which many losses have there."""
    plain = TriedLoss(Reinforce(), tried.aggregation)
    gradients, other = [], []
    for seed in range(_DRAWS):
        batch = Batch.draw(_SIZES[-1], seed, spread=0.0)
        gradients.append(tried.gradient(batch)[batch.tokens.mask])
        other.append(plain.gradient(batch)[batch.tokens.mask])
    gradient, policy_gradient = torch.cat(gradients), torch.cat(other)
    if not bool(gradient.any()):
        return Finding("on-policy", "note", "the gradient is 0 before the first update")
    factor = float(gradient @ policy_gradient / (policy_gradient @ policy_gradient))
    cosine = float(torch.nn.functional.cosine_similarity(gradient, policy_gradient, dim=0))
    degrees = float(torch.rad2deg(torch.acos(torch.tensor(min(1.0, max(-1.0, cosine))))))
    if degrees < 1e-3 and abs(factor - 1.0) < 1e-6:
        return Finding("on-policy", "holds", "before the first update it is the plain policy gradient")
    words = f"before the first update it is {degrees:.1f} degrees from the plain policy gradient, {factor:.3g} times it"
    return Finding("on-policy", "note", words)


def printed(findings: Sequence[Finding]) -> Iterator[str]:
    """Write the findings for people: a line each, and one for the smallest input that shows a fault."""
    for finding in findings:
        yield f"{finding.check:14} {finding.outcome:6} {finding.words}".rstrip()
        if finding.smallest_input:
            yield f"{'':14} smallest input: {finding.smallest_input}"


def failed(findings: Sequence[Any]) -> bool:
    """Return whether a check fails."""
    return any(finding.outcome == "fails" for finding in findings)
