"""The direction of an update: what training did to single tokens' log-probabilities (arXiv 2603.22117)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from scipy.stats import rankdata
from torch import Tensor
from transformers import PreTrainedModel

from rlvr.engines.local.policy import TokenBatch, score

COLUMNS = ("base_log_prob", "trained_log_prob", "base_entropy", "trained_entropy", "kl_trained_base", "kl_base_trained")
"""What two models say about a token: its log-probability, and the distribution that it was drawn from; nats."""
_CHUNK_ELEMENTS = 1 << 24
"""Logits of one model that are held at a time: 64 MiB in float32, and a few times that for what follows."""


def logit_gradient_norm(probability: Tensor, advantage: Tensor, ratio: Tensor) -> Tensor:
    """Sum of the absolute derivatives of r A log pi with respect to the logits, 2 |r A| (1 - pi) (Lemma 3.1).

    Hence unlikely tokens move the policy most. Of an unclipped token at temperature 1.
    """
    return 2.0 * (ratio * advantage).abs() * (1.0 - probability)


@dataclass(frozen=True)
class ModelPair:
    """A model before and after training, of one vocabulary.

    Attributes:
        base: before.
        trained: after.
        temperature: that logits are divided by.
    """

    base: PreTrainedModel
    trained: PreTrainedModel
    temperature: float = 1.0

    @torch.no_grad()
    def compare(self, tokens: TokenBatch) -> dict[str, Tensor]:
        """:data:`COLUMNS`, [N] float32 each, of the response tokens.

        Whole vocabularies, a chunk of tokens at a time, so that memory does not grow with N.
        """
        base, trained = (score(model, tokens, self.temperature) for model in (self.base, self.trained))
        found = {
            "base_log_prob": base.log_probs,
            "trained_log_prob": trained.log_probs,
            "base_entropy": base.entropies,
            "trained_entropy": trained.entropies,
        }
        heads = [model.get_output_embeddings() for model in (self.base, self.trained)]
        rows = max(1, _CHUNK_ELEMENTS // heads[0].weight.shape[0])
        forward, backward = [], []
        for hidden in zip(base.hidden_states.split(rows), trained.hidden_states.split(rows), strict=True):
            q, p = (
                (head(part).float() / self.temperature).log_softmax(dim=-1)
                for head, part in zip(heads, hidden, strict=True)
            )
            forward.append((p.exp() * (p - q)).sum(dim=-1).clamp(min=0))
            backward.append((q.exp() * (q - p)).sum(dim=-1).clamp(min=0))
        found |= {"kl_trained_base": torch.cat(forward), "kl_base_trained": torch.cat(backward)}
        return {name: found[name].float().cpu() for name in COLUMNS}


def separation(first: npt.NDArray[np.float64], second: npt.NDArray[np.float64]) -> float:
    """How well a number tells two samples apart: |AUC - 1/2| in [0, 1/2], ties counting half; NaN for an empty one."""
    if not len(first) or not len(second):
        return math.nan
    ranks = rankdata(np.concatenate([first, second]))[: len(first)]
    auc = (ranks.sum() - len(first) * (len(first) + 1) / 2) / (len(first) * len(second))
    return abs(float(auc) - 0.5)
