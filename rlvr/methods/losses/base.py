"""The base of policy losses: it masks, forms ratios, and checks hyper-parameters, so that a loss is its equation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Literal

from evals.core.lazy_torch import torch
from evals.core.record import Record
from rlvr.methods.aggregation import Aggregation, AggregationSettings, AnyAggregation, Mode, ModeOrFile
from rlvr.methods.parameters import Component, Parameter, parameters_of
from rlvr.methods.rollout_batch import at_least_float32

if TYPE_CHECKING:
    from torch import Tensor

Coupling = Literal["rollout", "group", "mini_batch"]
"""The rollouts that one call of a loss must see together, so that micro-batches add up to the mini-batch."""

MAX_LOG_RATIO = 20.0
"""The limit of log-ratios: exp(20) is about 5e8, outside every clip range, and finite times any float32 advantage."""


@dataclass(frozen=True)
class Tokens:
    """The tokens of a mini-batch or a micro-batch; all tensors are [B, T] unless their text says otherwise.

    Derived values are in float32 or better, and exactly 0, with gradient 0, at padding: padding is replaced before
    anything is computed from it, because 0 times an overflow met later would be NaN.
    """

    given_log_probs: Tensor  # of the current policy; the only tensor with a gradient
    given_old_log_probs: Tensor  # of the policy that sampled
    given_advantages: Tensor  # advantages times token weights
    mask: Tensor  # bool, true at response tokens
    group_ids: Tensor  # [B], the prompt of each rollout
    generator: torch.Generator  # of random numbers on the CPU, the optimizer step's own
    given_sampler_log_probs: Tensor | None = None  # of what drew the tokens; None where that is the policy before
    given_reference_log_probs: Tensor | None = None  # of the reference policy, if the method has one
    given_entropies: Tensor | None = None  # of the current policy, with a gradient, if the method has an entropy bonus
    entropy_coefficient: float = 0.0

    @cached_property
    def _wide_log_probs(self) -> Tensor:
        """Log pi_theta, converted once: gradients by two ways are then added before they are rounded."""
        return at_least_float32(self.given_log_probs)

    @cached_property
    def log_probs(self) -> Tensor:
        """Log pi_theta."""
        return self._wide_log_probs.masked_fill(~self.mask, 0.0)

    @cached_property
    def old_log_probs(self) -> Tensor:
        """Log pi_old."""
        return at_least_float32(self.given_old_log_probs).masked_fill(~self.mask, 0.0)

    @cached_property
    def advantages(self) -> Tensor:
        """A, advantages times token weights."""
        return at_least_float32(self.given_advantages).masked_fill(~self.mask, 0.0)

    @cached_property
    def log_ratios(self) -> Tensor:
        """Log pi_theta - log pi_old."""
        difference = self._wide_log_probs - at_least_float32(self.given_old_log_probs)
        return difference.masked_fill(~self.mask, 0.0)

    @cached_property
    def sampler_log_ratios(self) -> Tensor:
        """Log pi_old - log mu, mu the sampler's probability."""
        if self.given_sampler_log_probs is None:
            return torch.zeros_like(self.old_log_probs)
        difference = at_least_float32(self.given_old_log_probs) - at_least_float32(self.given_sampler_log_probs)
        return difference.masked_fill(~self.mask, 0.0)

    def relative_to_sampler(self) -> Tokens:
        """Return the same tokens with the sampler in place of the policy before the update."""
        sampler = self.given_sampler_log_probs
        return self if sampler is None else replace(self, given_old_log_probs=sampler)

    @cached_property
    def limited_log_ratios(self) -> Tensor:
        """The log-ratios, limited to +-20."""
        return self.log_ratios.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)

    @cached_property
    def ratios(self) -> Tensor:
        """R = pi_theta / pi_old, of the limited log-ratios."""
        return self.limited_log_ratios.exp()

    def mean(self, values: Tensor) -> Tensor:
        """Compute the mean [B, 1] over each response's tokens of ``values``, which are 0 at padding."""
        return values.sum(dim=1, keepdim=True) / self.mask.sum(dim=1, keepdim=True).clamp(min=1)

    @cached_property
    def approximate_kl(self) -> Tensor:
        """An estimate of KL(pi_old || pi_theta) from samples of pi_old that is never negative: r - 1 - log r."""
        limited = self.limited_log_ratios.detach()
        return torch.expm1(limited) - limited

    def clip_fractions(self, below: Tensor, above: Tensor) -> dict[str, Tensor]:
        """Build the metrics of tokens whose gradient is stopped (or bounded) below and above the range."""
        marks = {"clip_fraction": below | above, "clip_fraction_lower": below, "clip_fraction_upper": above}
        of_type = {name: marked.to(self.log_ratios.dtype) for name, marked in marks.items()}
        return {**of_type, "approximate_kl": self.approximate_kl}

    def covariances(self) -> Tensor:
        """Compute (A - mean A)(log pi - mean log pi) of each of the N tokens, means over all of them: [N], no gradient.

        Large where a probable token is rewarded or an improbable one punished: what makes the policy's entropy fall
        (arXiv 2505.22617).
        """
        current, advantages = self.log_probs.detach()[self.mask], self.advantages[self.mask]
        return (advantages - advantages.mean()) * (current - current.mean())


@dataclass(frozen=True)
class TokenLoss:
    """The result of a loss; all tensors are [B, T]."""

    values: Tensor
    metrics: Mapping[str, Tensor]  # the loss's own; an engine averages them over the mini-batch's tokens
    kept: Tensor | None = None  # bool, the tokens that count in the mini-batch's normaliser; None for all


@dataclass(frozen=True)
class PolicyLoss(Component, ABC):
    """The base of token losses of the current policy against the one that sampled."""

    kind: ClassVar[str] = "loss"
    record_base: ClassVar[type[Record]] = AggregationSettings
    coupling: ClassVar[Coupling] = "rollout"  # which rollouts a micro-batch may not part
    default_aggregation: ClassVar[Mode] = "token-mean"  # the paper's, used where a catalogue entry names none

    @classmethod
    def parameters(cls) -> Mapping[str, Parameter]:
        """Describe the loss's hyper-parameters, and the method's aggregation."""
        of_method = parameters_of(Aggregation)
        mode = replace(of_method["mode"], type=ModeOrFile, default=cls.default_aggregation)
        return {**super().parameters(), "aggregation": mode, "aggregation_constant": of_method["constant"]}

    @abstractmethod
    def token_loss(self, tokens: Tokens) -> TokenLoss:
        """Compute the loss of each token and the loss's own metrics."""

    def __call__(
        self,
        log_probs: Tensor,
        old_log_probs: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        group_ids: Tensor,
        generator: torch.Generator,
        aggregation: AnyAggregation,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute what :meth:`of` does, from the tensors of :class:`Tokens`."""
        return self.of(Tokens(log_probs, old_log_probs, advantages, response_mask, group_ids, generator), aggregation)

    def of(self, tokens: Tokens, aggregation: AnyAggregation) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the token loss [B, T], 0 at padding, and metrics [B, T].

        ``aggregation`` is the engine's next step: where a loss drops tokens, its values are scaled so that the
        mini-batch's normaliser becomes that of the kept ones.
        """
        loss = self.token_loss(tokens)
        metrics = {**loss.metrics, "approximate_kl": tokens.approximate_kl}
        if loss.kept is None:
            return loss.values, metrics
        return loss.values * loss.kept * aggregation.correction(tokens.mask, loss.kept, tokens.group_ids), metrics
