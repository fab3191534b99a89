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
from evals.grading.symbolic import judge
from evals.grading.verdict import Reason

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


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        (r"\approx", "2,3", False),
        ("[0, 1)", "[0,1)", True),
        ("[0,1]", "[0,1)", False),
        ("(0,1)", "[0,1]", False),
        ("[1,2,3]", "(1,2,3)", True),
        (r"\pm 3", "3,-3", True),
        (r"1, \pm 2", r"\{1,2,-2\}", True),
        ("2021", r"\pm 2021", False),
        ("x=5", "5", True),
        ("5", "x=5", True),
        ("x=3, x=2", "x=2", False),
        ("x=2, x=3", "2,3", True),
        ("x=5, y=7", "(5,7)", True),
        ("x=7, y=5", "(5,7)", False),
        ("(x,y)=(5,7)", "(5,7)", True),
        ("a=4, -8, -10", "-10,-8,4", True),
        ("p=5,q=2;p=7,q=2", "(5,2),(7,2)", True),
        ("7 = 11", "x = 11", False),
        ("180+24 = 204", "204", True),
        (r"x = 1/3 \approx 11", "x=1/3", True),
        (r"x \approx 11", "11", True),
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{bmatrix}1 & 2 \\ 3 & 4\end{bmatrix}", True),
        (r"\begin{pmatrix}1&2\end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}", False),
        (r"[0,1)\cup(2,3]", r"(2,3]\cup[0,1)", True),
        ("((1,2),3)", "(1,(2,3))", False),
        (r"7 \pmod{11}", "7", True),
        (r"5 \text{ if } n \text{ is even}, 6 \text{ otherwise}", "5", False),
        (r"\text{204 or }\text{203}", "204", False),
        ("32, 349", "32349", False),
        ("W(x)=1orW(x)=-1", r"W(n) = 1 \text{ and } W(n) = -1", True),
        ("", "5", False),
    ],
)
def test_parts(answer: str, gold: str, expected: bool | None) -> None:
    assert same(answer, gold) is expected


# Numbers and words: what is decided without algebra is decided right.

INTEGERS = st.integers(-(10**12), 10**12)
SPELLINGS = (
    "{:d}",
    "{:,d}",
    " {:d} ",
    "${:d}$",
    "\\text{{{:d}}}",
    "{:d}.",
    "{:d}.0",
    "{:d}\\text{{ cm}}",
    "{:d}^\\circ",
    "\\${:d}",
    "{:d} miles",
    "\\left({:d}\\right)",
)


def same_of_exact(answer: str, gold: str) -> bool | None:
    return decide(normalise(answer), normalise(gold))


@given(INTEGERS, INTEGERS, st.sampled_from(SPELLINGS[:-1]), st.sampled_from(SPELLINGS[:-1]))
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


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        ("033", "33", True),
        ("1 000", "1000", True),
        (r"1\,000", "1000", True),
        ("10{,}000", "10000", True),
        ("1000,99", "1000.99", True),
        ("1.22", "1,22", True),
        ("12,10", "10,12", None),
        ("1{,}200", "1200", True),
        ("8.7e8", r"8.7 \times 10^{8}", True),
        ("1e-3", "0.001", True),
        ("918\\frac{1}{2}", "918.5", True),
        ("1 1/2", "3/2", True),
        (r"0.\overline{3}", "1/3", True),
        ("50\\%", "0.5", True),
        ("50\\%", "50", True),
        ("28\\%", "0.28\\%", False),
        ("0.3333", "1/3", False),
        ("0.333333", "1/3", True),
        ("0.010989", "1/91", False),
        ("2.232", "2.23", False),
        ("0.0666668", "0.066666793", True),
        ("0.0000001", "0.0000002", False),
        ("5", "5.001", False),
        ("3:4", r"\frac{3}{4}", True),
        ("1:00", "12:00", False),
        ("204_5", "204_{5}", True),
        ("204_6", "204_5", False),
        ("(C)", "C", True),
        (r"\textbf{(C)}\ 42", "C", True),
        ("(A), (B)", "A", None),
        ("Even", r"\text{even}", True),
        ("e", "E", None),
        ("x+1", "1+x", None),
    ],
)
def test_decisions(answer: str, gold: str, expected: bool | None) -> None:
    assert same_of_exact(answer, gold) is expected


# Algebra: equal expressions match, near misses do not, and what cannot be judged is said to be so.

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


# Spellings that models use and references do not: other scripts, colours, sizes, hedges between options.

SAME = [
    ("３", "3"),
    ("٣", "3"),
    ("०१२", "12"),
    ("3．5", "3.5"),
    ("－３", "-3"),
    ("（1，2）", "(1,2)"),
    ("3\u200b", "3"),
    ("2⁵", "32"),
    ("x⁻¹", r"\frac{1}{x}"),
    ("x²+y²", "x^2+y^2"),
    ("x₁₂", "x_{12}"),
    ("2√3", r"\sqrt{12}"),
    ("√(1+3)", "2"),
    (r"\color{red}7", "7"),
    (r"\textcolor{red}{\frac12}", r"\frac{1}{2}"),
    (r"\colorbox{yellow}{7}", "7"),
    (r"\underline{7}", "7"),
    (r"\large 7", "7"),
    (r"7^{\text{th}}", "7"),
    (r"3\colon4", "3:4"),
    (r"12{:}30", "12:30"),
    (r"\frac\pi4", "pi/4"),
    (r"\frac x2", r"\frac{x}{2}"),
    (r"\left\lbrace 1,2\right\rbrace", r"\{2,1\}"),
    (r"\begin{pmatrix}1&2\\[4pt]3&4\end{pmatrix}", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}"),
]
DIFFERENT = [
    ("３", "4"),
    ("2⁵", "25"),
    ("2⁵", "10"),
    ("x₁", "x"),
    (r"\color{red}7", "8"),
    (r"\textcolor{7}{8}", "7"),
    (r"8^{\text{th}}", "7"),
    (r"\text{4 is wrong}", "4"),
    (r"\frac\pi4", r"\frac{4}{\pi}"),
    (r"\begin{pmatrix}1&2\\[4pt]3&4\end{pmatrix}", r"\begin{pmatrix}1&2\\4&3\end{pmatrix}"),
]
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
