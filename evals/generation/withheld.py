r"""What is kept of a response to a gated benchmark: the letter it chose, and a hash of the whole.

A response may quote its question, which may not be published. The letter is stored as ``\boxed{C}``, which the grader
reads as it read the whole response; the hash still tells two responses apart.
"""

from __future__ import annotations

from evals.core.files import sha256_bytes
from evals.grading.extraction import extract_answer
from evals.grading.verdict import Kind

TEXT_HASH = "text_sha256"


def withheld(text: str, truncated: bool) -> dict[str, str]:
    """The fields of a sample that stand for ``text``; ``truncated`` says that it was cut off."""
    letter = extract_answer(text, Kind.CHOICE, truncated).answer
    kept = rf"\boxed{{{letter}}}" if letter else ""
    return {"text": kept, TEXT_HASH: sha256_bytes(text.encode("utf-8"))}
