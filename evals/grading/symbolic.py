r"""Algebra: whether two expressions are equal. Runs in worker processes only, where it can be killed.

math-verify's LaTeX grammar reads both sides (never the part of it that evaluates text as Python), then numbers are
compared exactly or to a hundred digits, and formulas at rational points. ``math_verify.verify`` decides what is left:
inequalities, sets, functions without values; with the gold first (it is not symmetric) and without its timeouts, which
rest on signals: the pool's limits replace them.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

import sympy
from latex2sympy2_extended import NormalizationConfig, latex2sympy, normalize_latex
from math_verify import verify
from sympy.core.relational import Relational

from evals.grading.comparison import compare
from evals.grading.exact import MAX_DIGITS, is_rounding_of, plain_number
from evals.grading.magnitude import is_workable
from evals.grading.structure import split_top_level
from evals.grading.verdict import Reason

PRECISION = 120
"""Digits to which numbers are compared where they cannot be compared exactly."""

_AGREEMENT = sympy.Float(10) ** (-(PRECISION - 30))
_POINT_PRECISION = 50
_POINT_AGREEMENT = sympy.Float(10) ** -35
_POSITIVE_POINTS = ("7/5", "23/11", "5/13")
_NEGATIVE_POINTS = ("-9/7", "-17/6")
_INFINITE = (sympy.oo, -sympy.oo)
_STEP = sympy.Rational(3, 17)  # keeps the values of several variables apart
_INTEGER_POINTS = tuple(str(value) for value in range(1, 21))
_INTEGER_STEP = sympy.Integer(2)
_OF_INTEGERS = (sympy.floor, sympy.ceiling, sympy.Mod, sympy.factorial, sympy.binomial, sympy.Sum, sympy.Product)

_NORMALIZATION = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=False, boxed="none", equations=False
)
_NOT_ONE_NUMBER = re.compile(rf"\d{{{MAX_DIGITS},}}|\d +\d")  # the grammar would multiply, or take for ever
_BARE_LOG = re.compile(r"\\log(?![a-zA-Z])(?!\s*_)")


class Unreadable(Exception):
    """An answer that is no mathematics the grammar knows, or too large to be worked out."""


def judge(answer: str, gold: str) -> Reason:
    """Compare two normalised answers that the exact rules could not decide.

    Returns:
        ``match``, ``mismatch`` or ``unparsable``.
    """
    try:
        verdict = compare(answer, gold, leaf)
    except Unreadable:
        return Reason.UNPARSABLE
    return Reason.UNPARSABLE if verdict is None else Reason.MATCH if verdict else Reason.MISMATCH


def leaf(answer: str, gold: str) -> bool:
    """Compare two answers without parts.

    Raises:
        Unreadable: the answer, or the gold answer, cannot be read or is too large.
    """
    for decimal, value in ((answer, gold), (gold, answer)):
        number = plain_number(decimal)
        if number is not None and number.decimals is not None and (exact := _real_value(parse(value))) is not None:
            return is_rounding_of(number, exact) or number.value == exact
    reference, prediction = real_set(gold), real_set(answer)
    return same_expression(prediction or parse(answer), reference or parse(gold))


def _real_value(expression: sympy.Basic) -> Fraction | None:
    """The value of a real constant, to :data:`PRECISION` digits where it is not rational; None for anything else."""
    if not isinstance(expression, sympy.Expr) or expression.free_symbols or not is_workable(expression):
        return None
    value = _exactly(expression)
    if not value.is_Rational:
        value = value.evalf(PRECISION)
    if not value.is_Float and not value.is_Rational:
        return None
    exact = sympy.Rational(value)
    return Fraction(int(exact.p), int(exact.q))


def same_expression(answer: sympy.Basic, gold: sympy.Basic) -> bool:
    """Whether two parsed expressions are equal.

    Raises:
        Unreadable: one of them is too large to be worked out.
    """
    if answer == gold:
        return True
    if not (is_workable(answer) and is_workable(gold)):
        raise Unreadable
    if isinstance(answer, sympy.Expr) and isinstance(gold, sympy.Expr):
        verdict = _same_value(answer, gold)
        if verdict is not None:
            return verdict
    answer, gold = _explicit(answer), _explicit(gold)
    if isinstance(answer, sympy.MatrixBase) and isinstance(gold, sympy.MatrixBase):
        return answer.shape == gold.shape and all(map(same_expression, answer.flat(), gold.flat()))
    return _verify(answer, gold)


def _explicit(expression: sympy.Basic) -> sympy.Basic:
    """Work out sums and products of matrices."""
    return expression.doit() if isinstance(expression, sympy.MatrixExpr) else expression


def _verify(answer: sympy.Basic, gold: sympy.Basic) -> bool:
    """math-verify's own decision, but for equations that it compares by solving them.

    Solving compares lists of solutions, and two empty lists are equal; a constant factor between the two equations is
    what makes them the same.
    """
    if isinstance(answer, sympy.Eq) and isinstance(gold, sympy.Eq):
        return _same_equation(answer, gold)
    if isinstance(answer, Relational) != isinstance(gold, Relational) and (answer.is_number or gold.is_number):
        return False
    if (ours := _region(answer)) is not None and (theirs := _region(gold)) is not None and ours == theirs:
        return answer.free_symbols == gold.free_symbols
    return bool(
        verify(
            gold,
            answer,
            float_rounding=12,
            numeric_precision=PRECISION,
            strict=True,
            allow_set_relation_comp=True,
            timeout_seconds=None,
        )
    )


def _region(expression: sympy.Basic) -> sympy.Set | None:
    """The reals between two bounds, from a chain such as ``1 < x < 2``; None for anything else."""
    if not isinstance(expression, sympy.And) or len(expression.free_symbols) != 1:
        return None
    return expression.as_set()


def _same_equation(answer: sympy.Eq, gold: sympy.Eq) -> bool:
    ours, theirs = answer.lhs - answer.rhs, gold.lhs - gold.rhs
    if ours.free_symbols != theirs.free_symbols or not ours.free_symbols:
        return False
    symbols = sorted(ours.free_symbols, key=str)
    ratios = []
    for point in _POSITIVE_POINTS + _NEGATIVE_POINTS:
        values = _at(ours, symbols, point), _at(theirs, symbols, point)
        if values[0] is not None and values[1] is not None and values[1] != 0:
            ratios.append(values[0] / values[1])
    if len(ratios) < 2 or ratios[0] == 0:
        return False
    return all(abs(ratio / ratios[0] - 1) < _POINT_AGREEMENT for ratio in ratios[1:])


def _same_value(answer: sympy.Expr, gold: sympy.Expr) -> bool | None:
    """Compare numbers by value, formulas at points; None if neither can be evaluated."""
    symbols = sorted(answer.free_symbols | gold.free_symbols, key=str)
    if not symbols:
        return _same_constant(answer, gold)
    if answer.atoms(sympy.Float) or gold.atoms(sympy.Float):
        answer, gold = sympy.nsimplify(answer, rational=True), sympy.nsimplify(gold, rational=True)
    agreed = 0
    for point in _points(answer, gold):
        ours, theirs = _at(answer, symbols, point), _at(gold, symbols, point)
        if ours is None or theirs is None:
            continue
        negative = point in _NEGATIVE_POINTS
        if negative and not (ours.is_real and theirs.is_real):
            continue  # an even root or a logarithm of a negative variable: outside what the formula is meant for
        if abs(ours - theirs) > _POINT_AGREEMENT * max(abs(ours), abs(theirs), sympy.Float(10) ** -10):
            return False
        agreed += 1
    return True if agreed >= 2 else None


def _points(answer: sympy.Expr, gold: sympy.Expr) -> tuple[str, ...]:
    """Where to compare two formulas: steps and sums differ at integers only, others at a few rational points."""
    alternating = any(power.base.is_negative for formula in (answer, gold) for power in formula.atoms(sympy.Pow))
    if alternating or answer.has(*_OF_INTEGERS) or gold.has(*_OF_INTEGERS):
        return _INTEGER_POINTS
    return _POSITIVE_POINTS + _NEGATIVE_POINTS


def _at(expression: sympy.Expr, symbols: list[sympy.Symbol], point: str) -> sympy.Expr | None:
    """The value at a point, each variable a little off the others; None if it has no finite value there."""
    start = sympy.Rational(point)
    step = _INTEGER_STEP if start.is_Integer else _STEP
    values = {symbol: start + index * step for index, symbol in enumerate(symbols)}
    value = expression.subs(values).doit().evalf(_POINT_PRECISION)
    return value if value.is_number and value.is_finite and not value.has(sympy.nan, sympy.zoo) else None


def _same_constant(answer: sympy.Expr, gold: sympy.Expr) -> bool | None:
    ours, theirs = _exactly(answer), _exactly(gold)
    if ours.has(sympy.zoo, sympy.nan) or theirs.has(sympy.zoo, sympy.nan):
        raise Unreadable
    if not (ours.is_finite and theirs.is_finite):
        return bool(ours == theirs) if ours in _INFINITE or theirs in _INFINITE else None
    if isinstance(ours, sympy.Rational) and isinstance(theirs, sympy.Rational):
        return bool(ours == theirs)
    values = ours.evalf(PRECISION), theirs.evalf(PRECISION)
    if not all(value.is_number and value.is_finite and not value.atoms(sympy.Function) for value in values):
        return None
    return bool(abs(values[0] - values[1]) <= _AGREEMENT * max(abs(values[0]), abs(values[1]), 1))


def _exactly(expression: sympy.Expr) -> sympy.Expr:
    """The expression with decimals read as exact fractions and everything worked out that can be."""
    if expression.atoms(sympy.Float):
        expression = expression.xreplace(
            {number: sympy.Rational(str(number)) for number in expression.atoms(sympy.Float)}
        )
    return expression.doit()


def real_set(text: str) -> sympy.Set | None:
    r"""``x<2 \lor x>3`` or ``x>2 \land x<3`` as a set of reals; None for anything else."""
    for connective, combine in ((r"\lor", sympy.Union), (r"\land", sympy.Intersection)):
        parts = split_top_level(text, (connective,))
        if len(parts) > 1:
            sets = [real_set(part) or _solutions(part) for part in parts]
            return None if None in sets else combine(*sets)
    return None


def _solutions(text: str) -> sympy.Set | None:
    """The reals that satisfy an inequality in one variable, or that an interval holds."""
    expression = parse(text)
    if isinstance(expression, sympy.Set):
        return expression
    if len(expression.free_symbols) != 1 or not isinstance(expression, Relational | sympy.And):
        return None
    return expression.as_set()


@lru_cache(maxsize=2_000)
def parse(text: str) -> sympy.Basic:
    """Read LaTeX as a SymPy expression, without evaluating it.

    Raises:
        Unreadable: the grammar does not know it.
    """
    if _NOT_ONE_NUMBER.search(text):
        raise Unreadable
    latex = normalize_latex(_BARE_LOG.sub(r"\\ln", text), _NORMALIZATION)
    try:
        # is_real=None: every variable is the same symbol on both sides, whatever else stands beside it
        expression = latex2sympy(latex, is_real=None, convert_degrees=False, normalization_config=None)
    except MemoryError:
        raise
    except Exception as error:  # the grammar raises bare Exceptions, and SymPy any kind, on text that is no mathematics
        raise Unreadable from error
    if not isinstance(expression, sympy.Basic | sympy.MatrixBase):
        raise Unreadable
    return _with_imaginary_unit(expression)


def _with_imaginary_unit(expression: sympy.Basic) -> sympy.Basic:
    """The variable i is the imaginary unit, unless it is what a sum runs over."""
    bound = {limits[0] for node in expression.atoms(sympy.Sum, sympy.Product) for limits in node.limits}
    units = {symbol: sympy.I for symbol in expression.free_symbols if symbol.name == "i" and symbol not in bound}
    return expression.xreplace(units) if units else expression
