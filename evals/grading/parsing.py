"""Read LaTeX as SymPy expressions with math-verify's grammar, and bound their size before anything is evaluated.

For worker processes only: it imports SymPy, which works out ``10**(10**10)`` or ``1000000000!`` digit by digit, in C
code that no signal interrupts. Bounds are taken over the unevaluated tree first: such an expression is never started.
"""

import math
import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import sympy
from latex2sympy2_extended import NormalizationConfig, normalize_latex
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, _Latex2Sympy

from evals.grading.exact import MAX_DIGITS

_NORMALIZATION = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=False, boxed="none", equations=False
)
_CONVERSION = ConversionConfig(lowercase_symbols=False)  # R and r are two variables
_TRANSPOSED = r"(?:T|\\(?:top|intercal|dagger)(?![A-Za-z]))"
_SPELLINGS = (
    (re.compile(r"(?<![A-Za-z\\])([A-Za-z])\((?=[^()]*(?<![A-Za-z\\])\1(?![A-Za-z]))"), r"\1\\cdot ("),  # x(x)
    (re.compile(r"(?<![A-Za-z\\])([f-hF-H])\s*\^\s*\{\s*-1\s*\}\s*(?=\()"), r"\1_{-1}"),  # the inverse function
    (re.compile(r"(\^\s*(?:\{[^{}]*\}|\w))\s*(_\s*(?:\{[^{}]*\}|\w))"), r"\2\1"),  # v^2_0
    (re.compile(rf"\^\s*(?:{_TRANSPOSED}|\{{\s*{_TRANSPOSED}\s*\}})"), r"^{T_{0}}"),  # which the grammar drops
    (re.compile(r"(?<![A-Za-z\\])E(?=\s*_)"), r"\\Xi "),  # to the grammar E is part of a number
    (re.compile(r"(?<!\\)I(?=\s*[_^])"), r"\\Upsilon "),  # to the grammar I_1 and I_2 are the imaginary unit
    (re.compile(r"\\lg(?![a-zA-Z])"), r"\\log_{10}"),
    (re.compile(r"\\log(?![a-zA-Z])(?!\s*_)"), r"\\ln"),
    (re.compile(r"(?<![\w.^_})\]])(\d+)\s*(\\frac\s*\{\s*\d+\s*\}\s*\{\s*\d+\s*\})(?!\s*\^)"), r"(\1+\2)"),  # 2 1/2
)
_GROUPED = re.compile(r"\s*-?\d{1,3}(,\d{3})+(\.\d+)?\s*")
_OF_LETTERS = re.compile(r"\\(?:gcd|lcm)(?![a-zA-Z])[^A-Za-z]*[A-Za-z]")
_NOT_ONE_NUMBER = re.compile(rf"\d{{{MAX_DIGITS},}}|(?<![_^\d])\d+\s+\d|\d\.\d*\.|(?<=\d)\s*_")

MAX_BITS = 400_000.0  # numbers beyond this many bits (about 120,000 digits) are not worked out
Values = Mapping[sympy.Symbol, sympy.Rational]


class Unreadable(Exception):
    """An answer that is no mathematics the grammar knows, or too large to be worked out."""


class _Reader(_Latex2Sympy):  # type: ignore[misc]
    """The grammar's converter, without its rule that ``2(3)`` is a mixed number: these are recognised in the text."""

    def convert_postfix_list(self, arr: list[Any], i: int = 0) -> Any:
        left = self.convert_postfix(arr[i])
        if i == len(arr) - 1 or not isinstance(left, sympy.Expr | sympy.MatrixBase):
            return super().convert_postfix_list(arr, i)
        right = self.convert_postfix_list(arr, i + 1)
        if getattr(left, "is_Matrix", False) or getattr(right, "is_Matrix", False):
            return self.mat_mul_flat(left, right)
        return self.mul_flat(left, right)

    def convert_postfix(self, postfix: Any) -> Any:
        value = super().convert_postfix(postfix)
        if sum(operation.BANG() is not None for operation in postfix.postfix_op()) == 2:  # 5!! is no (5!)!
            return sympy.factorial2(value.args[0].args[0], evaluate=False)
        return value

    def parse(self, latex_str: str) -> Any:
        if _GROUPED.fullmatch(latex_str):  # ``1,000`` is one number, ``0,111`` a decimal
            return number(latex_str.replace(",", ".") if latex_str.strip().startswith("0") else latex_str)
        return super().parse(latex_str)

    def parse_number(self, text: str) -> sympy.Number:
        return number(text)


def number(text: str) -> sympy.Number:
    """A literal: ``0042``, ``1,000``, ``8.7E8``, else ValueError; ``sympy.Number`` would compile it as Python."""
    digits = text.replace(",", "").strip()
    return sympy.Integer(int(digits)) if digits.removeprefix("-").isdecimal() else sympy.Float(digits)


