"""The parts of the memory that a training holds: when each is there, how they add up, and the table of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Phase = Literal["always", "sampling", "update", "contrast"]
OF_ROWS = "sampling_batch_size, max_new_tokens"
DRAWN = 5
"""Numbers in float32 that drawing a token holds for each logit, with that logit: logarithms, shares and their sums."""


@dataclass(frozen=True)
class Part:
    """Something that a training holds: bytes, when, and the settings that change it."""

    name: str
    size: int
    phase: Phase = "always"
    settings: str = ""


def drawing(rows: int, vocabulary: int) -> Part:
    """Count what drawing a token for every sample holds."""
    size = 4 * DRAWN * rows * vocabulary
    return Part("logits of a token for every sample", size, "sampling", "sampling_batch_size")


def peak(found: list[Part]) -> int:
    """The most bytes at a time: what is always there, with what one of the other phases adds."""
    sizes = dict.fromkeys(get_args(Phase), 0)
    for part in found:
        sizes[part.phase] += part.size
    return sizes.pop("always") + max(sizes.values())


def table(run: str, found: list[Part], total: int, free: int, device: str) -> list[str]:
    """The parts for people, in MiB."""
    lines = [f"{run}: memory that the training takes, estimated, MiB"]
    for part in found:
        name = part.name if part.phase == "always" else f"{part.phase}: {part.name}"
        lines.append(f"  {name:<58}{part.size >> 20:>8}  {part.settings}".rstrip())
    return [*lines, f"  {'at most at a time':<58}{total >> 20:>8}  of {free >> 20} on {device}"]
