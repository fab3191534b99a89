"""Answers with parts: compared part by part, in order where there is one."""

from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from evals.grading import Case, GradingPool, Kind
from evals.grading.comparison import compare
from evals.grading.exact import decide
from evals.grading.normalisation import normalise
from evals.grading.pool import Undecided, examine
from evals.grading.symbolic import judge
from evals.grading.verdict import Reason
from tests.unit.grading.cases import table

SAID = {"equal": True, "different": False, "undecided": None}
NUMBERS = st.lists(st.integers(-99, 99), min_size=2, max_size=6, unique=True)


def same(answer: str, gold: str) -> bool | None:
    return compare(normalise(answer), normalise(gold), decide)


def joined(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))


@given(NUMBERS, st.randoms(use_true_random=False))
def test_lists_and_sets_have_no_order(numbers: list[int], random: object) -> None:
    shuffled = list(numbers)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert same(joined(shuffled), joined(numbers)) is True
    assert same(rf"\{{{joined(shuffled)}\}}", joined(numbers)) is True


@given(NUMBERS)
def test_tuples_have_an_order(numbers: list[int]) -> None:
    assert same(f"({joined(numbers)})", f"({joined(numbers)})") is True
    assert same(f"({joined(numbers[::-1])})", f"({joined(numbers)})") is False


@given(NUMBERS)
def test_naming_more_answers_never_helps(numbers: list[int]) -> None:
    gold = str(numbers[0])
    for hedge in (joined(numbers), rf"\{{{joined(numbers)}\}}", " or ".join(map(str, numbers)), f"({joined(numbers)})"):
        assert same(hedge, gold) is False


@pytest.mark.parametrize(("answer", "gold", "expected"), table("parts"))
def test_parts(answer: str, gold: str, expected: str) -> None:
    assert same(answer, gold) is SAID[expected]


# Numbers and words: what is decided without algebra is decided right.

INTEGERS = st.integers(-(10**12), 10**12)
SPELLINGS = ["{:d}", "{:,d}", " {:d} ", "${:d}$", r"\text{{{:d}}}", "{:d}.", "{:d}.0", r"{:d}\text{{ cm}}"]
SPELLINGS += [r"{:d}^\circ", r"\${:d}", "{:d} miles"]


def same_of_exact(answer: str, gold: str) -> bool | None:
    return decide(normalise(answer), normalise(gold))


@given(INTEGERS, INTEGERS, st.sampled_from(SPELLINGS), st.sampled_from(SPELLINGS))
def test_integers_in_any_spelling(left: int, right: int, spelling: str, other: str) -> None:
    assert same_of_exact(spelling.format(left), other.format(left)) is True
    assume(left != right)
    assert same_of_exact(spelling.format(left), other.format(right)) is False


@given(st.integers(-10_000, 10_000), st.integers(1, 10_000), st.integers(1, 50))
def test_fractions_agree_with_python(top: int, bottom: int, factor: int) -> None:
    slash, latex = f"{top * factor}/{bottom * factor}", rf"\dfrac{{{top}}}{{{bottom}}}"
    assert same_of_exact(slash, latex) is True
    assert same_of_exact(f"{top + 1}/{bottom}", latex) is False
    assert same_of_exact(rf"-\frac{{{top}}}{{{bottom}}}", latex) is (top == 0)


@given(st.integers(1, 999), st.integers(2, 997))
def test_decimals_stand_for_a_fraction_only_if_long_and_correctly_rounded(top: int, bottom: int) -> None:
    exact = Fraction(top, bottom)
    rounded = (Decimal(top) / Decimal(bottom)).quantize(Decimal(1).scaleb(-9), ROUND_HALF_UP)
    digits = len(str(rounded).replace(".", "").lstrip("0"))
    expected = Fraction(rounded) == exact or digits >= 6
    assert same_of_exact(str(rounded), f"{top}/{bottom}") is expected
    wrong = rounded + Decimal(2).scaleb(-9)
    assert same_of_exact(str(wrong), f"{top}/{bottom}") is (Fraction(wrong) == exact)


@pytest.mark.parametrize(("answer", "gold", "expected"), table("decisions"))
def test_decisions(answer: str, gold: str, expected: str) -> None:
    assert same_of_exact(answer, gold) is SAID[expected]


