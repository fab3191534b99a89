"""Two loaded models that decode together, on the local sampler or on transformers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from evals.core.errors import UserError
from evals.decoding.draw import Observer
from evals.decoding.settings import Decoding
from evals.generation.backend import BackendSettings, Request
from evals.generation.sampler import Response, SamplingParameters

BACKENDS = ("local", "transformers")


@dataclass(frozen=True)
class PairResponse(Response):
    """A response of two models.

    Attributes:
        replaced: its tokens that were drawn again.
    """

    replaced: int


class Pair(Protocol):
    """A base and a trained model of one vocabulary."""

    def generate(
        self, requests: Sequence[Request], decoding: Decoding, observer: Observer | None = None
    ) -> list[PairResponse]:
        """One response to each request, in order; all of them are decoded together, both caches in step."""
        ...


@dataclass(frozen=True)
class BoundPair:
    """A pair and one way of decoding: a :class:`evals.generation.backend.Backend`."""

    pair: Pair
    decoding: Decoding
    observer: Observer | None = None

    def generate(self, requests: Sequence[Request]) -> list[Response]:
        """One response to each request, in order."""
        return list(self.pair.generate(requests, self.decoding, self.observer))


def load_pair(
    base: Path, trained: Path, settings: BackendSettings, sampling: SamplingParameters, end_tokens: Sequence[int]
) -> Pair:
    """Load two checkpoints.

    Raises:
        UserError: a backend that cannot decode with two models, or a checkpoint that it cannot load.
    """
    match settings.name:
        case "local":
            from evals.decoding.local_pair import LocalPair

            return LocalPair(base, trained, settings, sampling, end_tokens)
        case "transformers":
            from evals.decoding.transformers_pair import TransformersPair

            return TransformersPair(base, trained, settings, sampling, end_tokens)
        case _:
            raise UserError(f"--backend: is {settings.name!r}; accepted: {', '.join(BACKENDS)} (docs/decoding.md)")
