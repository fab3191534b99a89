"""Algebra: equal expressions match, near misses do not, and what cannot be judged is said to be so."""

from fractions import Fraction

import pytest

from evals.grading.normalisation import normalise
from evals.grading.symbolic import judge
from evals.grading.verdict import Reason

EQUAL = [
    (r"\frac{\sqrt{3}}{3}", r"\frac{1}{\sqrt{3}}"),
    (r"\sqrt{3+2\sqrt{2}}", r"1+\sqrt{2}"),
    (r"3\ln 2", r"\log 8"),
    (r"e^{i\pi/3}", r"\frac{1}{2}+\frac{\sqrt{3}}{2}i"),
    ("2**(1/4)", r"\sqrt{\sqrt{2}}"),
    (r"\sec^2(y)", r"\tan^2(y)+1"),
    (r"\lceil n/2 \rceil", r"\lfloor (n+1)/2 \rfloor"),
    (r"\sum_{k=1}^{n} k", r"\frac{n(n+1)}{2}"),
    (r"\binom{n}{2}", r"\frac{n(n-1)}{2}"),
    (r"\binom{5}{2}\binom{4}{2}", "60"),
    (r"\cos 15^\circ", r"\frac{\sqrt{6}+\sqrt{2}}{4}"),
    ("x^2/16 + y^2/12 = 1/4", "x^2/4 + y^2/3 = 1"),
    (r"-2\le x\le 7", "[-2,7]"),
    (r"x<2 \text{ or } x>3", r"(-\infty,2)\cup(3,\infty)"),
    (r"x>2 \text{ and } x<3", "(2,3)"),
    ("(0,1)", "0<f(x)<1"),
    (r"\pi", "3.1415927"),
    (r"2^{2^{2^{2^2}}}", "2^{65536}"),
    (r"2024\cdot 2023!", "2024!"),
    (r"\sqrt{a}\sqrt{b}", r"\sqrt{ab}"),
    (r"\{x \mid x > 2\}", r"(2,\infty)"),
    (r"3\frac{1}{2}\sqrt{2}", r"\frac{7\sqrt{2}}{2}"),
]

UNEQUAL = [
    (r"\frac{1}{2006!}", r"\frac{1}{2004!}"),
    (r"\frac{1}{2^{98}}", r"\frac{1}{2^{99}}"),
    (r"50-\frac{50}{2^{101}}", r"50\left(1-\frac{1}{2^{101}-1}\right)"),
    (r"\sqrt{2}+10^{-20}", r"\sqrt{2}"),
    ("3.1415926", r"\pi"),
    ("3.14", r"\pi"),
    (r"1+\frac{1}{e}", r"1-\frac{1}{e}"),
    ("2(3)", "5"),
    (r"\binom{5}{2}\binom{4}{2}", "16"),
    (r"\sqrt{x^2}", "x"),
    (r"\lfloor x \rfloor", r"\lceil x \rceil"),
    (r"\frac{d!}{3k(d-k)!}", r"\frac{d!}{2k(d-k)!}"),
    (r"F_n = \sum_{k=0}^{n-2} F_k F_{n-k-2}", r"F_n = \sum_{k=0}^{n-1} F_k F_{n-k-1}"),
    ("x^2+y^2=4", "2x^2+2y^2=4"),
    ("1", "2x + z = 1"),
    ("x>-1", "x<1"),
    (r"x\neq 2", "2"),
    ("n", "n+1"),
]

UNJUDGED = [
    (r"10^{10^{10}}", "42"),
    ("1000000000!", "42"),
    ("((10!)!)!", "42"),
    (r"\frac{0}{0}", "0"),
    ("2 3", "6"),
    ("a.b @ c", "1"),
]


@pytest.mark.parametrize(("answer", "gold"), EQUAL)
def test_equal_expressions_match_in_both_directions(answer: str, gold: str) -> None:
    assert judge(normalise(answer), normalise(gold)) is Reason.MATCH
    assert judge(normalise(gold), normalise(answer)) is Reason.MATCH


@pytest.mark.parametrize(("answer", "gold"), UNEQUAL)
def test_near_misses_do_not_match(answer: str, gold: str) -> None:
    assert judge(normalise(answer), normalise(gold)) is not Reason.MATCH


@pytest.mark.parametrize(("answer", "gold"), UNJUDGED)
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
