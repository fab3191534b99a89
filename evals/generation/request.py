"""The request to a backend, the rule by which it draws tokens, and its responses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class Response:
    """One sampled response."""

    tokens: list[int]  # token ids, the end token included if there is one
    finished: bool  # False if it was cut at ``max_new_tokens``
    replaced: int | None = None  # tokens that were drawn again, where two models decoded together
    text: str | None = None  # of a server, which decodes tokens itself and says how many there were
    length: int | None = None
    prompt_length: int | None = None
    is_answered: bool = True  # by a finished response of the model, of a server that was asked a few times
    log_probs: list[float] | None = None  # of the tokens, as the engine that drew them says, if it was asked to


@dataclass(frozen=True)
class Request:
    """One sample that is wanted."""

    prompt: tuple[int, ...]  # token ids, passed on unchanged, so that no backend can add a second BOS
    identity: str  # decides the sample's random numbers; nothing else does
    max_new_tokens: int  # longest response, its end token included
    body: Mapping[str, Any] = field(default_factory=dict)  # what a server is told, which encodes prompts itself


class Draw(Protocol):
    """A rule that draws the next token of every running sample of a batch."""

    @property
    def replaced(self) -> Tensor | None:
        """Tokens drawn again so far, [B]; None if the rule never draws again."""

    def __call__(self, logits: Sequence[Tensor], row_of: Tensor, running: Tensor, step: int) -> Tensor:
        """Draw the tokens [R] of the running samples.

        Args:
            logits: [P, V] of every model, a row for each different history.
            row_of: the history of every running sample, [R].
            running: places of these samples in the batch, [R].
            step: how many tokens they have drawn.
        """
        ...


Draws = Callable[[Sequence[str], int, "torch.device"], Draw]
"""Makes the rule for a batch from its samples' identities, their longest response and the device."""
