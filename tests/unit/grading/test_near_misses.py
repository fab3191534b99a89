"""Answers that look like the gold and are not it, beside others that do not look like it and are."""

import pytest

from evals.grading import Case, Kind, Reason
from evals.grading.pool import Undecided, examine
from evals.grading.symbolic import judge

DIFFERENT = r"""
x=2\text{ (local min)} | x=2\text{ (local max)}
30\text{ feet higher} | 30\text{ feet deeper}
25\%\text{ markup} | 25\%\text{ discount}
\text{between }2\text{ and }5\text{ exclusive} | \text{between }2\text{ and }5\text{ inclusive}
2, 500, 4, 750 | 2,500, 4,750
1,200, 3 | 1, 200, 3
\$45.03 | \$3\text{ and }45\text{ cents}
2\text{ quarters and }3\text{ dimes} | 3 quarters, 2 dimes
\text{quotient }5\text{, remainder }17 | 17\text{ R }5
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
6\text{ feet }5\text{ inches} | 5\text{ feet }6\text{ inches}
3\text{ hours }20\text{ minutes} | 2\text{ hours }30\text{ minutes}
5\text{ m }20\text{ cm} | 2\text{ m }50\text{ cm}
3 R 12 | 12 R 3
36 R 1 | 12 R 3
3\text{ R }12 | 12\text{ R }3
36 | 12\text{ remainder }3
10\text{ m west} | 10\text{ m east}
5\%\text{ decrease} | 5\%\text{ increase}
x=3\text{ minimum} | x=3\text{ maximum}
5\text{ losses} | 5\text{ wins}
5\text{ years younger} | 5\text{ years older}
5\text{ minutes early} | 5\text{ minutes late}
3\text{ units down} | 3\text{ units up}
150 | 2 hours 30 minutes
2.5 | 2 hours 30 minutes
30 | 5 ft 6 in
4 lb 3 oz | 3 lb 4 oz
2020 | 2024-03-01
3/1/2023 | 03/01/2024
x>0 \text{ for some } x | x>0 \text{ for all } x
20 dollars 5 cents | 5 dollars 20 cents
10 m south | 10 m north
2\text{ weeks }3\text{ days} | 3\text{ weeks }2\text{ days}
5 x | 5
5x | 5
5 n | 5
5 ab | 5
5m | 5
5 m + 1 | 5
5/m | 5
5 km^2 x | 5
6 m/s | 5
5 x | 5 m
5 | 5m
5k | 5
2\pi | 2
5 a/b | 5
5 i | 5
5e | 5
5 e | 5
5 x/s | 5
5 | 5x
1 | m/s
5! | 5
0, 1, 2 | 1,000, 2,000
6, 12, 345, 789 | 12,345, 6,789
1,000 | 1,000, 2,000
1,200 | 1,200 and 3,400
0100, 1200 | (0,100), (1,200)
1, 2, 0 | 1,000, 2,000
1, 0, 2 | 1,000,000, 2
\frac{1}{f(3)} | f^{-1}(3)
(5!)! | 5!!
((2n-1)!)! | (2n-1)!!
\vec a\times\vec b | \vec a\cdot\vec b
\mathbf{a}\times\mathbf{b} | \mathbf{a}\cdot\mathbf{b}
\vec{b}\times\vec{a} | \vec{a}\times\vec{b}
a=c | a=b=c
12\text{ if the answer is not }13 | 12
5\text{ twelfths} | 5
5\text{ twos} | 5
20, 1/2 | 20\frac12
18 | x>18
> 18 | 18
< 18 | x>18
\ge 18 | x>18
P(4,3) | (3,4)
\mathbb{R}\setminus(-\infty,2) | (2,\infty)
c<b<a | a<b<c
c>a>b | a<b<c
a\in[0;1] | 0<a<1
x(x+1) | x^2
f(3)=5 | f(2)=5
\Pr(X=1)=\frac13 | \frac12
15 | 6!!
5\text{ elevenths} | 5
5\text{ twenties} | 5
5\text{ square root} | 5
5\text{ remainder} | 5
5\text{ in debt} | 5
5\text{ with remainder two} | 5
5\text{ basis points} | 5
5\text{ per mille} | 5
5\text{ recurring} | 5
5\text{ times itself} | 5
5\text{ imaginary} | 5
5\text{ short} | 5
5\text{ tops} | 5
"""

