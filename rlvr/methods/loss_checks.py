"""Checks of a policy loss that take seconds, each with the smallest input that shows a fault.

They hold a loss to what both engines take for granted: values and gradients are numbers, padding counts for nothing,
and a mini-batch may be cut wherever the loss's ``coupling`` allows it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal
from unittest import mock

from evals.core.errors import first_line
from evals.core.lazy_torch import torch
from rlvr.methods.aggregation import AnyAggregation, Normaliser
from rlvr.methods.losses.base import PolicyLoss, TokenLoss, Tokens
from rlvr.methods.losses.token_ratios import Reinforce

if TYPE_CHECKING:
    from torch import Tensor

    from rlvr.methods.method import Method

_SIZES = ((1, 1, 1), (1, 2, 1), (1, 2, 2), (2, 2, 2), (2, 4, 5))
"""Groups, rollouts of each and tokens of the longest, from the smallest input on."""
_DRAWS = 4
_STEP = 1e-6
_EXTREME = 50.0
_GIVEN = ("given_log_probs", "given_old_log_probs", "given_advantages")
Outcome = Literal["holds", "fails", "note"]


@dataclass(frozen=True)
class Finding:
    """The outcome of one check."""

    check: str
    outcome: Outcome
    words: str = ""
    smallest_input: str = ""  # that shows a fault


class Fault(Exception):
    """What a check found on one input: words, and the batch if it is another one than the check was given."""


def _draw(size: tuple[int, int, int], seed: int, spread: float = 0.3) -> Tokens:
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
    return Tokens(drawn, old, advantages, mask, group_ids, torch.Generator())


def _part(whole: Tokens, rows: Tensor | None = None) -> Tokens:
    """The tokens of some rollouts, or of all, as a micro-batch."""
    chosen = torch.arange(len(whole.mask)) if rows is None else rows
    tensors = {name: getattr(whole, name)[chosen] for name in (*_GIVEN, "mask", "group_ids")}
    return Tokens(**tensors, generator=torch.Generator().manual_seed(0))


def _shown(whole: Tokens) -> str:
    def rows(values: Tensor) -> list[list[float]]:
        return [[round(float(x), 3) for x in row[on]] for row, on in zip(values, whole.mask, strict=True)]

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

    def total(self, batch: Tokens, parts: Sequence[Tensor]) -> Tensor:
        """Compute the loss [] of a mini-batch that is cut into micro-batches."""
        normaliser = Normaliser.of(batch.mask, batch.group_ids)
        losses = []
        for rows in parts:
            tokens = _part(batch, rows)
            losses.append(self.aggregation(self.values(tokens)[0], tokens.mask, normaliser, tokens.group_ids))
        return torch.stack(losses).sum()

    def gradient(self, batch: Tokens, parts: Sequence[Tensor] | None = None) -> Tensor:
        """Compute the gradient [B, T] of that loss by the log-probs."""
        log_probs = batch.given_log_probs.clone().requires_grad_()
        total = self.total(replace(batch, given_log_probs=log_probs), parts or [torch.arange(len(log_probs))])
        gradient = torch.autograd.grad(total, log_probs, allow_unused=True)[0] if total.requires_grad else None
        if gradient is None:
            raise Fault("the loss does not depend on the current policy's log-probs")
        return gradient


def check_loss(loss: PolicyLoss, aggregation: AnyAggregation, beside: Mapping[str, Method] = {}) -> Iterator[Finding]:
    """Try a loss on mini-batches from one token to eight rollouts, and give each finding as its check ends.

    Where shapes or repetition fail, the other checks would say nothing; a fault is said once. The time of a call is
    said beside those of other methods.
    """
    tried, faults = TriedLoss(loss, aggregation), set[str]()
    for name, check in _CHECKS.items():
        if check is _repeats:
            try:
                yield _time(tried, {name: TriedLoss(other.loss, other.aggregation) for name, other in beside.items()})
            except Exception as error:
                yield Finding("time", "fails", f"64 rollouts of up to 256 tokens: {_in_words(error)}")
                return
        finding = _first_fault(name, check, tried)
        if finding.outcome == "holds" or finding.words not in faults:
            yield finding
        faults |= {finding.words} - {""}
        if faults and check in (_shapes, _repeats):
            return
    if not faults:
        yield _on_policy(tried)


def _time(tried: TriedLoss, others: Mapping[str, TriedLoss]) -> Finding:
    """Measure a call with its gradient, for 64 rollouts of up to 256 tokens: the least of three times."""
    batch, words = _draw((8, 8, 256), 0), list[str]()
    for name, loss in {"a call with its gradient takes": tried, **others}.items():
        seconds = []
        for _ in range(3):
            began = time.perf_counter()
            loss.gradient(batch)
            seconds.append(time.perf_counter() - began)
        words.append(f"{name} {1000 * min(seconds):.3g} ms")
    return Finding("time", "note", ", ".join(words))


def _first_fault(name: str, check: Callable[[TriedLoss, Tokens], None], tried: TriedLoss) -> Finding:
    spread = _EXTREME if check is _extremes else 0.3
    for size in _SIZES:
        for seed in range(_DRAWS):
            batch = _draw(size, seed, spread)
            try:
                check(tried, batch)
            except Fault as fault:
                words, shown = (*fault.args, batch)[:2]
                return Finding(name, "fails", words, _shown(shown))
            except Exception as error:
                return Finding(name, "fails", _in_words(error), _shown(batch))
    return Finding(name, "holds")


def _in_words(error: Exception) -> str:
    return f"{type(error).__name__}: {first_line(error)}"


def _same(one: Tensor, other: Tensor, tolerance: float = 1e-9) -> bool:
    return torch.allclose(one, other, rtol=tolerance, atol=tolerance * 1e-2, equal_nan=True)


def _shapes(tried: TriedLoss, batch: Tokens) -> None:
    tokens, untouched = (_part(batch) for _ in range(2))
    loss = tried.loss.token_loss(tokens)
    if not isinstance(loss, TokenLoss):
        raise Fault(f"token_loss returns a {type(loss).__name__}; accepted: TokenLoss(values, metrics)")
    tensors = {"the token loss": loss.values, **{f"metric {key}": each for key, each in loss.metrics.items()}}
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise Fault(f"{name} is a {type(tensor).__name__}, not a tensor [B, T]")
        if tensor.shape != tokens.mask.shape:
            raise Fault(f"{name} has shape {list(tensor.shape)}, not [B, T] = {list(tokens.mask.shape)}")
        if tensor.dtype != torch.float64:
            raise Fault(f"{name} of inputs in float64 is {str(tensor.dtype).removeprefix('torch.')}")
        if not bool(tensor[tokens.mask].isfinite().all()):
            raise Fault(f"{name} is not finite")
    for name in (*_GIVEN, "mask", "group_ids", "log_probs", "old_log_probs", "advantages", "log_ratios", "ratios"):
        if getattr(tokens, name)._version or not torch.equal(getattr(tokens, name), getattr(untouched, name)):
            raise Fault(f"tokens.{name} is changed in place, and is used again; accepted: a new tensor")
    tried.gradient(batch)


def _padding(tried: TriedLoss, batch: Tokens) -> None:
    values, metrics = tried.values(_part(batch))
    gradient = tried.gradient(batch)
    for name, tensor in {"token loss": values, "gradient": gradient, **metrics}.items():
        if bool(tensor[~batch.mask].any()):
            raise Fault(f"{name} is not 0 at padding")
    width = batch.mask.shape[1]
    for filler, columns in ((7.0, 0), (float("inf"), 0), (float("nan"), 0), (7.0, 1)):
        pad = torch.nn.functional.pad
        filled: dict[str, Any] = {
            name: pad(getattr(batch, name).masked_fill(~batch.mask, filler), (0, columns), value=filler)
            for name in _GIVEN
        }
        other = replace(batch, **filled, mask=pad(batch.mask, (0, columns)))
        changed = (tried.values(_part(other))[0][:, :width], tried.gradient(other)[:, :width])
        if not (_same(changed[0], values) and _same(changed[1], gradient)):
            words = "one more column of padding" if columns else f"padding that holds {filler:g}"
            advice = "sum over tokens.mask" if columns else "use tokens.log_probs, not given_*"
            raise Fault(f"{words} changes the loss or its gradient ({advice})")


def _slopes(tried: TriedLoss, batch: Tokens) -> None:
    gradient = tried.gradient(batch)
    parts = [torch.arange(len(batch.mask))]
    with _constants() as replay:
        tried.total(batch, parts)
        for index in batch.mask.nonzero().tolist():
            slopes = []
            for sign in (1.0, -1.0):
                moved = batch.given_log_probs.clone()
                moved[tuple(index)] += sign * _STEP
                replay()
                slopes.append(float(tried.total(replace(batch, given_log_probs=moved), parts)))
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


def _units(tried: TriedLoss, batch: Tokens) -> list[Tensor]:
    """The rollouts that a micro-batch may not part."""
    if tried.loss.coupling == "mini_batch":
        return [torch.arange(len(batch.mask))]
    if tried.loss.coupling == "group":
        return [(batch.group_ids == group).nonzero().flatten() for group in batch.group_ids.unique()]
    return [torch.tensor([row]) for row in range(len(batch.mask))]


def _cuts(tried: TriedLoss, batch: Tokens) -> None:
    if not _same(tried.gradient(batch, _units(tried, batch)), tried.gradient(batch), 1e-8):
        raise Fault(
            f'micro-batches add up to another gradient than the mini-batch; say coupling = "group" or "mini_batch", '
            f"not {tried.loss.coupling}"
        )


def _ranks(tried: TriedLoss, batch: Tokens) -> None:
    _cuts(tried, batch)  # what fails there is said once
    units, gradient = _units(tried, batch), tried.gradient(batch)
    numbered = replace(batch, group_ids=batch.group_ids.max() + 1 - batch.group_ids)
    if not _same(tried.gradient(numbered), gradient, 1e-8):
        raise Fault("other numbers of the groups give another gradient (group_ids say which rollouts are one group)")
    parts = [torch.cat(units[start::2]).flip(0) for start in (0, 1) if units[start::2]]
    is_tied = tried.loss.coupling == "mini_batch" and int(batch.mask.sum()) <= 2  # two covariances are one number
    if not is_tied and not _same(tried.gradient(batch, parts), gradient, 1e-8):
        raise Fault("the gradient depends on the order of the rollouts, or on how they are divided among ranks")


def _extremes(tried: TriedLoss, batch: Tokens) -> None:
    nothing = torch.zeros_like(batch.given_log_probs)
    inputs: dict[str, dict[str, Tensor]] = {
        f"log-ratios of some {_EXTREME:g} (tokens.ratios is limited)": {},
        "ratios of 1, as all are before the first update": {"given_log_probs": batch.given_old_log_probs},
        "advantages of 0": {"given_advantages": nothing},
        "probabilities of 1": {"given_log_probs": nothing, "given_old_log_probs": nothing},
    }
    for words, changed in inputs.items():
        for dtype in (torch.float32, torch.bfloat16):
            cast = {name: changed.get(name, getattr(batch, name)).to(dtype) for name in _GIVEN}
            low = replace(batch, **cast)
            values, metrics = tried.values(_part(low))
            for name, tensor in {"token loss": values, "gradient": tried.gradient(low), **metrics}.items():
                if not bool(tensor[batch.mask].isfinite().all()):
                    raise Fault(f"{name} is not finite in {str(dtype).removeprefix('torch.')} at {words}", low)


def _repeats(tried: TriedLoss, batch: Tokens) -> None:
    if not torch.equal(tried.gradient(batch), tried.gradient(batch)):
        raise Fault("the same input has another gradient the second time (random numbers come from tokens.generator)")


_CHECKS: dict[str, Callable[[TriedLoss, Tokens], None]] = {
    "shapes": _shapes,
    "repetition": _repeats,
    "padding": _padding,
    "gradient": _slopes,
    "micro-batches": _cuts,
    "ranks": _ranks,
    "extremes": _extremes,
}


def _on_policy(tried: TriedLoss) -> Finding:
    """Compare the gradient before the first update with the plain policy gradient, which many losses have there."""
    plain = TriedLoss(Reinforce(), tried.aggregation)
    gradients, other = [], []
    for seed in range(_DRAWS):
        batch = _draw(_SIZES[-1], seed, spread=0.0)
        gradients.append(tried.gradient(batch)[batch.mask])
        other.append(plain.gradient(batch)[batch.mask])
    gradient, policy_gradient = torch.cat(gradients), torch.cat(other)
    if not bool(gradient.any()):
        return Finding("on-policy", "note", "the gradient is 0 before the first update")
    factor = float(gradient @ policy_gradient / (policy_gradient @ policy_gradient))
    cosine = float(torch.nn.functional.cosine_similarity(gradient, policy_gradient, dim=0))
    degrees = float(torch.rad2deg(torch.acos(torch.tensor(min(1.0, max(-1.0, cosine))))))
    if degrees < 1e-3 and abs(factor - 1.0) < 1e-6:
        return Finding("on-policy", "holds", "before the first update it is the plain policy gradient")
    words = f"before the first update it is {degrees:.1f} degrees from the plain policy gradient, {factor:.3g} times it"
    for fault, side in (
        ("lowers the probability of what is rewarded", policy_gradient < 0),
        ("raises the probability of what is punished", policy_gradient > 0),
    ):
        if float(gradient[side] @ policy_gradient[side]) < 0:
            return Finding("on-policy", "fails", f"it {fault}, for a loss is minimised: {words}")
    return Finding("on-policy", "note", words)


def print_findings(findings: Iterable[Finding]) -> bool:
    """Print each finding as it comes, with the smallest input that shows a fault; return whether none fails."""
    outcomes = []
    for finding in findings:
        print(f"{finding.check:14} {finding.outcome:6} {finding.words}".rstrip(), flush=True)
        if finding.smallest_input:
            print(f"{'':14} smallest input: {finding.smallest_input}", flush=True)
        outcomes.append(finding.outcome)
    return "fails" not in outcomes