@lru_cache(maxsize=2_000)
def parse(text: str) -> sympy.Basic:
    r"""Read LaTeX as a SymPy expression, without evaluating it; ``\log`` without a base is the natural logarithm."""
    for pattern, replacement in _SPELLINGS:
        text = pattern.sub(replacement, text)
    latex = normalize_latex(text, _NORMALIZATION)
    # SymPy's greatest common divisor of two variables is 1, and "2 3" would be read as a product
    if _OF_LETTERS.search(latex) or _NOT_ONE_NUMBER.search(latex):
        raise Unreadable
    try:
        # is_real=None: a variable is the same symbol on both sides, whatever else stands beside it
        expression = _Reader(is_real=None, config=_CONVERSION).parse(latex)
    except MemoryError:
        raise
    except Exception as error:  # the grammar raises bare Exceptions, and SymPy any kind, on text that is no mathematics
        raise Unreadable from error
    if not isinstance(expression, sympy.Basic | sympy.MatrixBase):
        raise Unreadable
    named = {  # ``dx/dt`` of a plain variable is a quantity of its own; worked out it would be zero
        derivative: sympy.Symbol(f"derivative of {derivative.expr} by {derivative.variables}")
        for derivative in expression.atoms(sympy.Derivative)
        if not derivative.expr.has(*derivative.variables)
    }
    expression = expression.xreplace(named) if named else expression
    if r"\sqrt[" in latex and is_workable(expression):  # an odd root of a negative number is the real one
        roots = {
            power: -sympy.Pow(-power.base, power.exp)
            for power in expression.atoms(sympy.Pow)
            if power.exp.is_Rational and power.exp.q % 2 == 1 and power.exp.p == 1 < power.exp.q
            if power.base.is_number and power.base.evalf(30).is_negative is True
        }
        expression = expression.xreplace(roots) if roots else expression
    # the variable i is the imaginary unit, unless it is what a sum runs over
    bound = {limits[0] for node in expression.atoms(sympy.Sum, sympy.Product) for limits in node.limits}
    units = {symbol: sympy.I for symbol in expression.free_symbols if symbol.name == "i" and symbol not in bound}
    return expression.xreplace(units) if units else expression


def is_workable(expression: sympy.Basic | sympy.MatrixBase, values: Values = MappingProxyType({})) -> bool:
    """Return whether every number met in evaluating ``expression``, at ``values``, stays below :data:`MAX_BITS`."""
    entries = expression.flat() if isinstance(expression, sympy.MatrixBase) else [expression]
    return all(_bits(entry, values)[1] <= MAX_BITS for entry in entries)


def _bits(node: sympy.Basic, values: Values) -> tuple[float, float]:
    """Bounds on log2 of ``|node|``, and of the largest number met on the way to it."""
    node = values.get(node, node)
    if isinstance(node, sympy.Rational):
        bits = math.log2(max(abs(node.p), node.q))
        return bits, bits
    children = [_bits(child, values) for child in node.args if isinstance(child, sympy.Basic)]
    met = max((largest for _, largest in children), default=2.0)
    if met > MAX_BITS:
        return math.inf, math.inf
    bits = _own_bits(node, [size for size, _ in children], met, values)
    return bits, max(bits, met)


def _own_bits(node: sympy.Basic, sizes: list[float], met: float, values: Values) -> float:
    if isinstance(node, sympy.Pow | sympy.exp):
        base, exponent = (2.0, node.args[0]) if isinstance(node, sympy.exp) else (sizes[0], node.args[1])
        bound = _power_of_two(sizes[-1])
        size = abs(values.get(exponent, exponent) if exponent.is_Atom else exponent.evalf(15, subs=dict(values)))
        if (size.is_Rational and math.isfinite(bound)) or size.is_Float:
            bound = max(1.0, float(size))  # a root or an inverse does not make its base longer
        return max(base, 1.0) * bound
    if isinstance(node, sympy.factorial | sympy.gamma | sympy.factorial2 | sympy.subfactorial):
        return _power_of_two(sizes[0]) * max(sizes[0], 1.0)
    if isinstance(node, sympy.binomial):
        return min(_power_of_two(sizes[0]), _power_of_two(sizes[1]) * max(sizes[0], 1.0))
    if isinstance(node, sympy.Product):
        return met * _power_of_two(met)
    if isinstance(node, sympy.Mul):
        return math.fsum(sizes)
    if isinstance(node, sympy.Add):
        return max(sizes, default=1.0) + math.log2(len(sizes) + 1)
    return met


def _power_of_two(bits: float) -> float:
    return math.inf if bits > 60 else 2.0**bits
