"""Answers that look like the gold and are not it, beside others that do not look like it and are."""

import pytest

from evals.grading import Case, Kind, Reason
from evals.grading.pool import Undecided, examine
from evals.grading.symbolic import judge

DIFFERENT = r"""
3 xy | 3
2\pi rh | 2\pi
\pi ab | \pi rh
\frac{1}{2} bh | \frac{1}{2} ac
\sqrt{2} ab | \sqrt{2}
3 abcd | 3
2:3:4 | 2:4:3
1:\sqrt{3}:2 | 1:2:\sqrt{3}
42\text{ is wrong} | 42
42\text{ or maybe not} | 42
\text{not }42 | 42
\text{not }0 | 0
\text{not }x=3 | x=3
\text{not }x=3 | 3
\text{not }x=3, 4 | x=3, 4
0 \text{ to } 100 | 100
42_{43} | 42
9.6_7 | 9.6
29_8 | 29
x' | x
f'(x) | f(x)
y'=2x | y=2x
26!' | 26!
\text{cat} | \text{act}
ABC | CAB
5:30\text{ p.m.} | 5:30\text{ a.m.}
e^{-1000} | 0
e^{-1000} | e^{-1001}
x+10^{-40} | x
(1+10^{-40})x | x
5\frac{dw}{dt}+2w=1 | \frac{dw}{dt}+2w=1
\frac{dw}{dq}+2w=1 | \frac{dw}{dt}+2w=1
\sqrt[4]{-16} | -2
\sqrt[3]{-8} | 1+i\sqrt{3}
|x|<1 | -1<x<2
|x|<1 | -1<y<1
2k\pi, k\in\mathbb{Z} | k\pi, k\in\mathbb{Z}
f(y)=y^2+1 | f(x)=x^2-1
f(y)=x^2+1 | f(x)=x^2+1
\text{a square} | a circle
(C) 42 | 43
0.1212... | \frac{1}{8}
-3 | -3,0
\frac{1}{3}E_{1}+\frac{2}{3}E_{2} | \frac{1}{3}E_{2}+\frac{2}{3}E_{1}
"""

EQUAL = r"""
3 xy | 3yx
2\pi r h | 2\pi rh
\frac{1}{2} bh | \frac{bh}{2}
125 miles | 125
12 \text{ students} | 12
9.8\,\mathrm{m\,s^{-2}} | 9.8
3x10^5 | 300000
0.(3) | \frac13
0.1(6) | \frac16
0.333... | \frac13
0.1666\ldots | \frac16
2.1212\dots | \frac{70}{33}
2:3:4 | 4:6:8
2:2\sqrt{3}:4 | 1:\sqrt{3}:2
7 = n | 7
5:30\text{ p.m.} | 5:30 PM
5:30\text{ PM} | 5:30
\sqrt[3]{-8} | -2
\sqrt[3]{2+\sqrt{5}}+\sqrt[3]{2-\sqrt{5}} | 1
|x|<1 | -1<x<1
|x|>1 | x<-1\text{ or }x>1
\left[\begin{array}{cc}1&0\\0&1\end{array}\right] | \begin{pmatrix}1&0\\0&1\end{pmatrix}
2k\pi, \quad k\in\mathbb{Z} | 2k\pi
2k\pi\ (k\in\mathbb{Z}) | 2k\pi
f(n)=2n+1 | f(x)=2x+1
1=\frac{dw}{dt}+2w | \frac{dw}{dt}+2w=1
\textbf{(C)}\ 42 | 42
\text{an ellipse} | ellipse
y'=2x | y'=x+x
42。 | 42
\frac{E_{1}+2E_{2}}{3} | \frac{1}{3} E_{1}+\frac{2}{3} E_{2}
\mathbf{74^\circ} | 74^\circ
\frac{60^\circ}{2} | 30
\sin{30^\circ} | \frac{1}{2}
\sin(30^{\circ}) | 0.5
204_5 | 204
"""


def pairs(table: str) -> list[list[str]]:
    return [line.split(" | ") for line in table.strip().splitlines()]


def reason(answer: str, gold: str) -> Reason:
    outcome = examine(Case(rf"\boxed{{{answer}}}", gold))
    return judge(outcome.answer, outcome.gold) if isinstance(outcome, Undecided) else outcome.reason


@pytest.mark.parametrize(("answer", "gold"), pairs(DIFFERENT))
def test_other_answers_are_other_answers(answer: str, gold: str) -> None:
    assert reason(answer, gold) in (Reason.MISMATCH, Reason.UNPARSABLE)


@pytest.mark.parametrize(("answer", "gold"), pairs(EQUAL))
def test_the_same_answer_in_other_words(answer: str, gold: str) -> None:
    assert reason(answer, gold) is Reason.MATCH


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("The answer must be C.", "C"),
        ("The correct option is **C**.", "C"),
        ("Therefore the correct choice would be (C).", "C"),
        ("The answer is therefore C", "C"),
        ('The answer is "C".', "C"),
        ("Thus, C is correct.", "C"),
        ("Hence (C) is the correct answer.", "C"),
        ("The option I choose is C", "C"),
        ("Answer: A because B fails", "A"),
        ("Answer: D, not C", "D"),
        ("C is wrong. Answer: B", "B"),
        ("Answer: C; D", None),
        ("Answer: C + D", None),
        ("Answer: A B C D", None),
        ("Answer: A, B, C, D", None),
        ("The answer I get is unclear", None),
        ("Answer: A triangle has three sides", None),
        ("Neither B nor C is correct.", None),
        ("If C is correct, we have a contradiction.", None),
        ("The answer is not C", None),
    ],
)
def test_letters_in_sentences(text: str, letter: str | None) -> None:
    assert getattr(examine(Case(text, "C", Kind.CHOICE)), "answer", "undecided") == letter


@pytest.mark.parametrize(
    ("text", "truncated", "expected"),
    [
        (r"so $\boxed 4", True, Reason.TRUNCATED),  # perhaps of 42
        (r"so $\boxed 4", False, Reason.MATCH),
        (r"so $\boxed 4$ and", True, Reason.MATCH),
        (r"<thinking>\boxed{4}</thinking> no idea", False, Reason.NO_ANSWER),
        (r"<|begin_of_thought|>\boxed{5}<|end_of_thought|>\boxed{4}", False, Reason.MATCH),
        (r"<thought>\boxed{4}", False, Reason.NO_ANSWER),
        ("Answer:\n4", False, Reason.MATCH),
        ("### Answer:\n\n$$\n4\n$$", False, Reason.MATCH),
        ("Answer: it is not 5, it is 4", False, Reason.MATCH),
        ("Answer: it is not 4", False, Reason.MISMATCH),
        ("Answer: I cannot say that it is 4", False, Reason.MISMATCH),
        ("The final answer is not $4$", False, Reason.MISMATCH),
        ("Answer:\n4", True, Reason.TRUNCATED),
        ("Answer:\n", False, Reason.NO_ANSWER),
        ('Put it on its own line after "Answer:".\nHmm, 4', False, Reason.UNPARSABLE),
    ],
)
def test_where_an_answer_stands(text: str, truncated: bool, expected: Reason) -> None:
    outcome = examine(Case(text, "4", truncated=truncated))
    found = judge(outcome.answer, outcome.gold) if isinstance(outcome, Undecided) else outcome.reason
    assert found is expected
