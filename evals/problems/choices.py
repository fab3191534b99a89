"""Multiple choice: the order in which a problem's options are shown, and how they are written."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

LETTERS = "ABCDEFGHIJ"
"""Options are named A to J; no benchmark here has more."""


def permutation(identifier: str, count: int, seed: int) -> list[int]:
    """In which order a problem's options are shown: ``[2, 0, 1]`` shows the third one first.

    A function of the problem and the seed alone, so that neither the order of calls nor the other problems matter.
    Each option is placed by a hash of its own, so that all orders are equally likely.
    """

    def place(option: int) -> bytes:
        return hashlib.sha256(f"{seed}/{identifier}/{option}".encode()).digest()

    return sorted(range(count), key=place)


def with_options(question: str, options: Sequence[str]) -> str:
    """The question and its lettered options, a line each."""
    lines = [f"{letter}) {option}" for letter, option in zip(LETTERS, options, strict=False)]
    return "\n".join([f"{question}\n", *lines])
