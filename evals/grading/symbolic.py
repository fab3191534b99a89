r"""Algebra: whether two expressions are equal. Runs in worker processes only, where it can be killed.

math-verify's LaTeX grammar reads both sides (never the part of it that evaluates text as Python), then numbers are
compared exactly or to a hundred digits, and formulas at points (``evals.grading.points``). ``math_verify.verify``
decides what is left: inequalities, sets, functions without values; with the gold first (it is not symmetric) and
without its timeouts, which rest on signals: the pool's limits replace them.
"""

import re
from fractions import Fraction

import sympy
from math_verify import verify
from sympy.core.relational import Relational

from evals.grading.comparison import compare
from evals.grading.exact import is_rounding_of, plain_number
from evals.grading.parsing import Unreadable, is_workable, parse
from evals.grading.points import Point, points
from evals.grading.structure import split_top_level
from evals.grading.verdict import Reason

PRECISION = 120
"""Digits to which numbers are compared where they cannot be compared exactly."""

_AGREEMENT = sympy.Float(10) ** (-(PRECISION - 30))
_MOST_DIGITS = 1_000  # of the numbers that cancel in between
_LEAST_PRECISION = 60  # bits; SymPy's result of a cancellation that may be zero has fewer
_INEQUALITIES = (sympy.Lt, sympy.Le, sympy.Gt, sympy.Ge)
_INFINITE = (sympy.oo, -sympy.oo)
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\{\w+\}")
_PROSE = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}")
_ENOUGH = 3  # points at which formulas have to agree


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
    """math-verify's own decision, but for equations that it compares by solving them.

    Solving compares lists of solutions, and two empty lists are equal; a constant factor between the two equations is
    what makes them the same.
    """
    if isinstance(answer, sympy.Eq) and isinstance(gold, sympy.Eq):
        return _same_equation(answer, gold)
    if isinstance(answer, Relational) != isinstance(gold, Relational) and (answer.is_number or gold.is_number):
        return False
    if (ours := _region(answer)) is not None and (theirs := _region(gold)) is not None and ours == theirs:
        return bool(answer.free_symbols == gold.free_symbols)
    options = {"numeric_precision": PRECISION, "strict": True, "allow_set_relation_comp": True, "timeout_seconds": None}
    return bool(verify(gold, answer, float_rounding=12, **options))


def _region(expression: sympy.Basic) -> sympy.Set | None:
    """The reals of ``1 < x < 2`` or ``|x| < 2``; None for anything else."""
    if len(expression.free_symbols) != 1 or not (
        isinstance(expression, sympy.And) or (isinstance(expression, _INEQUALITIES) and expression.has(sympy.Abs))
    ):
        return None
    return expression.as_set()


def _same_equation(answer: sympy.Eq, gold: sympy.Eq) -> bool:
    ours, theirs = answer.lhs - answer.rhs, gold.lhs - gold.rhs
    if ours.free_symbols != theirs.free_symbols or not ours.free_symbols:
        return False
    values = [(_at(ours, point), _at(theirs, point)) for point in points((ours, theirs))]
    ratios = [mine / other for mine, other in values if mine is not None and other is not None and other != 0]
    return len(ratios) >= _ENOUGH and ratios[0] != 0 and all(_agree(ratio, ratios[0]) for ratio in ratios[1:])


def _same_value(answer: sympy.Expr, gold: sympy.Expr) -> bool | None:
    """Compare numbers by value, formulas at points; None if neither can be evaluated.

    Formulas need not agree where a root or a logarithm of something negative is taken, unless it is everywhere.
    """
    if not (answer.free_symbols or gold.free_symbols):
        return _same_constant(answer, gold)
    if answer.atoms(sympy.Float) or gold.atoms(sympy.Float):
        answer, gold = sympy.nsimplify(answer, rational=True), sympy.nsimplify(gold, rational=True)
    operands = [*_operands(answer), *_operands(gold)]
    agreed = agreed_not_zero = 0
    for outside, point in sorted(
        ((any(_is_negative(operand, point) for operand in operands), point) for point in points((answer, gold))),
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