# Algebra: equal expressions match, near misses do not, and what cannot be judged is said to be so.


@pytest.mark.parametrize(("answer", "gold"), table("equal by algebra"))
def test_equal_expressions_match_in_both_directions(answer: str, gold: str) -> None:
    assert judge(normalise(answer), normalise(gold)) is Reason.MATCH
    assert judge(normalise(gold), normalise(answer)) is Reason.MATCH


@pytest.mark.parametrize(("answer", "gold"), table("different by algebra"))
def test_near_misses_do_not_match(answer: str, gold: str) -> None:
    assert judge(normalise(answer), normalise(gold)) is not Reason.MATCH


@pytest.mark.parametrize(("answer", "gold"), table("not judged"))
def test_what_cannot_be_worked_out_is_not_judged(answer: str, gold: str) -> None:
    assert judge(normalise(answer), normalise(gold)) is Reason.UNPARSABLE


def test_sums_of_roots_agree_with_an_independent_evaluation() -> None:
    """a + b*sqrt(c) equals a' + b'*sqrt(c) exactly where the rationals are equal: sqrt(c) is irrational."""
    values = [Fraction(1, 2), Fraction(-2, 3), Fraction(3)]
    for left in values:
        for right in values:
            answer = rf"\frac{{{left.numerator}}}{{{left.denominator}}}+\sqrt{{7}}"
            gold = rf"\sqrt{{7}}-\frac{{{-right.numerator}}}{{{right.denominator}}}"
            assert (judge(normalise(answer), normalise(gold)) is Reason.MATCH) is (left == right)


# Spellings that models use and references do not: other scripts, colours, sizes, hedges between options.

SAME = [*table("other spellings"), ("3\u200b", "3")]
DIFFERENT = table("others in other spellings")
CHOSEN = ["Answer: C", "**Answer:** C", "**Answer**: C", "**Final Answer:** **C**", "Answer: C, since D is false"]
CHOSEN += ["Answer: C and I am sure", r"\boxed{C}", r"\boxed{\text{(C)}}", r"\boxed{C. 42}", r"\boxed{C}, so \boxed{C}"]
NOT_CHOSEN = [f"Answer: {said}" for said in ("C or D", "C/D", "C, D", "(C) or (D)", "C and D.")] + [r"\boxed{C or D}"]
NOT_CHOSEN += [r"\boxed{C, D}", r"\boxed{C} or \boxed{D}", r"\boxed{D} or \boxed{C}", "C or D"]


def graded(cases: list[Case]) -> list[bool]:
    with GradingPool(workers=1, time_limit=60) as pool:
        return [verdict.correct for verdict in pool.grade(cases)]


def test_other_spellings_of_an_answer_are_that_answer() -> None:
    verdicts = graded([Case(rf"\boxed{{{answer}}}", gold) for answer, gold in SAME])
    assert [pair for pair, correct in zip(SAME, verdicts, strict=True) if not correct] == []


def test_other_answers_in_those_spellings_are_other_answers() -> None:
    verdicts = graded([Case(rf"\boxed{{{answer}}}", gold) for answer, gold in DIFFERENT])
    assert [pair for pair, correct in zip(DIFFERENT, verdicts, strict=True) if correct] == []


def test_two_options_are_no_choice() -> None:
    assert graded([Case(text, "C", Kind.CHOICE) for text in CHOSEN]) == [True] * len(CHOSEN)
    for gold in "CD":
        assert graded([Case(text, gold, Kind.CHOICE) for text in NOT_CHOSEN]) == [False] * len(NOT_CHOSEN)


# Answers that look like the gold and are not it, beside others that do not look like it and are.


def reason(answer: str, gold: str) -> Reason:
    outcome = examine(Case(rf"\boxed{{{answer}}}", gold))
    return judge(outcome.answer, outcome.gold) if isinstance(outcome, Undecided) else outcome.reason


@pytest.mark.parametrize(("answer", "gold"), table("different"))
def test_other_answers_are_other_answers(answer: str, gold: str) -> None:
    assert reason(answer, gold) in (Reason.MISMATCH, Reason.UNPARSABLE)


@pytest.mark.parametrize(("answer", "gold"), table("equal"))
def test_the_same_answer_in_other_words(answer: str, gold: str) -> None:
    assert reason(answer, gold) is Reason.MATCH
