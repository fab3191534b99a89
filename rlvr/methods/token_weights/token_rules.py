"""The base of token weightings, and weights from probability, entropy or chance, which need no hidden states."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from evals.core.lazy_torch import torch
from rlvr.methods.parameters import Component, component, hyper_parameter
from rlvr.methods.rollout_batch import RolloutBatch, at_least_float32, computation_type

if TYPE_CHECKING:
    from torch import Tensor

Denominator = Literal["selected", "all"]


@dataclass(frozen=True)
class TokenWeights(Component, ABC):
    """The base of token weightings."""

    kind: ClassVar[str] = "token_weights"
    needs_hidden_states: ClassVar[bool] = False  # whether the rollout batch has to hold the hidden states

    @property
    def sketch_dimensions(self) -> int | None:
        """The dimensions of the random projection that replaces the hidden states; None for no projection."""
        return None

    @abstractmethod
    def weigh(self, batch: RolloutBatch) -> tuple[Tensor, dict[str, float]]:
        """Compute the weights [N] >= 0 of the real tokens, and metrics of this weighting."""

    def __call__(self, batch: RolloutBatch) -> tuple[Tensor, dict[str, float]]:
        """Compute weights [B, T], 0 at padding, in the type of ``old_log_probs`` or float32, and metrics."""
        weights, metrics = self.weigh(batch)
        padded = torch.zeros_like(batch.old_log_probs, dtype=computation_type(batch.old_log_probs))
        padded[batch.response_mask] = weights.to(padded.dtype)
        return padded, weight_metrics(weights) | metrics


def selection_weights(selected: Tensor, batch: RolloutBatch, denominator: Denominator) -> Tensor:
    """Compute the weights [N] of the ``selected`` tokens [N] bool; the others have weight 0.

    The engine divides by all tokens of a mini-batch. With "all" a selected token has weight 1. With "selected" it has
    weight (tokens / selected tokens) of its mini-batch, which turns the token mean into the mean over selected tokens.
    """
    weights = selected.to(computation_type(batch.old_log_probs))
    if denominator == "selected":
        mini_batches = batch.per_token(batch.mini_batch_ids)
        for mini_batch in torch.unique(mini_batches):
            members = mini_batches == mini_batch
            weights[members] *= int(members.sum()) / max(int(selected[members].sum()), 1)
    return weights


def weight_metrics(weights: Tensor) -> dict[str, float]:
    """Compute mean, 5th and 95th percentile (nearest rank) of the real tokens' weights [N]; NaN without tokens."""
    names = ("token_weight_mean", "token_weight_p05", "token_weight_p95")
    if weights.numel() == 0:
        return dict.fromkeys(names, math.nan)
    ranks = [max(1, math.ceil(level * weights.numel())) for level in (0.05, 0.95)]
    values = [weights.double().mean(), *(weights.kthvalue(rank).values for rank in ranks)]
    return dict(zip(names, map(float, values), strict=True))


@component("low_probability")
class LowProbability(TokenWeights):
    """1 + alpha (1 - p): improbable tokens count for more (RLVR-Directions, arXiv 2603.22117).

    p is the sampling policy's probability. The weights are not normalised; their mean is above 1.
    """

    alpha: float = hyper_parameter(0.2, "additional weight of a token of probability 0", minimum=0.0)

    def weigh(self, batch: RolloutBatch) -> tuple[Tensor, dict[str, float]]:
        return 1.0 + self.alpha * (1.0 - _probabilities(batch)), {}


@component("dominate")
class Dominate(TokenWeights):
    """a p + 1 - a: improbable tokens count for less (Advantage Reweighting, arXiv 2505.12929).

    p is the sampling policy's probability. Not normalised; the mean is below 1.
    """

    a: float = hyper_parameter(0.2, "part of the weight that falls with the probability", minimum=0.0, maximum=1.0)

    def weigh(self, batch: RolloutBatch) -> tuple[Tensor, dict[str, float]]:
        return self.a * _probabilities(batch) + (1.0 - self.a), {}


