"""What a token is for in a worked solution: operand, operator, result, or the format around them."""

from __future__ import annotations

import numpy as np

CLASSES = ("operand", "operator", "result", "answer", "format")
"""Digits before "=", + - *, the digit after "=", the digit in the box, and everything else (=, line ends, the box)."""


def token_class(line: str, text: str) -> str:
    """The class of the token ``text`` after ``line``, the current line's text so far.

    Meant for the generated problems, where a line is ``3+4=7``, ``b=3+4=7`` or ``\\boxed{7}``. In a text of another
    kind digits, operators and the rest are still told apart.
    """
    if text.isdigit():
        if "{" in line:
            return "answer"
        # The result follows an operation: "b=" alone, of a definition, starts one.
        return "result" if line.endswith("=") and any(operator in line for operator in "+-*") else "operand"
    return "operator" if text in ("+", "-", "*") else "format"


def classes_of(rollouts: np.ndarray, texts: list[str]) -> list[str]:
    """The class of each token, from its text and the texts before it in its rollout."""
    classes: list[str] = []
    previous, line = -1, ""
    for rollout, text in zip(rollouts.tolist(), texts, strict=True):
        line = "" if rollout != previous else line
        classes.append(token_class(line, text))
        line, previous = ("" if text == "\n" else line + text), rollout
    return classes
