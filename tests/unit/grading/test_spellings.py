"""Spellings that models use and references do not: other scripts, colours, sizes, hedges between options."""

from evals.grading import Case, GradingPool, Kind

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
CHOSEN += [
    "Answer: C and I am sure",
    r"\boxed{C}",
    r"\boxed{\text{(C)}}",
    r"\boxed{C. 42}",
    r"\boxed{C} and again \boxed{C}",
]
NOT_CHOSEN = [
    "Answer: C or D",
    "Answer: C/D",
    "Answer: C, D",
    "Answer: (C) or (D)",
    "Answer: C and D.",
    r"\boxed{C or D}",
]
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
