"""FIPO, Future-KL Influenced Policy Optimization (arXiv 2603.19835): a token counts by what became of its future."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from rlvr.methods.aggregation import Aggregation, aggregation_constant_field, aggregation_field, check_aggregation
from rlvr.methods.hyper_parameter import check_hyper_parameters, hyper_parameter
from rlvr.methods.losses.clipped import Clipped
from rlvr.methods.losses.ratio import MAX_LOG_RATIO, log_ratio
from rlvr.methods.precision import at_least_float32
from rlvr.methods.seams import Coupling


@dataclass(frozen=True)
class FIPO:
    """DAPO's clipped loss on f_t A, f_t = sg[clip(exp(F_t), 1 - future_low, 1 + future_high)].

    F_t = sum_(k >= t) M_k 2^(-(k - t) / half_life) (log pi_theta - log pi_old)_k is the discounted drift of the rest of
    the response, the current token included; M_k leaves out tokens whose ratio exceeds dual_clip. Where A < 0 and the
    ratio exceeds safety_ratio, f_t is limited to [0.8, 1] (the released code, safety_rule "limit") or set to 1 (the
    paper, "reset"). A response with more than one token over the dual-clip bound is dropped, from the normaliser too.
    On the first update after a rollout F is 0 everywhere and this is DAPO's loss. Log-ratios are limited to +-20.
    """

    coupling: ClassVar[Coupling] = "mini_batch"  # dropped responses leave the mini-batch's normaliser

    half_life: float = hyper_parameter(32.0, "tokens over which the influence of the future halves", above=0.0)
    future_low: float = hyper_parameter(0.0, "f_t is at least 1 minus this", minimum=0.0, maximum=1.0)
    future_high: float | None = hyper_parameter(
        0.2, "f_t is at most 1 plus this; null for the released code's limit of 10", minimum=0.0
    )
    safety_ratio: float = hyper_parameter(10.0, "ratio above which a negative advantage is not amplified", above=1.0)
    safety_rule: Literal["limit", "reset"] = hyper_parameter("limit", "what happens to f_t there")
    epsilon_low: float = hyper_parameter(0.2, "the ratio is clipped below 1 minus this", above=0.0, maximum=1.0)
    epsilon_high: float = hyper_parameter(0.28, "the ratio is clipped above 1 plus this", above=0.0)
    dual_clip: float = hyper_parameter(10.0, "largest ratio that counts for a negative advantage", above=1.0)
    aggregation: Aggregation = aggregation_field("token-mean")  # noqa: RUF009 (a field)
    aggregation_constant: float | None = aggregation_constant_field()

    def __post_init__(self) -> None:
        """Raise ValueError for a value outside its range."""
        check_hyper_parameters(self)
        check_aggregation(self)

    def __call__(
        self,
        log_probs: Tensor,
        old_log_probs: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        group_ids: Tensor,
        generator: torch.Generator,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Token loss [B, T] and metrics [B, T]; the first four inputs are [B, T], the others play no part.

        ``future_weight`` is f_t, ``dropped_fraction`` marks the tokens of dropped responses.
        """
        log_ratios = log_ratio(log_probs, old_log_probs, response_mask)
        signal = at_least_float32(advantages).masked_fill(~response_mask, 0.0)
        limited = log_ratios.detach().clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        weights = self._future_weights(limited, signal)
        clipped = Clipped(
            self.epsilon_low, self.epsilon_high, self.dual_clip, self.aggregation, self.aggregation_constant
        )
        token_loss, metrics = clipped(log_probs, old_log_probs, weights * signal, response_mask, group_ids, generator)
        bounded = (signal < 0) & (limited.exp() > self.dual_clip)
        kept = response_mask & (bounded.sum(dim=1, keepdim=True) <= 1)
        metrics["future_weight"] = weights * response_mask
        metrics["dropped_fraction"] = (response_mask & ~kept).to(weights.dtype)
        return token_loss * kept * self._denominator_correction(response_mask, kept), metrics

    def _future_weights(self, log_ratios: Tensor, signal: Tensor) -> Tensor:
        """f_t [B, T] of the limited log-ratios [B, T], 0 at padding."""
        ratios = log_ratios.exp()
        steps = log_ratios.masked_fill(ratios > self.dual_clip, 0.0)
        discount = 2.0 ** (-1.0 / self.half_life)
        futures = torch.zeros_like(steps)
        future = torch.zeros_like(steps[:, 0])
        for position in range(steps.shape[1] - 1, -1, -1):
            future = steps[:, position] + discount * future
            futures[:, position] = future
        highest = 10.0 if self.future_high is None else 1.0 + self.future_high
        weights = futures.exp().clamp(1.0 - self.future_low, highest)
        unsafe = (signal < 0) & (ratios > self.safety_ratio)
        safe = weights.clamp(0.8, 1.0) if self.safety_rule == "limit" else torch.ones_like(weights)
        return torch.where(unsafe, safe, weights)

    def _denominator_correction(self, response_mask: Tensor, kept: Tensor) -> float:
        """What turns the engine's normaliser, of all responses, into that of the kept ones."""
        if self.aggregation == "token-mean":
            return int(response_mask.sum()) / max(1, int(kept.sum()))
        return int(response_mask.any(dim=1).sum()) / max(1, int(kept.any(dim=1).sum()))
