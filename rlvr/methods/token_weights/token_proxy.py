"""What stands in for a token's gradient: the vectors that DelTA and its ablations tell apart."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from rlvr.methods.precision import at_least_float32
from rlvr.methods.recomputed_rows import RecomputedRows
from rlvr.methods.rollout_batch import RolloutBatch
from rlvr.methods.token_weights.discriminant import TokenVectors

Proxy = Literal["sampled_token_row", "top_k_hidden_gradient"]
_CHUNK_ROWS = 4096


def token_vectors(batch: RolloutBatch, proxy: Proxy, top_k: int) -> TokenVectors:
    """The vectors of the real tokens, weighted by the size of their advantage.

    ``sampled_token_row`` is v = (1 - p) h, up to sign the gradient of log p with respect to the sampled token's row of
    the language-model head. ``top_k_hidden_gradient`` is the gradient with respect to h, the softmax cut to the
    ``top_k`` most likely tokens, see :func:`hidden_gradients`.

    Raises:
        ValueError: the batch has no hidden states.
    """
    if batch.hidden_states is None:
        raise ValueError("the weighting needs the hidden states of the rollout batch")
    advantages = batch.token_advantages.double()
    sides = torch.stack((advantages > 0, advantages < 0))
    if proxy == "sampled_token_row":
        rows = batch.hidden_states
        coefficients = 1.0 - batch.old_log_probs[batch.response_mask].double().exp()
    else:
        rows = hidden_gradients(batch, top_k)
        coefficients = torch.ones_like(advantages)
    return TokenVectors(rows, coefficients, sides, advantages.abs(), batch.share)


def hidden_gradients(batch: RolloutBatch, top_k: int) -> Tensor | RecomputedRows:
    """(W[y] - sum_j p_j W[j]) / temperature over the ``top_k`` most likely tokens j, p renormalised among them: [N, D].

    W[y] stays the first term where the sampled token y is not among them. Computed and kept in the type of the hidden
    states, float32 at least while it is computed.

    Raises:
        ValueError: the batch has no hidden states or no head weight.
    """
    if batch.hidden_states is None or batch.head_weight is None:
        raise ValueError("the hidden gradient needs the hidden states and the head weight of the rollout batch")
    head = at_least_float32(batch.head_weight)
    tokens = batch.token_ids[batch.response_mask]
    if batch.share is not None:
        tokens = tokens[batch.share.own]

    def gradients(sampled: Tensor, hidden: Tensor) -> Tensor:
        top = (hidden.to(head.dtype) @ head.T / batch.temperature).topk(min(top_k, head.shape[0]), dim=1)
        expected = (top.values.softmax(dim=1)[:, :, None] * head[top.indices]).sum(dim=1)
        return ((head[sampled] - expected) / batch.temperature).to(hidden.dtype)

    hidden_states = batch.hidden_states
    if isinstance(hidden_states, RecomputedRows):
        return hidden_states.changed(lambda at, hidden: gradients(tokens[at.to(tokens.device)], hidden))
    pairs = zip(tokens.split(_CHUNK_ROWS), hidden_states.split(_CHUNK_ROWS), strict=True)
    parts = [gradients(sampled, hidden) for sampled, hidden in pairs]
    return torch.cat(parts) if parts else hidden_states
