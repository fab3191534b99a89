"""How large an expression would be, worked out before anything is evaluated.

SymPy works out ``10**(10**10)`` or ``1000000000!`` digit by digit, in C code that no signal interrupts. These
bounds are taken over the unevaluated tree first, in floating point, so that such an expression is never started on.
"""

from __future__ import annotations

import math

import sympy

MAX_BITS = 400_000.0
"""Numbers beyond this many bits (about 120,000 digits) are not worked out."""


def largest_bits(expression: sympy.Basic | sympy.MatrixBase) -> float:
    """An upper bound on log2 of every number met in evaluating ``expression``; ``inf`` if one is too large."""
    if isinstance(expression, sympy.MatrixBase):
        return max((largest_bits(entry) for entry in expression.flat()), default=0.0)
    return _bits(expression)[1]


def is_workable(expression: sympy.Basic | sympy.MatrixBase) -> bool:
    """Whether every number within ``expression`` stays below :data:`MAX_BITS`."""
    return largest_bits(expression) <= MAX_BITS


def _bits(node: sympy.Basic) -> tuple[float, float]:
    """Bounds on log2 of ``|node|``, and of the largest number met on the way to it."""
    if isinstance(node, sympy.Rational):
        bits = math.log2(max(abs(node.p), node.q))
        return bits, bits
    children = [_bits(child) for child in node.args if isinstance(child, sympy.Basic)]
    met = max((largest for _, largest in children), default=2.0)
    if met > MAX_BITS:
        return math.inf, math.inf
    bits = _own_bits(node, [size for size, _ in children], met)
    return bits, max(bits, met)


def _own_bits(node: sympy.Basic, sizes: list[float], met: float) -> float:
    if isinstance(node, sympy.Pow | sympy.exp):
        base, exponent = (2.0, node.args[0]) if isinstance(node, sympy.exp) else (sizes[0], node.args[1])
        return max(base, 1.0) * _exponent_bound(exponent, sizes[-1])
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


def _exponent_bound(exponent: sympy.Basic, bits: float) -> float:
    """An upper bound on the size of an exponent; a root or an inverse does not make its base longer."""
    if isinstance(exponent, sympy.Rational):
        return max(1.0, float(abs(exponent))) if bits <= 60 else math.inf
    return _power_of_two(bits)
