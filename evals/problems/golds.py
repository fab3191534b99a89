r"""Repairs of reference answers whose form, not whose value, is at fault.

An entry of config/benchmarks names the repairs that its golds need; each applied one is recorded in the manifest of
the problem set. Wrong values are never repaired: such problems are excluded, with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

_DOLLAR = re.compile(r"(?<!\\)\$")
_INTEGER = re.compile(r"([+-]?)0*(\d+)(?:\.0+)?")
_E_NOTATION = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))[eE]([+-]?\d+)")
_POINT_QUOTIENT = re.compile(r"([+-]?)(\d+)\.?/(\d+)\.?")
_NUMPY = re.compile(r"\b(?:np|numpy|math)\.(?=(?:arc)?(?:sin|cos|tan|log|sqrt|exp)\b)")
_BRACED_EXPONENTIAL = re.compile(r"\\exp\s*\{([^{}]*)\}")


def dollars(gold: str) -> str:
    """Wrapped in dollar signs, all of it or part by part, or with one too many."""
    if not _DOLLAR.search(gold):
        return gold
    return re.sub(r"\s{2,}", " ", _DOLLAR.sub("", gold)).strip().removesuffix(".")


def integer(gold: str) -> str:
    """``033`` or ``33.0`` for 33."""
    match = _INTEGER.fullmatch(gold)
    return match.expand(r"\1\2") if match else gold


def e_notation(gold: str) -> str:
    """``8.7e8``, in which a reader of LaTeX sees Euler's number."""
    match = _E_NOTATION.fullmatch(gold)
    if not match:
        return gold
    mantissa, exponent = match.groups()
    power = f"10^{{{int(exponent)}}}"
    return power if mantissa == "1" else rf"{mantissa} \times {power}"


def python(gold: str) -> str:
    r"""Python in place of LaTeX: ``np.arcsin(10/13)``, ``-1./3``; also ``\exp{a*t}``, which takes no braces."""
    if match := _POINT_QUOTIENT.fullmatch(gold):
        return match.expand(r"\1\\frac{\2}{\3}") if "." in gold else gold
    gold = _NUMPY.sub(r"\\", gold)
    return _BRACED_EXPONENTIAL.sub(lambda match: f"e^{{{match[1].replace('*', '')}}}", gold)


REPAIRS: dict[str, Callable[[str], str]] = {
    repair.__name__: repair for repair in (dollars, integer, e_notation, python)
}
"""Name in an entry -> repair."""


def repair(gold: str, names: Sequence[str]) -> tuple[str, list[str]]:
    """The gold after the named repairs, in their order, and which of them changed it."""
    applied = []
    gold = gold.strip()
    for name in names:
        repaired = REPAIRS[name](gold)
        if repaired != gold:
            applied.append(name)
        gold = repaired.strip()
    return gold, applied
