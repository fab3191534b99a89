r"""Algebra: whether two expressions are equal. Runs in worker processes only, where it can be killed.

math-verify's LaTeX grammar reads both sides, numbers are compared exactly or to a hundred digits, formulas at points.
``math_verify.verify`` decides what is left: inequalities, sets, functions without values; with the gold first (it is
not symmetric) and without its timeouts, which rest on signals.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import chain, islice

import sympy
from math_verify import verify
from sympy.core.relational import Relational

from evals.grading.comparison import compare
from evals.grading.exact import is_rounding_of, plain_number, split_top_level
from evals.grading.parsing import Unreadable, is_workable, parse
from evals.grading.verdict import Reason

PRECISION = 120  # digits to which numbers are compared where they cannot be compared exactly

_AGREEMENT = sympy.Float(10) ** (-(PRECISION - 30))
_MOST_DIGITS = 1_000  # of the numbers that cancel in between
_LEAST_PRECISION = 60  # bits; SymPy's result of a cancellation that may be zero has fewer
_INEQUALITIES = (sympy.Lt, sympy.Le, sympy.Gt, sympy.Ge)
_INFINITE = (sympy.oo, -sympy.oo)
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\{\w+\}")
_PROSE = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}")
_ENOUGH = 3  # points at which formulas have to agree

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


def judge(answer: str, gold: str) -> Reason:
    """Compare two normalised answers that the exact rules could not decide: match, mismatch or unparsable."""
    try:
        verdict = compare(answer, gold, leaf)
    except Unreadable:
        return Reason.UNPARSABLE
    return Reason.UNPARSABLE if verdict is None else Reason.MATCH if verdict else Reason.MISMATCH


def leaf(answer: str, gold: str) -> bool:
    """Compare two answers without parts."""
    # no product of letters: ``not 0`` is not 0
    if _PROSE.search(_ENVIRONMENT.sub("", answer)) and plain_number(gold) is not None:
        return False
    for decimal, value in ((answer, gold), (gold, answer)):
        number = plain_number(decimal)
        if number is not None and number.decimals is not None and (exact := _real_value(parse(value))) is not None:
            return is_rounding_of(number, exact) or number.value == exact
    return same_expression(*(real_set(side) or parse(side) for side in (answer, gold)))


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
    """Return whether two parsed expressions are equal."""
    if answer == gold:
        return True
    if not (is_workable(answer) and is_workable(gold)):
        raise Unreadable
    if isinstance(answer, sympy.Expr) and isinstance(gold, sympy.Expr):
        verdict = _same_value(answer, gold)
        if verdict is not None:
            return verdict
    answer, gold = (each.doit() if isinstance(each, sympy.MatrixExpr) else each for each in (answer, gold))
    if isinstance(answer, sympy.MatrixBase) and isinstance(gold, sympy.MatrixBase):
        return bool(answer.shape == gold.shape) and all(map(same_expression, answer.flat(), gold.flat()))
    return _verify(answer, gold)


def _verify(answer: sympy.Basic, gold: sympy.Basic) -> bool:
    """math-verify's own decision, but for equations, which it solves: two empty lists of solutions are equal."""
    sides = (answer, gold)
    if isinstance(answer, sympy.Eq) and isinstance(gold, sympy.Eq):
        return _same_equation(answer, gold)
    if isinstance(answer, Relational) != isinstance(gold, Relational) and (answer.is_number or gold.is_number):
        return False
    if all(isinstance(each, sympy.And) or (isinstance(each, _INEQUALITIES) and each.has(sympy.Abs)) for each in sides):
        regions = [_solutions(side) for side in sides]
        if regions[0] is not None and regions[0] == regions[1]:
            return bool(answer.free_symbols == gold.free_symbols)
    options = {"numeric_precision": PRECISION, "strict": True, "allow_set_relation_comp": True, "timeout_seconds": None}
    return bool(verify(gold, answer, float_rounding=12, **options))


