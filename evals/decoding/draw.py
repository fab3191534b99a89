"""One token of every running sample, from two models' logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from evals.decoding.criteria import Criterion, history_values, log_prob_differences
from evals.decoding.settings import Decoding, Driver, mixture
from evals.generation.sampler import SamplingParameters, draw_tokens, uniform_stream

Observer = Callable[[Tensor, Tensor, Tensor, Tensor], None]
"""Called at every step with base logits, trained logits [P, V], and history and token [R] that the driver drew."""


class PairDraw:
    """Draws for one batch of samples, and counts what it draws again.

    A sample has up to three streams of uniform numbers, all functions of its identity:

    - its own, the one that either model alone would use. Where the history alone decides, a token that fires is drawn
      again with the same number: it has not been used up, and with everything replaced the sample is, token for token,
      the other model's.
    - ``/again``, for tokens that fire because of what they are: their own number has decided that they fire, so that
      using it again would favour some tokens.
    - ``/random``, which the criterion of that name compares with tau.
    """

    def __init__(
        self,
        decoding: Decoding,
        sampling: SamplingParameters,
        identities: Sequence[str],
        length: int,
        device: torch.device | str,
        observer: Observer | None = None,
    ) -> None:
        self._decoding = decoding
        self._sampling = sampling
        self._observer = observer
        self._own = _streams(identities, "", length, device)
        self._again = _streams(identities, "/again", length, device) if decoding.criterion.looks_at_token else self._own
        is_random = decoding.criterion is Criterion.RANDOM
        self._random = _streams(identities, "/random", length, device) if is_random else None
        self.replaced = torch.zeros(len(identities), dtype=torch.long, device=device)
        """Tokens drawn again so far, [B]: those that fired, also where the second draw gave the same token."""

    def __call__(self, logits: Sequence[Tensor], row_of: Tensor, running: Tensor, step: int) -> Tensor:
        """Tokens [R]; ``logits`` are the base model's and the trained one's, the rest as in ``decode_in_step``."""
        base, trained = logits
        driver, assistant = (base, trained) if self._decoding.driver is Driver.BASE else (trained, base)
        drawn = draw_tokens(driver[row_of], self._own[running, step], self._sampling)
        if self._observer is not None:
            self._observer(base, trained, row_of, drawn)
        if self._decoding.is_driver_alone:
            return drawn
        fires = self._decoding.fires(self._values(base, trained, driver, row_of, drawn, running, step))
        again = fires.nonzero()[:, 0]
        if len(again):
            rows, samples = row_of[again], running[again]
            mixed = mixture(driver[rows], assistant[rows], self._decoding.weights)
            drawn[again] = draw_tokens(mixed, self._again[samples, step], self._sampling)
            self.replaced[samples] += 1
        return drawn

    def _values(
        self, base: Tensor, trained: Tensor, driver: Tensor, row_of: Tensor, drawn: Tensor, running: Tensor, step: int
    ) -> Tensor:
        criterion = self._decoding.criterion
        if self._random is not None:
            return self._random[running, step]
        if criterion.looks_at_token:
            return log_prob_differences(base, trained, row_of, drawn)
        return history_values(criterion, base, trained, driver)[row_of]


def _streams(identities: Sequence[str], purpose: str, length: int, device: torch.device | str) -> Tensor:
    """Uniform numbers [B, length]."""
    return torch.from_numpy(np.stack([uniform_stream(name + purpose, length) for name in identities])).to(device)
