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
    """Prompts and responses as token ids, a list for each rollout."""

    prompts: Sequence[Sequence[int]]
    responses: Sequence[Sequence[int]]

    def select(self, indices: Tensor) -> TokenBatch:
        """The rollouts at ``indices``, in that order."""
        chosen = indices.tolist()
        return TokenBatch([self.prompts[i] for i in chosen], [self.responses[i] for i in chosen])

    @property
    def response_ids(self) -> Tensor:
        """[B, T] int64 response tokens, 0 at padding."""
        packed = torch.tensor([token for response in self.responses for token in response], dtype=torch.int64)
        return unpack(packed, self.response_mask)

    @property
    def response_mask(self) -> Tensor:
        """[B, T] bool, T the longest response of this batch."""
        lengths = torch.tensor([len(response) for response in self.responses])
        return torch.arange(max(1, int(lengths.max())))[None] < lengths[:, None]


@dataclass(frozen=True)
class Scored:
    """The response tokens under a policy, packed in row-major order of the response mask."""

    log_probs: Tensor  # [N], at the sampling temperature
    entropies: Tensor  # [N] of the distribution that each token was drawn from, in nats; carries no gradient
    hidden_states: Tensor  # [N, D] inputs of the language-model head; carry no gradient


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
    """Log-probs [N] and entropies [N] as of :func:`score`, in forward passes of ``chunk_size`` rollouts.

    ``keep`` is handed the hidden states [n, D] of each chunk, in order.
    """
    log_probs, entropies = [], []
    for chunk in torch.arange(len(batch.responses)).split(chunk_size):
        scored = score(model, batch.select(chunk), temperature)
        log_probs.append(scored.log_probs)
        entropies.append(scored.entropies)
        if keep is not None:
            keep(scored.hidden_states)
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
        """Make room for N = ``tokens`` rows of D = ``width``, in a file in ``directory`` if they exceed the budget."""
        size = tokens * width * dtype.itemsize
        self.spilled = size > budget_bytes
        self._filled = 0
        if not self.spilled:
            self._rows = torch.empty(tokens, width, dtype=dtype)
            return
        descriptor, name = tempfile.mkstemp(dir=directory, prefix="hidden_states.")
        try:
            os.posix_fallocate(descriptor, 0, size)
            self._rows = torch.from_file(name, shared=True, size=tokens * width, dtype=dtype).view(tokens, width)
        except OSError as error:
            raise UserError(f"{directory}: no room for {size >> 20} MiB of hidden states ({error})") from error
        finally:
            os.close(descriptor)
            os.unlink(name)

    def append(self, rows: Tensor) -> None:
        """Keep the next rows [n, D]."""
        self._rows[self._filled : self._filled + len(rows)] = rows
        self._filled += len(rows)

    def rows(self) -> Tensor:
        """All rows [N, D], once all of them are kept."""
        if self._filled != len(self._rows):
            raise ValueError(f"{self._filled} of {len(self._rows)} hidden states were kept")
        return self._rows