def _same_equation(answer: sympy.Eq, gold: sympy.Eq) -> bool:
    ours, theirs = answer.lhs - answer.rhs, gold.lhs - gold.rhs
    if ours.free_symbols != theirs.free_symbols or not ours.free_symbols:
        return False
    values = [(_at(ours, point), _at(theirs, point)) for point in _points((ours, theirs))]
    ratios = [mine / other for mine, other in values if mine is not None and other is not None and other != 0]
    return len(ratios) >= _ENOUGH and ratios[0] != 0 and all(_agree(ratio, ratios[0]) for ratio in ratios[1:])


def _same_value(answer: sympy.Expr, gold: sympy.Expr) -> bool | None:
    """Compare numbers by value, formulas at points, but of roots of negative numbers; None if unknown."""
    if not (answer.free_symbols or gold.free_symbols):
        return _same_constant(answer, gold)
    if answer.atoms(sympy.Float) or gold.atoms(sympy.Float):
        answer, gold = sympy.nsimplify(answer, rational=True), sympy.nsimplify(gold, rational=True)
    operands = [*_operands(answer), *_operands(gold)]
    agreed = agreed_not_zero = 0
    for outside, point in sorted(
        ((any(_is_negative(operand, point) for operand in operands), point) for point in _points((answer, gold))),
        key=lambda candidate: candidate[0],
    ):
        if outside and agreed >= _ENOUGH:
            break
        ours, theirs = _at(answer, point), _at(gold, point)
        if ours is None or theirs is None:
            continue
        if not _agree(ours, theirs):
            return False
        agreed += 1
        agreed_not_zero += ours != 0
    if agreed_not_zero >= _ENOUGH or (agreed >= _ENOUGH and (answer.doit() == 0 or gold.doit() == 0)):
        return True
    return None


def _at(expression: sympy.Expr, values: Point) -> sympy.Expr | None:
    """The value at a point; None if it has no finite value there, or one too large to be worked out."""
    if not is_workable(expression, values):
        return None
    value = _value(*_at_values(expression, values))
    return value if value.is_number and value.is_finite and not value.has(sympy.nan, sympy.zoo) else None


def _operands(expression: sympy.Expr) -> list[sympy.Expr]:
    """The formulas of which an expression takes roots, powers that are no integers, and logarithms."""
    taken = [
        power.base for power in expression.atoms(sympy.Pow) if not power.exp.is_integer and power.base.free_symbols
    ]
    return taken + [logarithm.args[0] for logarithm in expression.atoms(sympy.log)]


def _is_negative(operand: sympy.Expr, values: Point) -> bool:
    """Return whether the operand of a root or logarithm is negative at a point, or is not known not to be."""
    if not is_workable(operand, values):
        return True
    expression, substituted = _at_values(operand, values)
    return expression.evalf(subs=substituted).is_negative is not False


def _at_values(expression: sympy.Expr, values: Point) -> tuple[sympy.Expr, Point | None]:
    """The expression with the values of a point; with those left for ``evalf`` that would be raised to fractions."""
    if all(value.is_Integer for value in values.values()) or not any(
        power.exp.free_symbols for power in expression.atoms(sympy.Pow, sympy.exp)
    ):
        return expression.subs(values).doit(), None
    return expression, values


def _same_constant(answer: sympy.Expr, gold: sympy.Expr) -> bool | None:
    ours, theirs = _exactly(answer), _exactly(gold)
    if ours.has(sympy.zoo, sympy.nan) or theirs.has(sympy.zoo, sympy.nan):
        raise Unreadable
    if not (ours.is_finite and theirs.is_finite):
        return bool(ours == theirs) if ours in _INFINITE or theirs in _INFINITE else None
    if isinstance(ours, sympy.Rational) and isinstance(theirs, sympy.Rational):
        return bool(ours == theirs)
    values = _value(ours), _value(theirs)
    if not all(value.is_number and value.is_finite and not value.atoms(sympy.Function) for value in values):
        return None
    return _agree(*values)


