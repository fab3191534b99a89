"""The covariance of advantage and log-probability that KL-Cov and Clip-Cov (arXiv 2505.22617) act on."""

from __future__ import annotations

from torch import Tensor


def token_covariances(log_probs: Tensor, advantages: Tensor, response_mask: Tensor) -> Tensor:
    """(A - mean A)(log pi - mean log pi) of each token, means over all of them: [N], without gradient.

    Large where a probable token is rewarded or an improbable one punished: what makes the policy's entropy fall.

    Args:
        log_probs: [B, T] of the current policy.
        advantages: [B, T].
        response_mask: [B, T] bool, N of them true.
    """
    current, signal = log_probs.detach()[response_mask], advantages[response_mask]
    return (signal - signal.mean()) * (current - current.mean())
