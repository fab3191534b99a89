"""Numbers and words: what is decided without algebra is decided right."""

from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from evals.grading.exact import decide
from evals.grading.normalisation import normalise

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


def same(answer: str, gold: str) -> bool | None:
    return decide(normalise(answer), normalise(gold))


@given(INTEGERS, INTEGERS, st.sampled_from(SPELLINGS[:-1]), st.sampled_from(SPELLINGS[:-1]))
def test_integers_in_any_spelling(left: int, right: int, spelling: str, other: str) -> None:
    assert same(spelling.format(left), other.format(left)) is True
    assume(left != right)
    assert same(spelling.format(left), other.format(right)) is False


@given(st.integers(-10_000, 10_000), st.integers(1, 10_000), st.integers(1, 50))
def test_fractions_agree_with_python(top: int, bottom: int, factor: int) -> None:
    slash, latex = f"{top * factor}/{bottom * factor}", rf"\dfrac{{{top}}}{{{bottom}}}"
    assert same(slash, latex) is True
    assert same(f"{top + 1}/{bottom}", latex) is False
    assert same(rf"-\frac{{{top}}}{{{bottom}}}", latex) is (top == 0)


@given(st.integers(1, 999), st.integers(2, 997))
def test_decimals_stand_for_a_fraction_only_if_long_and_correctly_rounded(top: int, bottom: int) -> None:
    exact = Fraction(top, bottom)
    rounded = (Decimal(top) / Decimal(bottom)).quantize(Decimal(1).scaleb(-9), ROUND_HALF_UP)
    digits = len(str(rounded).replace(".", "").lstrip("0"))
    expected = Fraction(rounded) == exact or digits >= 6
    assert same(str(rounded), f"{top}/{bottom}") is expected
    wrong = rounded + Decimal(2).scaleb(-9)
    assert same(str(wrong), f"{top}/{bottom}") is (Fraction(wrong) == exact)


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
    assert same(answer, gold) is expected
