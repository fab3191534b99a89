"""Two models' opinions of the same tokens: log-probabilities, entropies and divergences (arXiv 2603.22117)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rlvr.engines.local.policy import Policy, TokenBatch, response_states
from rlvr.tokens.table import MODEL_COLUMNS
from rlvr_claims.decoding.draw import kl_divergence

_CHUNK_ELEMENTS = 1 << 24
"""Logits of one model that are held at a time: 64 MiB in float32, and a few times that for their softmax."""
_RESOLUTION = 1e-7  # resolution of a sum of float32 probabilities: a smaller remainder cannot be told from 0
_NOTHING = -1e4  # finite stand-in for -inf, so that 0 * x stays 0


@dataclass(frozen=True)
class ModelPair:
    """A model before and after training, of one vocabulary; ``temperature`` divides their logits."""

    base: Policy
    trained: Policy
    temperature: float = 1.0

    @torch.no_grad()
    def compare(self, tokens: TokenBatch, top: int | None = None) -> dict[str, Tensor]:
        """Return :data:`~rlvr.tokens.table.MODEL_COLUMNS`, [N] float32 each, of the response tokens.

        Logits are made a chunk of tokens at a time; only the hidden states of all N tokens are held at once. With
        ``top`` entropies and divergences are summed over that many likeliest tokens of each model and one remainder
        (:func:`lumped`), not over the whole vocabulary. Log-probabilities are exact either way.
        """
        models = (self.base, self.trained)
        (base, targets), (trained, _) = (response_states(model, tokens) for model in models)
        vocabulary = self.base.head_weight.shape[0]
        rows = max(1, _CHUNK_ELEMENTS // vocabulary)
        whole = top is None or top >= vocabulary
        parts = []
        for first, second, chosen in zip(base.split(rows), trained.split(rows), targets.split(rows), strict=True):
            logits = [model.logits(part, self.temperature) for model, part in zip(models, (first, second), strict=True)]
            parts.append(over_vocabulary(logits, chosen) if whole else over_likeliest(logits, chosen, top or 0))
        return {name: torch.cat([part[name] for part in parts]).float().cpu() for name in MODEL_COLUMNS}


def over_vocabulary(logits: Sequence[Tensor], chosen: Tensor) -> dict[str, Tensor]:
    """Return :data:`MODEL_COLUMNS` of the tokens ``chosen`` [n] from both models' logits [n, V]."""
    q, p = (values.log_softmax(dim=-1) for values in logits)
    return _columns([values.gather(-1, chosen[:, None])[:, 0] for values in (q, p)], q, p)


def over_likeliest(logits: Sequence[Tensor], chosen: Tensor, top: int) -> dict[str, Tensor]:
    """Return the same over :func:`lumped` distributions: one pass over the vocabulary, and no copy of it."""
    largest = [values.max(dim=-1, keepdim=True) for values in logits]
    totals = []
    for values, (value, token) in zip(logits, largest, strict=True):
        # The largest term, which is 1, is added in float64: a small remainder is a difference of nearly equal numbers.
        others = (values - value).exp_().scatter_(-1, token, 0.0).sum(dim=-1, keepdim=True)
        totals.append(torch.log1p(others.double()))
    places = torch.cat([values.topk(top, dim=-1).indices for values in logits], dim=-1).sort(dim=-1).values
    repeated = torch.zeros_like(places, dtype=torch.bool)
    repeated[:, 1:] = places[:, 1:] == places[:, :-1]

    def log_probs(model: int, tokens: Tensor) -> Tensor:
        return (logits[model].gather(-1, tokens) - largest[model].values).double() - totals[model]

    sampled = [log_probs(model, chosen[:, None])[:, 0] for model in (0, 1)]
    known = [log_probs(model, places) for model in (0, 1)]
    q, p = (lumped(values, repeated) for values in known)
    return _columns(sampled, q, p)


def lumped(known: Tensor, repeated: Tensor) -> Tensor:
    """Return log-probabilities [n, K + 1]: the known ones [n, K] that are not ``repeated``, and the rest as one event.

    Lumping loses information: entropy and divergence can only shrink, and grow back with K.
    """
    left = known.masked_fill(repeated, _NOTHING)
    remainder = (1.0 - left.exp().sum(dim=-1, keepdim=True)).clamp(min=_RESOLUTION)
    return torch.cat([left, remainder.log()], dim=-1)


def _columns(sampled: Sequence[Tensor], q: Tensor, p: Tensor) -> dict[str, Tensor]:
    """Name the ``sampled`` log-probabilities [n], and what log-probabilities [n, K] of base and trained model give."""
    entropies = (-(values.exp() * values).sum(dim=-1) for values in (q, p))
    return dict(zip(MODEL_COLUMNS, (*sampled, *entropies, kl_divergence(p, q), kl_divergence(q, p)), strict=True))
