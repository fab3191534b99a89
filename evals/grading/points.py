"""The points at which two formulas are compared: rational or integer values, independent for each variable.

Values are functions of a variable's name and the point's number alone, so that a verdict never depends on chance. Each
variable has both signs and every size from 1/100 to 1000; no relation that a wrong answer could rest on (equal spacing,
one order, one parity) holds at all points. Where formulas have steps or corners, as ``|x-3|`` has, points beside every
number in them are added, for elsewhere they may agree by accident.
"""

import hashlib
from collections.abc import Iterator, Sequence
from itertools import chain, islice

import sympy

Point = dict[sympy.Symbol, sympy.Rational]

STEPS = (sympy.floor, sympy.ceiling, sympy.Mod, sympy.sign)
_CORNERS = (*STEPS, sympy.Abs, sympy.Max, sympy.Min, sympy.Piecewise)
_SUMS = (sympy.Sum, sympy.Product)
_OF_INTEGERS = (sympy.factorial, sympy.factorial2, sympy.binomial, *_SUMS)
_GROWING = (sympy.exp, sympy.sinh, sympy.cosh, sympy.tanh)
_NAMES_OF_REALS = frozenset("xyztuvw")

_POSITIVE, _OF_BOTH_SIGNS = 7, 9  # points of each series
_DECADES = (100, 10, 1000, 1, 10_000)  # 1000 to 9999, divided by 10 times these: sizes from 1/100 to 1000
_SMALL_DECADES = (100, 1000, 10_000)  # of variables in exponents: up to 10
_INTEGERS = tuple(chain(range(1, 9), [12] * 6, [40] * 4, [400] * 4))  # the largest value at each point
_MOST_BESIDE = 48
_MOST_NUMBERS = 12


def points(formulas: Sequence[sympy.Expr]) -> list[Point]:
    """Choose the points at which formulas are compared.

    Factorials, sums and powers of negative numbers are compared at integers, steps there and (of x, y, z ...) in
    between, all others at rational points: first positive ones, then those of both signs.
    """
    symbols = sorted(set().union(*(formula.free_symbols for formula in formulas)), key=str)
    stepped = any(formula.has(*STEPS) for formula in formulas)
    of_integers = any(formula.has(*_OF_INTEGERS) for formula in formulas) or any(map(_alternates, formulas))
    of_reals = not (of_integers or stepped) or (stepped and any(symbol.name in _NAMES_OF_REALS for symbol in symbols))
    chosen: list[Point] = []
    if of_integers or stepped:
        most = 24 if any(formula.has(*_SUMS) for formula in formulas) else max(_INTEGERS)
        chosen += [
            {symbol: _integer(symbol, index, min(bound, most), len(symbols)) for symbol in symbols}
            for index, bound in enumerate(_INTEGERS)
        ]
    if of_reals:
        decades = _SMALL_DECADES if any(map(_grows, formulas)) else _DECADES
        chosen += [
            {symbol: _real(symbol, index, number, decades) for number, symbol in enumerate(symbols)}
            for index in range(_POSITIVE + _OF_BOTH_SIGNS)
        ]
    if any(formula.has(*_CORNERS) for formula in formulas):
        chosen += islice(_beside_numbers(formulas, symbols, integers=not of_reals), _MOST_BESIDE)
    return chosen


def _alternates(formula: sympy.Expr) -> bool:
    """Return whether a negative number is raised to a variable power: ``(-1)^n``."""
    return any(power.base.is_negative and power.exp.free_symbols for power in formula.atoms(sympy.Pow))


def _grows(formula: sympy.Expr) -> bool:
    return formula.has(*_GROWING) or any(power.exp.free_symbols for power in formula.atoms(sympy.Pow))


def _draw(symbol: sympy.Symbol, index: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{symbol.name}/{index}".encode()).digest()[:8], "big")


def _real(symbol: sympy.Symbol, index: int, number: int, decades: Sequence[int]) -> sympy.Rational:
    """The value of a variable, number ``number`` of the formulas, at a rational point."""
    draw = _draw(symbol, index)
    decade = decades[(index + _draw(symbol, -1)) % len(decades)] if number else decades[index % len(decades)]
    size = sympy.Rational(1_000 + draw % 9_000, 10 * decade + 1)  # no decimal, so that no decimal fits it
    signs = index - _POSITIVE
    if signs < 0:
        return size
    negative = (signs >> number) % 2 == 0 if number < 3 else draw >> 20 & 1
    return -size if negative else size


def _integer(symbol: sympy.Symbol, index: int, bound: int, variables: int) -> sympy.Integer:
    """The value of a variable at an integer point: alone 1, 2, 3, ..., several are drawn up to 6 at least."""
    if variables == 1 and index < 8:
        return sympy.Integer(bound)
    return sympy.Integer(1 + _draw(symbol, index) % max(bound, 6))


def _beside_numbers(formulas: Sequence[sympy.Expr], symbols: Sequence[sympy.Symbol], integers: bool) -> Iterator[Point]:
    """Points at which every variable is beside a number of the formulas, or beside a quotient of two of them."""
    met = {_size(node) for formula in formulas for node in sympy.preorder_traversal(formula) if node.is_number}
    numbers = sorted(met - {0}, reverse=True)[:_MOST_NUMBERS] or [sympy.Integer(1)]
    quotients = {top / bottom for top in numbers for bottom in numbers} | set(numbers)
    values: list[sympy.Rational] = []
    for corner in sorted(quotients, key=lambda value: (value not in numbers, value)):
        step = sympy.Integer(1) if integers else min(corner, sympy.Integer(1)) / 7
        nearest = sympy.ceiling(corner) if integers else corner
        around = (nearest + step, nearest - step, nearest, -nearest - step, -nearest + step)
        values += [value for value in around if not integers or value > 0]
    if len(symbols) == 1:
        yield from ({symbols[0]: value} for value in values)
        return
    for index in range(_MOST_BESIDE):
        yield {symbol: values[_draw(symbol, 1_000 + index) % len(values)] for symbol in symbols}


def _size(constant: sympy.Expr) -> sympy.Rational:
    """The size of a number of a formula, to six digits where it is not rational; 0 where it has none."""
    value = constant if constant.is_Rational else constant.evalf(6)
    return abs(sympy.Rational(value)) if value.is_Rational or (value.is_Float and value.is_finite) else sympy.S.Zero