@component("perplexity")
class Perplexity(TokenWeights):
    """1 - c z for all tokens of a response, z its standardised mean negative log-likelihood under the sampling policy.

    PPL (arXiv 2508.02260): responses that the policy finds surprising count for less. z is taken over the responses of
    the same prompt or over the whole rollout batch, with the population's standard deviation + 1e-6. Weights never fall
    below 0; with ``clamp`` they stay within 1 - clamp and 1 + clamp. Responses without tokens take no part.
    """

    c: float = hyper_parameter(0.01, "weight lost per standard deviation of surprise", minimum=0.0)
    scope: Literal["group", "batch"] = hyper_parameter("group", "responses that z is standardised over")
    clamp: float | None = hyper_parameter(None, "largest distance from 1; null for none", above=0.0, maximum=1.0)

    def weigh(self, batch: RolloutBatch) -> tuple[Tensor, dict[str, float]]:
        mask = batch.response_mask
        lengths = mask.sum(dim=1)
        likelihoods = batch.old_log_probs.double().masked_fill(~mask, 0.0).sum(dim=1)
        surprise = -likelihoods / lengths.clamp(min=1)
        sets = batch.group_ids if self.scope == "group" else torch.zeros_like(batch.group_ids)
        standardised = torch.zeros_like(surprise)
        for one in torch.unique(sets):
            members = (sets == one) & (lengths > 0)
            if bool(members.any()):
                values = surprise[members]
                standardised[members] = (values - values.mean()) / (values.std(correction=0) + 1e-6)
        weights = (1.0 - self.c * standardised).clamp(min=0.0)
        if self.clamp is not None:
            weights = weights.clamp(1.0 - self.clamp, 1.0 + self.clamp)
        return batch.per_token(weights.to(computation_type(batch.old_log_probs))), {}


@component("forking_tokens")
class ForkingTokens(TokenWeights):
    """Selects the tokens whose entropy reaches the ceil(top_ratio N)-th largest of the N tokens ranked together.

    Forking tokens (Beyond the 80/20 rule, arXiv 2506.01939). Ties with that value are all selected. With denominator
    "all" a selected token has weight 1, which is the paper's equation; with "selected" the token mean becomes the mean
    over selected tokens, as in the authors' code. The entropy is that of the sampling policy, where the authors' code
    takes the current policy's in each micro-batch.
    """

    top_ratio: float = hyper_parameter(0.2, "part of the tokens that is trained on", above=0.0, maximum=1.0)
    denominator: Denominator = hyper_parameter("selected", "tokens that the token mean divides by")
    scope: Literal["mini_batch", "rollout_batch"] = hyper_parameter("mini_batch", "tokens that are ranked together")

    def weigh(self, batch: RolloutBatch) -> tuple[Tensor, dict[str, float]]:
        entropies = batch.entropies[batch.response_mask]
        mini_batches = batch.per_token(batch.mini_batch_ids)
        sets = mini_batches if self.scope == "mini_batch" else torch.zeros_like(mini_batches)
        selected = torch.zeros_like(entropies, dtype=torch.bool)
        for one in torch.unique(sets):
            members = sets == one
            ranked = entropies[members]
            rank = math.ceil(self.top_ratio * ranked.numel())
            selected[members] = ranked >= ranked.kthvalue(ranked.numel() - rank + 1).values
        fraction = {"selected_token_fraction": float(selected.double().mean())}
        return selection_weights(selected, batch, self.denominator), fraction


@component("random_lambda")
class RandomLambda(TokenWeights):
    """Independent uniform draws from [lambda_min, lambda_max] for every token, divided by their mean.

    The control that has the spread of DelTA's weights and none of their information (arXiv 2605.21467). Drawn anew for
    every rollout batch, tokens of advantage 0 included.
    """

    lambda_min: float = hyper_parameter(0.8, "smallest draw", minimum=0.0, maximum=1.0)
    lambda_max: float = hyper_parameter(1.2, "largest draw", minimum=1.0)

    def weigh(self, batch: RolloutBatch) -> tuple[Tensor, dict[str, float]]:
        tokens = int(batch.response_mask.sum())
        draws = torch.rand(tokens, generator=batch.generator, dtype=torch.float64).to(batch.response_mask.device)
        weights = self.lambda_min + (self.lambda_max - self.lambda_min) * draws
        return weights / weights.mean(), {}


def _probabilities(batch: RolloutBatch) -> Tensor:
    """Compute the probability [N] of each real token under the sampling policy."""
    return at_least_float32(batch.old_log_probs)[batch.response_mask].exp()
