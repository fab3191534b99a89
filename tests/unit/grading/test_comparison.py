"""Answers with parts: compared part by part, in order where there is one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.grading.comparison import compare
from evals.grading.exact import decide
from evals.grading.normalisation import normalise

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
