"""Where two models differ: a number for every history, or for every token drawn, that decides whether to replace it.

Beyond Magnitude (RLVR-Directions, arXiv 2603.22117), section on selective token replacement. Everything is computed
over the whole vocabulary and from the models' own distributions, before temperature and top-p; the authors' script has
the 50 most likely tokens of each model, renormalised. Its ``js`` is the mean of both divergences, which is called
``jeffreys`` here; ``js`` is the divergence that bears that name.
"""

from __future__ import annotations

import math
from enum import StrEnum

import torch
from torch import Tensor

_BLOCK_ELEMENTS = 2**24
"""Logits of one model that are worked on at a time: 64 MiB in float32, and a few times that for what follows."""


class Criterion(StrEnum):
    """What decides."""

    LOG_PROB_DIFFERENCE = "log_prob_difference"
    """log pi_trained(y) - log pi_base(y) of the token drawn, whichever model drew it."""
    KL_TRAINED_BASE = "kl_trained_base"
    """KL(pi_trained || pi_base)."""
    KL_BASE_TRAINED = "kl_base_trained"
    """KL(pi_base || pi_trained)."""
    JS = "js"
    """Jensen-Shannon divergence, at most log 2."""
    JEFFREYS = "jeffreys"
    """Mean of the two KL divergences."""
    ENTROPY = "entropy"
    """Entropy of the model that drives."""
    RANDOM = "random"
    """A uniform number of its own."""

    @property
    def looks_at_token(self) -> bool:
        """Whether the token drawn decides, not its history alone."""
        return self is Criterion.LOG_PROB_DIFFERENCE


def history_values(criterion: Criterion, base: Tensor, trained: Tensor, driver: Tensor) -> Tensor:
    """A criterion that looks at the history alone, in nats, [P].

    Args:
        criterion: any but the log-prob difference and random.
        base: logits [P, V] of the base model.
        trained: logits [P, V] of the trained model.
        driver: the one of the two that drives.
    """
    rows = max(1, _BLOCK_ELEMENTS // base.shape[-1])
    blocks = zip(base.split(rows), trained.split(rows), driver.split(rows), strict=True)
    return torch.cat([_block_values(criterion, *block) for block in blocks])


def _block_values(criterion: Criterion, base: Tensor, trained: Tensor, driver: Tensor) -> Tensor:
    if criterion is Criterion.ENTROPY:
        log_probs = driver.float().log_softmax(-1)
        return -(log_probs.exp() * log_probs).sum(-1)
    p, q = trained.float().log_softmax(-1), base.float().log_softmax(-1)
    match criterion:
        case Criterion.KL_TRAINED_BASE:
            return _kl(p, q)
        case Criterion.KL_BASE_TRAINED:
            return _kl(q, p)
        case Criterion.JEFFREYS:
            return (_kl(p, q) + _kl(q, p)) / 2
        case Criterion.JS:
            middle = torch.logaddexp(p, q) - math.log(2)
            return (_kl(p, middle) + _kl(q, middle)) / 2
        case _:
            raise ValueError(f"{criterion} is no criterion of the history alone")


def _kl(p: Tensor, q: Tensor) -> Tensor:
    """KL(p || q) of log-probabilities [P, V]; never below zero, where rounding would put equal distributions."""
    return (p.exp() * (p - q)).sum(-1).clamp(min=0)


def log_prob_differences(base: Tensor, trained: Tensor, row_of: Tensor, tokens: Tensor) -> Tensor:
    """Log pi_trained - log pi_base of tokens [R], each drawn after the history ``row_of`` [R] of logits [P, V]."""
    trained_part = trained[row_of, tokens].float() - _log_totals(trained)[row_of]
    return trained_part - (base[row_of, tokens].float() - _log_totals(base)[row_of])


def _log_totals(logits: Tensor) -> Tensor:
    """Log of the sum of exponentials [P] of logits [P, V], in float32 a block at a time."""
    rows = max(1, _BLOCK_ELEMENTS // logits.shape[-1])
    return torch.cat([block.float().logsumexp(-1) for block in logits.split(rows)])
