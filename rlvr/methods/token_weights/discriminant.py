"""Token vectors, the stand-ins for tokens' gradients, with side centroids and margins.

The vectors are read in chunks, so that nothing of their size [N, D] is made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from evals.core.lazy_torch import torch
from rlvr.methods.rollout_batch import RolloutBatch, RowShare, at_least_float32, computation_type

if TYPE_CHECKING:
    from torch import Tensor

Proxy = Literal["sampled_token_row", "top_k_hidden_gradient"]
VARIANCE_FLOOR = 1e-8
_CHUNK_ROWS = 4096
_LOGITS_AT_A_TIME = 1 << 25
"""128 MiB in float32, of a vocabulary of any size."""
_CHUNK_ELEMENTS = 1 << 20
"""Entries converted to float32 at a time (4 MiB): stays in the cache, so that memory is read once."""
_CHUNK_ELEMENTS_OF_GPU = 1 << 26
"""256 MiB: a GPU has to be given few kernels with much to do."""


@dataclass(frozen=True)
class TokenVectors:
    """The N vectors v_n = coefficients_n rows_n, of tokens on one of two sides or on neither."""

    rows: Tensor  # [N, D] in any floating type, or the rows of the tokens of ``share``
    coefficients: Tensor  # [N] in float64
    sides: Tensor  # [2, N] bool, tokens of positive and of negative advantage
    mass: Tensor  # [N] in float64, the weight of each token in its side's centroid
    share: RowShare | None = None  # the tokens whose rows this process holds; None for all of them

    def select(self, tokens: Tensor) -> TokenVectors:
        """Select the vectors at ``tokens`` [N] bool."""
        if bool(tokens.all()):
            return self
        share = None if self.share is None else self.share.select(tokens)
        chosen = tokens[self._own]
        return TokenVectors(
            self.rows[chosen], self.coefficients[tokens], self.sides[:, tokens], self.mass[tokens], share
        )

    def per_token(self, of_side: Tensor) -> Tensor:
        """Give each token [N] its side's value of [2]; off both sides, the negative side's."""
        return torch.where(self.sides[0], of_side[0], of_side[1])

    def shares(self, soft: Tensor | None = None, before: Tensor | None = None) -> Tensor:
        """Compute the share [2, N] in float64 of each token in its side's centroid, by mass times ``soft`` [N].

        A side whose weights have all underflowed keeps its shares ``before`` [2, N] (0 without them).
        """
        masses = self.sides * (self.mass if soft is None else self.mass * soft)
        totals, smallest = masses.sum(dim=1, keepdim=True), torch.finfo(torch.float64).tiny
        # A total below the smallest normal number has lost its digits, and its shares would not sum to 1.
        return torch.where(totals >= smallest, masses / totals.clamp(min=smallest), 0.0 if before is None else before)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Compute sum_n weights_n v_n, [D] in float64, for ``weights`` [N]."""
        narrow = (weights * self.coefficients).to(self._wide)[self._own]
        total = torch.zeros(self.rows.shape[1], dtype=torch.float64, device=self.rows.device)
        self._read(lambda chosen, chunk: total.add_(narrow[chosen] @ chunk))
        return total if self.share is None else self.share.total(total)

    def centroids(self, soft: Tensor | None = None, before: Tensor | None = None) -> Tensor:
        """Compute the centroids [2, D] in float64, weighted by mass times ``soft`` [N].

        A side without any weight keeps its centroid ``before`` [2, D] (0 without it).
        """
        shares = self.shares(soft)
        centroids = torch.stack([self.weighted_sum(share) for share in shares])
        return centroids if before is None else torch.where(shares.any(dim=1, keepdim=True), centroids, before)

    def projections(self, direction: Tensor) -> Tensor:
        """Compute the inner products [N] in float64 of v and ``direction`` [D]."""
        narrow = direction.to(self._wide)
        return self.coefficients * self._of_all_tokens(lambda chunk: chunk @ narrow)

    def squared_lengths(self) -> Tensor:
        """Compute |v|^2 [N] in float64."""
        return self.coefficients.square() * self._of_all_tokens(lambda chunk: chunk.square().sum(dim=1))

    def margins(self, shares: Tensor) -> Tensor:
        """Compute how much nearer (in squared distance) v is to its own side's centroid: [N] in float64, 0 off both.

        The centroids are the sums of v weighted by ``shares`` [2, N]. |v|^2 cancels, and the centroids' own squared
        lengths differ by the inner product of their sum with their difference. So one weighted sum, the difference,
        and the projections on it are all that is needed: the vectors are read twice.
        """
        projections = self.projections(self.weighted_sum(shares[0] - shares[1]))
        signs = self.sides[0].double() - self.sides[1].double()
        return torch.mul(signs, 2.0 * projections - (shares.sum(dim=0) * projections).sum())

    def own_distances(self, centroids: Tensor, squared_lengths: Tensor) -> Tensor:
        """Compute the squared distance [N] in float64 of v to its own side's centroid of [2, D]; see per_token."""
        distances = self.per_token(centroids.square().sum(dim=1)) - 2.0 * torch.where(
            self.sides[0], self.projections(centroids[0]), self.projections(centroids[1])
        )
        return (squared_lengths + distances).clamp(min=0.0)

    def deviations(self, values: Tensor) -> Tensor:
        """Compute the population standard deviation [2] of ``values`` [N] over each side, with a floor."""
        variances = [values[side].var(correction=0) if side.any() else values.new_zeros(()) for side in self.sides]
        return torch.stack(variances).clamp(min=VARIANCE_FLOOR).sqrt()

    @property
    def _own(self) -> slice:
        """The tokens whose rows this process holds."""
        return slice(None) if self.share is None else self.share.own

    @property
    def _wide(self) -> torch.dtype:
        """The floating type that rows are converted to: float32, or their own if that has more bits."""
        return computation_type(self.rows)

    def _of_all_tokens(self, value: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply a function of rows, chunk [n, D] -> [n], to all tokens [N]; each process computes its own rows'."""
        values = torch.zeros(self.rows.shape[0], dtype=self._wide, device=self.rows.device)

        def put(chosen: slice, chunk: Tensor) -> None:
            values[chosen] = value(chunk)

        self._read(put)
        return values if self.share is None else self.share.gather(values)

    def _read(self, visit: Callable[[slice, Tensor], object]) -> None:
        """Give ``visit`` places that cover the rows, with their rows in the wide type, valid until it returns."""
        rows, wide = self.rows, self._wide
        size = max(1, (_CHUNK_ELEMENTS if rows.device.type == "cpu" else _CHUNK_ELEMENTS_OF_GPU) // rows.shape[1])
        buffer = None if rows.dtype == wide else torch.empty(size, rows.shape[1], dtype=wide, device=rows.device)
        for start in range(0, rows.shape[0], size):
            chosen = slice(start, min(start + size, rows.shape[0]))
            visit(chosen, rows[chosen] if buffer is None else buffer[: chosen.stop - start].copy_(rows[chosen]))


def token_vectors(batch: RolloutBatch, proxy: Proxy, top_k: int) -> TokenVectors:
    """Form the vectors of the real tokens, weighted by the size of their advantage.

    ``sampled_token_row`` is v = (1 - p) h, up to sign the gradient of log p with respect to the sampled token's row of
    the language-model head. ``top_k_hidden_gradient`` is the gradient with respect to h, the softmax cut to the
    ``top_k`` most likely tokens, see :func:`hidden_gradients`.
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


def hidden_gradients(batch: RolloutBatch, top_k: int) -> Tensor:
    """Compute (W[y] - sum_j p_j W[j]) / temperature over the ``top_k`` most likely tokens j, p renormalised: [N, D].

    W[y] stays the first term where the sampled token y is not among them. Computed in float32 or better, and kept in
    the type of the hidden states.
    """
    hidden_states = batch.hidden_states
    if hidden_states is None or batch.head_weight is None:
        raise ValueError("the hidden gradient needs the hidden states and the head weight of the rollout batch")
    head = at_least_float32(batch.head_weight)
    tokens = batch.token_ids[batch.response_mask]
    if batch.share is not None:
        tokens = tokens[batch.share.own]

    chunk = max(1, min(_CHUNK_ROWS, _LOGITS_AT_A_TIME // len(head)))

    def gradients(sampled: Tensor, hidden: Tensor) -> Tensor:
        top = (hidden.to(head.dtype) @ head.T / batch.temperature).topk(min(top_k, len(head)), dim=1)
        expected = (top.values.softmax(dim=1)[:, :, None] * head[top.indices]).sum(dim=1)
        return ((head[sampled] - expected) / batch.temperature).to(hidden.dtype)

    parts = zip(tokens.split(chunk), hidden_states.split(chunk), strict=True)
    return torch.cat([gradients(*rows) for rows in parts])
