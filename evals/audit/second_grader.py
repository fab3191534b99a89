"""The second grader: plain math-verify on the whole text, as most trainers call it. Runs in a worker process.

It shares neither our extraction nor our rules of equality: it looks for an answer anywhere in the text, the last
number included, and reads and compares with its own defaults. One thing is not plain: what math-verify hands to
Python's compiler by way of SymPy is read otherwise, for a model's text is never run. Numbers are made from their
digits, and an expression without LaTeX goes through the LaTeX grammar.
"""

import re
from functools import cache
from importlib.metadata import version
from typing import Any

from evals.grading.multiple_choice import LETTERS, gold_letter
from evals.grading.verdict import Outcome, Reason
from evals.grading.workers import limited

NAME = "math-verify"
VERSION = version("math-verify")

_EXPONENT = re.compile(r"\*\*\s*(-?\d+(?:\.\d+)?)")


def judge_text(text: str, gold: str, time_limit: float) -> Outcome:
    """Grade a whole text of kind ``completion`` or ``answer``; a pool's ``judge`` (``evals.grading.workers``)."""
    import math_verify

    def compare() -> Reason:
        _compile_nothing()
        # The pool keeps the limit on time, so the library's own alarms, which kill no C code, stay off
        reference = math_verify.parse(gold if "$" in gold or r"\boxed" in gold else f"${gold}$", parsing_timeout=None)
        return _verify(reference, math_verify.parse(text, parsing_timeout=None))

    return limited(compare, time_limit)


def judge_choice(text: str, gold: str, time_limit: float) -> Outcome:
    """Grade multiple choice by the letter that math-verify's own patterns find."""
    import math_verify

    def compare() -> Reason:
        letter = gold_letter(gold)
        letters = [math_verify.StringExtractionConfig(strings=tuple(LETTERS), lowercase=False)]
        return _verify([letter] if letter else [], math_verify.parse(text, letters, parsing_timeout=None))

    return limited(compare, time_limit)


def _verify(reference: list[Any], answer: list[Any]) -> Reason:
    from math_verify import verify

    if not reference:
        return Reason.INVALID_GOLD
    if not answer:
        return Reason.NO_ANSWER
    return Reason.MATCH if verify(reference, answer, timeout_seconds=None) else Reason.MISMATCH


@cache
def _compile_nothing() -> None:
    """Replace, in this worker process, the places from which math-verify's reader reaches Python's compiler."""
    from latex2sympy2_extended import latex2sympy2
    from math_verify import parser

    from evals.grading.parsing import number

    parser.parse_expr = read_without_eval
    parser.Number = number
    latex2sympy2.Number = number
    latex2sympy2._Latex2Sympy.parse_number = lambda _, text: number(text)


def read_without_eval(expression: str, evaluate: bool = True) -> Any:
    """Stands in for ``sympy.parse_expr``, which compiles what it reads: digits and operators, ``1/2 + 3**2``.

    Exception if it cannot be read; math-verify goes on to the next place where an answer may be.
    """
    from latex2sympy2_extended import latex2sympy

    return latex2sympy(_EXPONENT.sub(r"^{\1}", expression).replace("*", r"\cdot "))
