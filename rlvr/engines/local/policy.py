"""The policy of the trainer: log-probabilities, entropies and hidden states of given responses.

Shapes: B rollouts, T longest response, N response tokens in all, D hidden width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from evals.core.training_settings import cut_into_passes
from evals.generation.architecture import UnknownArchitecture
from evals.generation.checkpoint import Checkpoint
from evals.generation.decoder_model import DECODER, DecoderModel
from evals.generation.gradients import computed_again

if TYPE_CHECKING:
    from rlvr.engines.local.transformers_policy import TransformersPolicy


def same_bytes(device: str, dtype: str, backend: str, by_vllm: bool = False) -> str:
    """Name the machines on which the same training has the same bytes; ``backend`` computes the model."""
    if by_vllm:
        return "as far as vLLM repeats its draws"
    if device == "cuda":
        return "on one kind of GPU, with the same packages, as far as their kernels repeat themselves"
    by_decoder = backend == DECODER and dtype == "float32"  # docs/results/portability.md
    where = "every x86-64 processor with AVX2" if by_decoder else "one kind of processor"
    return f"on {where}, with the same packages and threads"


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
        return unpack(torch.tensor(self.response_tokens), self.response_mask)

    @property
    def response_tokens(self) -> list[int]:
        """The N response tokens, one response after the other."""
        return [token for response in self.responses for token in response]

    def passes(self, most: int, most_tokens: int | None, padded: bool) -> list[Tensor]:
        """Places of the rollouts of passes over at most so many, and so many tokens if there are several, in order.

        In a ``padded`` pass padding counts too.
        """
        return [torch.tensor(part) for part in cut_into_passes(self.lengths, most, most_tokens, padded)]

    @property
    def lengths(self) -> list[int]:
        """The tokens of each rollout, those of its prompt included."""
        return [len(prompt) + len(response) for prompt, response in zip(self.prompts, self.responses, strict=True)]

    @property
    def response_mask(self) -> Tensor:
        """[B, T] bool, T the longest response of this batch."""
        lengths = torch.tensor([len(response) for response in self.responses])
        return torch.arange(max(1, int(lengths.max())))[None] < lengths[:, None]


LOGITS_AT_ONCE = 1 << 25
"""Logits that are in memory at once: 128 MiB in float32, and as much again for their logarithms."""


Policy: TypeAlias = "DecoderModel | TransformersPolicy"
"""A language model with weights, which samples and is trained."""


def load_policy(
    checkpoint: Checkpoint,
    device: str,
    dtype: str = "float32",
    gradient_checkpointing: bool = False,
    share_prompts: bool = False,
    head_dtype: str | None = None,
) -> Policy:
    """The model of a checkpoint with weights in float32; transformers' own where the batched decoder has none."""
    try:
        return checkpoint.model(device, dtype, gradient_checkpointing, share_prompts, head_dtype)
    except UnknownArchitecture as reason:
        reason.refuse_head(head_dtype)
        from rlvr.engines.local.transformers_policy import load

        print(f"{reason}; transformers' own model samples and trains instead", flush=True)
        policy = load(checkpoint, "float32", device, str(reason))
        policy.compute_in(getattr(torch, dtype), gradient_checkpointing)
        return policy


def response_states(model: Policy, batch: TokenBatch) -> tuple[Tensor, Tensor]:
    """Inputs of the language-model head [N, D] at the positions that predict response tokens, and those tokens [N]."""
    # The last token of a sequence predicts nothing that was sampled.
    sequences = [[*prompt, *response[:-1]] for prompt, response in zip(batch.prompts, batch.responses, strict=True)]
    states = model.states(sequences, [len(prompt) - 1 for prompt in batch.prompts])
    return states, torch.tensor(batch.response_tokens, device=states.device)


def _scores(
    model: Policy,
    states: Tensor,
    targets: Tensor,
    temperature: float,
    with_entropies: bool,
    entropy_gradients: bool = False,
) -> tuple[Tensor, Tensor]:
    """Log-probabilities [N] of the tokens [N] that follow ``states`` [N, D]; entropies [N] if asked for, else nothing.

    The logits of many tokens over a large vocabulary are never all in memory: parts of them are made, and made again
    for the gradient.
    """

    def of_part(states: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        log_distribution = model.logits(states, temperature).log_softmax(dim=-1)
        entropies = log_distribution.new_empty(0)
        if with_entropies:
            with torch.set_grad_enabled(entropy_gradients and torch.is_grad_enabled()):
                entropies = -(log_distribution.exp() * log_distribution).sum(dim=-1)
        return log_distribution.gather(-1, targets[:, None])[:, 0], entropies

    size = max(1, LOGITS_AT_ONCE // len(model.head_weight))
    if len(states) <= size:
        return of_part(states, targets)
    score_part = partial(computed_again, of_part) if torch.is_grad_enabled() else of_part
    parts = [score_part(*part) for part in zip(states.split(size), targets.split(size), strict=True)]
    return torch.cat([log_probs for log_probs, _ in parts]), torch.cat([entropies for _, entropies in parts])


def token_log_probs(model: Policy, batch: TokenBatch, temperature: float) -> Tensor:
    """The log-probabilities [N] of the response tokens; gradients pass."""
    return _scores(model, *response_states(model, batch), temperature, with_entropies=False)[0]


def token_scores(model: Policy, batch: TokenBatch, temperature: float) -> tuple[Tensor, Tensor]:
    """The log-probabilities [N] of the response tokens and the entropies [N] at them; gradients pass through both."""
    return _scores(model, *response_states(model, batch), temperature, with_entropies=True, entropy_gradients=True)


@torch.no_grad()
def score_in_chunks(
    model: Policy,
    batch: TokenBatch,
    temperature: float,
    chunk_size: int,
    keep: Callable[[Tensor], None] | None = None,
    most_tokens: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Log-probs [N] of the response tokens, and entropies [N] in nats of what they are drawn from, without gradients.

    A forward pass has at most ``chunk_size`` rollouts; several have at most ``most_tokens`` tokens with their prompts,
    if that is given. ``keep`` is handed the hidden states [n, D] of each pass, in order.
    """
    scored = []
    for chunk in batch.passes(chunk_size, most_tokens, model.padded):
        states, targets = response_states(model, batch.select(chunk))
        scored.append(_scores(model, states, targets, temperature, with_entropies=True))
        if keep is not None:
            keep(states)
    log_probs, entropies = zip(*scored, strict=True)
    return torch.cat(log_probs), torch.cat(entropies)


def unpack(packed: Tensor, response_mask: Tensor) -> Tensor:
    """[N] values into [B, T], zero at padding; gradients pass."""
    return packed.new_zeros(response_mask.shape).masked_scatter(response_mask, packed)
