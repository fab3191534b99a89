"""Random streams determined by names and numbers alone, so that a resumed run draws the same numbers."""

from __future__ import annotations

import hashlib

from evals.core.lazy_torch import torch


def stream_seed(*identity: object) -> int:
    """A seed of 63 bits that is determined by ``identity``, such as ``("loss", run_seed, update)``."""
    digest = hashlib.sha256("/".join(map(str, identity)).encode("utf-8")).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator_for(*identity: object) -> torch.Generator:
    """A torch generator whose numbers are determined by ``identity`` alone."""
    return torch.Generator().manual_seed(stream_seed(*identity))


def random_projection(width: int, dimensions: int, generator: torch.Generator) -> torch.Tensor:
    """A random projection [D, dimensions], float32, that keeps squared distances in expectation."""
    return torch.div(torch.randn(width, dimensions, generator=generator), dimensions**0.5)
