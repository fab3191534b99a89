"""The policy of the trainer: log-probabilities, entropies and hidden states of given responses.

Shapes: B rollouts, T longest response, N response tokens in all, D hidden width.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from evals.core.errors import UserError


@dataclass(frozen=True)
class TokenBatch:
    """Prompts and responses as token ids.

    Attributes:
        prompts: one list per rollout.
        responses: one list per rollout.
    """

    prompts: Sequence[Sequence[int]]
    responses: Sequence[Sequence[int]]

    def select(self, indices: Tensor) -> TokenBatch:
        """The rollouts at ``indices``, in that order."""
        chosen = indices.tolist()
        return TokenBatch([self.prompts[i] for i in chosen], [self.responses[i] for i in chosen])

    @property
    def response_ids(self) -> Tensor:
        """[B, T] int64 response tokens, 0 at padding."""
        mask = self.response_mask
        packed = torch.tensor([token for response in self.responses for token in response], dtype=torch.int64)
        return torch.zeros(mask.shape, dtype=torch.int64).masked_scatter(mask, packed)

    @property
    def response_mask(self) -> Tensor:
        """[B, T] bool, T the longest response of this batch."""
        lengths = torch.tensor([len(response) for response in self.responses])
        return torch.arange(max(1, int(lengths.max())))[None] < lengths[:, None]


@dataclass(frozen=True)
class Scored:
    """The response tokens under a policy, packed in row-major order of the response mask.

    Attributes:
        log_probs: [N] log-probability of each token, at the sampling temperature.
        entropies: [N] entropy of the distribution that each token was drawn from, in nats; carries no gradient.
        hidden_states: [N, D] inputs of the language-model head; carry no gradient.
    """

    log_probs: Tensor
    entropies: Tensor
    hidden_states: Tensor


def response_states(model: PreTrainedModel, batch: TokenBatch) -> tuple[Tensor, Tensor]:
    """Inputs of the language-model head [N, D] at the positions that predict response tokens, and those tokens [N]."""
    device = model.device
    sequences = [torch.tensor([*p, *r]) for p, r in zip(batch.prompts, batch.responses, strict=True)]
    tokens = pad_sequence(sequences, batch_first=True).to(device)
    starts = torch.tensor([len(prompt) for prompt in batch.prompts], device=device)[:, None]
    ends = torch.tensor([len(sequence) for sequence in sequences], device=device)[:, None]
    columns = torch.arange(tokens.shape[1], device=device)[None]
    # Padding stands on the right, where a causal model's real tokens cannot see it: no attention mask is needed.
    hidden = model.base_model(input_ids=tokens, use_cache=False).last_hidden_state
    return hidden[(columns >= starts - 1) & (columns < ends - 1)], tokens[(columns >= starts) & (columns < ends)]


def score(model: PreTrainedModel, batch: TokenBatch, temperature: float) -> Scored:
    """One forward pass over ``batch``; only response positions go through the language-model head."""
    predicting, targets = response_states(model, batch)
    logits = model.get_output_embeddings()(predicting).float() / temperature
    log_distribution = logits.log_softmax(dim=-1)
    with torch.no_grad():
        entropies = -(log_distribution.exp() * log_distribution).sum(dim=-1)
    log_probs = log_distribution.gather(-1, targets[:, None])[:, 0]
    return Scored(log_probs, entropies, predicting.detach())


@torch.no_grad()
def score_in_chunks(
    model: PreTrainedModel,
    batch: TokenBatch,
    temperature: float,
    chunk_size: int,
    keep: Callable[[Tensor], None] | None = None,
) -> tuple[Tensor, Tensor]:
    """:func:`score` without gradients over any number of rollouts.

    Args:
        model: the policy.
        batch: the rollouts.
        temperature: that they were sampled at.
        chunk_size: rollouts in one forward pass.
        keep: is handed the hidden states [n, D] of each chunk, in order.

    Returns:
        log_probs [N] and entropies [N].
    """
    parts = []
    for chunk in torch.arange(len(batch.responses)).split(chunk_size):
        scored = score(model, batch.select(chunk), temperature)
        parts.append((scored.log_probs, scored.entropies))
        if keep is not None:
            keep(scored.hidden_states)
    log_probs, entropies = zip(*parts, strict=True)
    return torch.cat(log_probs), torch.cat(entropies)


def unpack(packed: Tensor, response_mask: Tensor) -> Tensor:
    """[N] values into [B, T], zero at padding; gradients pass."""
    return packed.new_zeros(response_mask.shape).masked_scatter(response_mask, packed)


class HiddenStateStore:
    """The hidden states [N, D] of a rollout batch, filled from the top, in the model's precision.

    Up to a budget they are in memory, beyond it in a file that is mapped into memory and has no name any more, so that
    nothing is left of it however the process ends.
    """

    def __init__(self, tokens: int, width: int, dtype: torch.dtype, budget_bytes: int, directory: Path) -> None:
        """Make room for ``tokens`` rows.

        Args:
            tokens: N.
            width: D.
            dtype: type of the rows.
            budget_bytes: largest store that is kept in memory.
            directory: where a larger one is mapped from.

        Raises:
            UserError: the file cannot be made as large as it has to be.
        """
        self.spilled = tokens * width * dtype.itemsize > budget_bytes
        self._filled = 0
        if not self.spilled:
            self._rows = torch.empty(tokens, width, dtype=dtype)
            return
        descriptor, name = tempfile.mkstemp(dir=directory, prefix="hidden_states.")
        try:
            os.posix_fallocate(descriptor, 0, tokens * width * dtype.itemsize)
            flat = torch.from_file(name, shared=True, size=tokens * width, dtype=dtype)
        except OSError as error:
            size = tokens * width * dtype.itemsize >> 20
            raise UserError(f"{directory}: no room for {size} MiB of hidden states ({error})") from error
        finally:
            os.close(descriptor)
            os.unlink(name)
        self._rows = flat.view(tokens, width)

    def append(self, rows: Tensor) -> None:
        """Keep the next rows [n, D]."""
        self._rows[self._filled : self._filled + len(rows)] = rows
        self._filled += len(rows)

    def rows(self) -> Tensor:
        """All rows [N, D].

        Raises:
            ValueError: fewer rows were kept than there is room for.
        """
        if self._filled != len(self._rows):
            raise ValueError(f"{self._filled} of {len(self._rows)} hidden states were kept")
        return self._rows
