"""PPL (arXiv 2508.02260): responses that the policy finds surprising count for less."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from rlvr.methods.hyper_parameter import check_hyper_parameters, hyper_parameter
from rlvr.methods.precision import computation_type
from rlvr.methods.rollout_batch import RolloutBatch
from rlvr.methods.token_weights.weight_statistics import weight_metrics

_DEVIATION_FLOOR = 1e-6


@dataclass(frozen=True)
class Perplexity:
    """1 - c z for all tokens of a response, z its standardised mean negative log-likelihood under the sampling policy.

    z is taken over the responses of the same prompt or over the whole rollout batch, with the population's standard
    deviation + 1e-6. Weights never fall below 0; with ``clamp`` they stay within 1 - clamp and 1 + clamp. Responses
    without tokens take no part.
    """

    needs_hidden_states: ClassVar[bool] = False
    sketch_dimensions: ClassVar[int | None] = None

    c: float = hyper_parameter(0.01, "weight lost per standard deviation of surprise", minimum=0.0)
    scope: Literal["group", "batch"] = hyper_parameter("group", "responses that z is standardised over")
    clamp: float | None = hyper_parameter(None, "largest distance from 1; null for none", above=0.0, maximum=1.0)

    def __post_init__(self) -> None:
        """Raise ValueError for a value outside its range."""
        check_hyper_parameters(self)

    def __call__(self, batch: RolloutBatch) -> tuple[Tensor, dict[str, float]]:
        """Weights [B, T], at least float32, 0 at padding, and metrics."""
        mask = batch.response_mask
        lengths = mask.sum(dim=1)
        likelihoods = batch.old_log_probs.double().masked_fill(~mask, 0.0).sum(dim=1)
        surprise = -likelihoods / lengths.clamp(min=1)
        scopes = batch.group_ids if self.scope == "group" else torch.zeros_like(batch.group_ids)
        standardised = torch.zeros_like(surprise)
        for scope in torch.unique(scopes):
            members = (scopes == scope) & (lengths > 0)
            if bool(members.any()):
                values = surprise[members]
                standardised[members] = (values - values.mean()) / (values.std(correction=0) + _DEVIATION_FLOOR)
        weights = (1.0 - self.c * standardised).clamp(min=0.0)
        if self.clamp is not None:
            weights = weights.clamp(1.0 - self.clamp, 1.0 + self.clamp)
        dtype = computation_type(batch.old_log_probs)
        padded = weights.to(dtype)[:, None] * mask
        return padded, weight_metrics(padded[mask])