EQUAL = r"""
2\frac14\text{ hours} | 2 hours 15 minutes
\text{quotient }17\text{, remainder }5 | 17\text{ R }5
3\text{ quarters and }2\text{ dimes} | 3 quarters, 2 dimes
6'\,2'' | 6\text{ ft }2\text{ in}
\$3.45 | \$3\text{ and }45\text{ cents}
3 dollars and 45 cents | \$3\text{ and }45\text{ cents}
20\text{ and }\frac{1}{3} | \frac{61}{3}
2,500, 4,750 | 4750, 2500
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
2\text{ hours }30\text{ minutes} | 2 hours 30 minutes
2.5\text{ hours} | 2 hours 30 minutes
150\text{ minutes} | 2 hours 30 minutes
2\text{ h }30\text{ min} | 2 hours and 30 minutes
66\text{ inches} | 5\text{ feet }6\text{ inches}
5'6" | 5\text{ feet }6\text{ inches}
5\text{ feet, }6\text{ inches} | 5\text{ ft }6\text{ in}
2.5\text{ m} | 2\text{ m }50\text{ cm}
12\text{ remainder }3 | 12\text{ R }3
12 r 3 | 12 R 3
12R3 | 12 R 3
10\text{ m} | 10\text{ m east}
10\text{ meters east} | 10\text{ m east}
10 | 10\text{ m}
5\% | 5\%\text{ increase}
2024-3-1 | 2024-03-01
3\text{ pounds }4\text{ ounces} | 3 lb 4 oz
3.20 | \$3.20
5 | 5\text{ wins}
3\text{ boys, }2\text{ girls} | 3\text{ boys and }2\text{ girls}
6ab | 2 a 3 b
12\text{ kids} | 12\text{ students}
5 J/K | 5
5 kg m/s | 5
5 sec | 5
2000, 1000 | 1,000, 2,000
1200, 3400 | \$1,200, \$3,400
1,200 and 3,400 | 1200, 3400
6789, 12345 | 12,345, 6,789
1000000, 2000 | 1,000,000, 2,000
(1000, 2000) | (1,000, 2,000)
\{2000,1000\} | \{1,000, 2,000\}
(1, 200), (0, 100) | (0,100), (1,200)
2, 1234.5 | 1,234.5, 2
1,2,345 | 1, 2, 345
3,2,1 | 1, 2, 3
1000; 2000 | 1,000; 2,000
\pm 1000 | -1,000, 1,000
x=1000, y=2000 | x=1,000, y=2,000
f^{-1}(3) | f^{-1}(3)
15 | 5!!
48 | 6!!
(2n-1)!! | \frac{(2n)!}{2^n n!}
\vec a\times\vec b | \vec{a}\times\vec{b}
c=b=a | a=b=c
20 and 1/2 | 20\frac12
3 and 1/2 | 3,\frac12
> 18 | x>18
> 18 | > 18
P(3,4) | (3,4)
(3,4) | P(3,4)
\mathbb{R}\setminus(-\infty,2] | (2,\infty)
c>b>a | a<b<c
1>a>0 | 0<a<1
2x(x) | 2x^2
a(a) | a^2
5 | f(2)=5
\frac12 | \Pr(X=1)=\frac12
P(X=1)=\frac12 | \frac12
\emph{6} | 6
\mathbf{i}-2\mathbf{j} | (1,-2)
5\text{ square meters} | 5
5\text{ times} | 5
5\text{ cups in total} | 5
5\text{ squares} | 5
5\text{ points each} | 5
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