def _value(expression: sympy.Expr, values: Point | None = None) -> sympy.Expr:
    """The value to :data:`PRECISION` digits; what cancels to less precision than any real value has is zero."""
    value = expression.evalf(PRECISION, subs=values)
    if any(part._prec < _LEAST_PRECISION for part in value.atoms(sympy.Float)):
        value = expression.evalf(PRECISION, subs=values, maxn=_MOST_DIGITS)
    return value.xreplace({part: sympy.S.Zero for part in value.atoms(sympy.Float) if part._prec < _LEAST_PRECISION})


def _agree(ours: sympy.Expr, theirs: sympy.Expr) -> bool:
    """Return whether two values agree relative to their size: ``e^{-1000}`` is neither 0 nor ``e^{-1001}``."""
    return bool(abs(ours - theirs) <= _AGREEMENT * max(abs(ours), abs(theirs)))


def _exactly(expression: sympy.Expr) -> sympy.Expr:
    """The expression with decimals read as exact fractions and everything worked out that can be."""
    decimals = {number: sympy.Rational(str(number)) for number in expression.atoms(sympy.Float)}
    return (expression.xreplace(decimals) if decimals else expression).doit()


def real_set(text: str) -> sympy.Set | None:
    r"""``x<2 \lor x>3`` or ``x>2 \land x<3`` as a set of reals; None for anything else."""
    excluded = ((",", sympy.Intersection),) if r"\neq" in text else ()  # 1 < x < 3, x \neq 2
    for connective, combine in (
        (r"\lor", sympy.Union),
        (r"\land", sympy.Intersection),
        (r"\setminus", sympy.Complement),
        *excluded,
    ):
        if len(parts := split_top_level(text, (connective,))) > 1:
            sets = [real_set(part) or _solutions(parse(part)) for part in parts]
            return None if None in sets else combine(*sets)
    return None


def _solutions(expression: sympy.Basic) -> sympy.Set | None:
    """The reals that satisfy an inequality in one variable (``1 < x < 2``), or that an interval holds."""
    if isinstance(expression, sympy.Set):
        return expression
    if len(expression.free_symbols) != 1 or not isinstance(expression, Relational | sympy.And):
        return None
    return expression.as_set()


def _points(formulas: Sequence[sympy.Expr]) -> list[Point]:
    """The points at which formulas are compared: values of each variable, rational or integer.

    Factorials, sums and powers of negative numbers are compared at integers, steps there and (of x, y, z ...) in
    between, all others at rational points, first positive ones. Values depend on a variable's name and the point's
    number alone. Beside every number of formulas with corners (``|x-3|``) are points too.
    """
    symbols = sorted(set().union(*(formula.free_symbols for formula in formulas)), key=str)
    stepped = any(formula.has(*STEPS) for formula in formulas)
    powers = set().union(*(formula.atoms(sympy.Pow) for formula in formulas))
    raised = [power.base for power in powers if power.exp.free_symbols]  # (-1)^n
    of_integers = any(formula.has(*_OF_INTEGERS) for formula in formulas) or any(base.is_negative for base in raised)
    of_reals = not (of_integers or stepped) or (stepped and any(symbol.name in _NAMES_OF_REALS for symbol in symbols))
    chosen: list[Point] = []
    if of_integers or stepped:
        most = 24 if any(formula.has(*_SUMS) for formula in formulas) else max(_INTEGERS)
        chosen += [
            {symbol: _integer(symbol, index, min(bound, most), len(symbols)) for symbol in symbols}
            for index, bound in enumerate(_INTEGERS)
        ]
    if of_reals:
        grows = raised or any(formula.has(*_GROWING) for formula in formulas)
        decades = _SMALL_DECADES if grows else _DECADES
        chosen += [
            {symbol: _real(symbol, index, number, decades) for number, symbol in enumerate(symbols)}
            for index in range(_POSITIVE + _OF_BOTH_SIGNS)
        ]
    if any(formula.has(*_CORNERS) for formula in formulas):
        chosen += islice(_beside_numbers(formulas, symbols, integers=not of_reals), _MOST_BESIDE)
    return chosen


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
