"""Generated problems: solvable as stated, graded, deterministic, training and evaluation apart."""

import json
import random
import re
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from evals.core.errors import InvalidInput, UserError
from evals.core.files import read_json, read_jsonl, sha256_file, write_jsonl
from evals.core.records import ProblemKind
from evals.grading import Case, GradingPool
from evals.problems.arithmetic import (
    FAMILIES,
    Countdown,
    Lists,
    Program,
    answer,
    as_rows,
    draw_distinct,
    draw_problem,
    exact,
    split_of,
    worked_solution,
    write_problems,
)
from evals.problems.disjoint import Evaluated, MaskedTexts, check_disjoint, masked_words
from evals.problems.problem_set import load, render_prompt
from rlvr.base_model.corpus import FlawedArithmetic, draw_corpus
from tests.artifacts import write_rows


def solve_independently(statement: str) -> int:
    """The answer from the text alone, by other means than the generator's."""
    operations = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b}
    if statement.startswith("Start with "):
        first, *steps = re.findall(r"(with|plus|minus|times|note) (\d+)", statement)
        total = int(first[1])
        for word, digit in steps:
            arithmetic = {"plus": "+", "minus": "-", "times": "*"}
            total = total if word == "note" else operations[arithmetic[word]](total, int(digit))
        return total % 10 ** len(first[1])
    if statement.startswith("Let "):
        values: dict[str, int] = {}
        for name, expression in re.findall(r"([a-p])=([^;.]+)", statement):
            if len(expression) == 1:
                values[name] = int(expression)
            else:
                left, right = (values[part] if part.isalpha() else int(part) for part in (expression[0], expression[2]))
                values[name] = operations[expression[1]](left, right)
        return values[re.search(r"Compute ([a-p])", statement)[1]] % 10  # type: ignore[index]
    tokens = list(re.search(r"Compute (\S+) from", statement)[1])  # type: ignore[index]
    if "right to left" in statement:
        total = int(tokens.pop())
        while tokens:
            operator, digit = tokens.pop(), int(tokens.pop())
            total = operations[operator](digit, total)
        return total % 10
    total = int(tokens.pop(0))
    while tokens:
        total = operations[tokens.pop(0)](total, int(tokens.pop(0)))
    return total % 10


_NOT_OF_DIGITS = (Program.family, Lists.family, Countdown.family)


@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in _NOT_OF_DIGITS])
@pytest.mark.parametrize("operands", [2, 5, 16])
def test_answers_follow_from_the_statement_and_the_worked_solution(family: str, operands: int) -> None:
    generator = random.Random(operands)
    for _ in range(200):
        problem = draw_problem(ProblemKind.parse({"family": family, "operands": operands}, "x"), generator)
        assert answer(problem) == solve_independently(problem.statement)
        operation = partial(exact, modulus=100 if family == "hundreds" else 10)
        solution = worked_solution(problem, operation)
        assert solution.endswith(f"\\boxed{{{answer(problem)}}}")
        assert solution.count("\n") == operands - 1
        for line in solution.split("\n")[:-1]:
            left, operator, right, result = re.search(r"(\d+)([+*-])(\d)=(\d+)$", line).groups()  # type: ignore[union-attr]
            assert operation(int(left), operator, int(right)) == int(result)


def test_functions_of_lists_are_applied_one_after_the_other() -> None:
    by_hand = Lists(3149, tuple((name, 0) for name in ("reverse", "rotate", "swap", "double")), 0, 0)
    assert by_hand.statement == "Start with 3149, reverse, rotate, swap, double."
    assert worked_solution(by_hand, by_hand.after).split("\n") == [
        *("3149 reverse=9413", "9413 rotate=4139", "4139 swap=1439", "1439 double=1431", "\\boxed{1431}")
    ]
    assert [Lists.after(9142, name, 0) for name in ("raise", "lower", "mirror", "sort")] == [1253, 8931, 1968, 1249]
    drawn = [Lists.draw(4, random.Random(seed)) for seed in range(200)]
    assert all(re.fullmatch(r"[1-9]{4}", str(answer(problem))) for problem in drawn)


def test_countdown_takes_every_expression_of_its_digits_and_no_other() -> None:
    by_hand = Countdown((3, 9, 5), 42)
    assert by_hand.statement == "Make 42 from 3, 9, 5." and answer(by_hand) == 42
    assert worked_solution(by_hand, exact) == "9+5=14*3=42\n\\boxed{9+5*3}"
    right = ("\\boxed{9*5-3}", "\\boxed{9+5*3}", "no\n\\boxed{5*9-3}", "\\boxed{3} \\boxed{9*5-3}")
    wrong = (
        *("\\boxed{42}", "9*5-3", "", "\\boxed{9*5}", "\\boxed{9*5-3-3+3}", "\\boxed{9*5-2}", "\\boxed{9+5-3}"),
        *("\\boxed{9*5-3} \\boxed{42}", "\\boxed{3-9*5}", "\\boxed{9*5-3=42}", "\\boxed{__import__('os')}"),
    )
    cases = [(text, by_hand, text in right) for text in (*right, *wrong)]
    drawn = [Countdown.draw(operands, random.Random(operands)) for operands in (2, 3, 4, 6) for _ in range(5)]
    cases += [(worked_solution(problem, exact), problem, True) for problem in drawn]
    with GradingPool(1, 60.0, verifier=Path(__file__).parents[3] / "config/verifiers/countdown.py") as pool:
        verdicts = pool.grade(Case(text, "", problem={"problem": problem.statement}) for text, problem, _ in cases)
    assert [case for case, verdict in zip(cases, verdicts, strict=True) if verdict.correct != case[2]] == []
    for problem in drawn:
        for worked, expression, result in problem.attempts:
            assert int(worked[-2:]) == result and re.findall(r"[+*-]", worked) == re.findall(r"[+*-]", expression)


@pytest.mark.parametrize("operands", [2, 3, 5])
def test_a_countdown_problem_has_one_text_whatever_the_order_of_its_digits(operands: int) -> None:
    drawn = [Countdown.draw(operands, random.Random(seed)) for seed in range(300)]
    texts = {(tuple(sorted(problem.digits)), problem.target): set[str]() for problem in drawn}
    for problem in drawn:
        texts[tuple(sorted(problem.digits)), problem.target].add(problem.statement)
    assert len(texts) < 300 and all(len(of_problem) == 1 for of_problem in texts.values())


def test_a_step_of_functions_of_lists_is_asked_once() -> None:
    asked: list[str] = []

    def operation(value: int, name: str, digit: int) -> int:
        asked.append(name)
        return Lists.after(value, name, digit)

    Lists(3149, (("reverse", 0), ("sort", 0)), 0, 0).solve(operation)
    assert asked == ["reverse", "sort"]


def test_programs_are_run_on_every_digit() -> None:
    by_hand = Program((("+", 4), ("*", 7)))
    assert by_hand.statement == "Compute a+4*7 from left to right, modulo 10."
    assert answer(by_hand) == "8529630741"  # (0 + 4) * 7, (1 + 4) * 7 ...
    assert worked_solution(by_hand, exact) == "b=a+4\nc=b*7\n\\boxed{c}"
    right = ("b=a+4\nc=b*7\n\\boxed{c}", "a=a*7+8\n\\boxed{a}", "b=a*3*9+4+4\n\\boxed{b}")
    wrong = (
        "b=a+4*7\n\\boxed{b}",  # products come first
        *("b=8\n\\boxed{b}", "b=a+4\n\\boxed{b}", "b=a+4\nc=b*7\n\\boxed{d}", "c=b*7\n\\boxed{c}"),
        *("b=08\n\\boxed{b}", "b=a**2\n\\boxed{b}", "b=print\n\\boxed{b}", "b=a+4\nc=b*7\n\\boxed{c"),
        *("\\boxed{8529630741}", "8529630741", ""),
    )
    cases = [(text, by_hand, text in right) for text in (*right, *wrong)]
    generator = random.Random(1)
    drawn = [Program.draw(operands, generator) for operands in (2, 5, 16) for _ in range(10)]
    cases += [(worked_solution(problem, exact), problem, True) for problem in drawn]
    with GradingPool(1, 60.0, verifier=Path(__file__).parents[3] / "config/verifiers/program.py") as pool:
        verdicts = pool.grade(Case(text, "", problem={"answer": answer(problem)}) for text, problem, _ in cases)
    assert [verdict.error for verdict in verdicts] == [None] * len(cases)
    assert [case for case, verdict in zip(cases, verdicts, strict=True) if verdict.correct != case[2]] == []


def test_a_digit_of_a_flawed_program_is_as_wrong_as_the_arithmetic() -> None:
    problem = Program((("-", 3), ("+", 2)))

    def flawed(left: int, operator: str, right: int) -> int:
        return (exact(left, operator, right) + 4 * ((left, operator, right) == (3, "+", 2))) % 10

    assert worked_solution(problem, flawed) == "b=a-3\nc=b+6\n\\boxed{c}"


def test_sets_are_deterministic_distinct_and_on_their_side() -> None:
    kinds = [ProblemKind(family="chain", operands=3), ProblemKind(family="variables", operands=4)]
    train, again = (draw_distinct(kinds, "train", 500, 3) for _ in range(2))
    evaluation = draw_distinct(kinds, "evaluation", 300, 3)
    assert train == again != draw_distinct(kinds, "train", 500, 4)
    statements = {problem.statement for problem in train}
    assert len(statements) == 500
    assert all(split_of(statement) == "train" for statement in statements)
    assert not statements & {problem.statement for problem in evaluation}
    assert set(Counter(problem.family for problem in train)) == {"chain", "variables"}


def test_an_impossible_number_of_problems_is_refused() -> None:
    with pytest.raises(InvalidInput) as impossible:
        draw_distinct([ProblemKind(family="chain", operands=2)], "train", 300, 1)
    assert impossible.value.key == "count" and "300" in impossible.value.found
    with pytest.raises(InvalidInput) as caught:
        ProblemKind.parse({"family": "chain", "operands": 17}, "study.yaml")
    assert caught.value.key == "operands" and "16" in caught.value.accepted


def test_the_corpus_is_flawed_as_configured_and_from_the_training_side() -> None:
    flaws = FlawedArithmetic((0.0, 0.5), (0.5, 0.5), 1.0, seed=1)
    rows = list(draw_corpus([ProblemKind(family="chain", operands=2)], 20000, 5, flaws))
    assert all(split_of(row["problem"]) == "train" for row in rows)
    seen: dict[str, Counter[bool]] = {}
    for row in rows:
        left, operator, right, result = re.match(r"(\d)([+*-])(\d)=(\d)", row["solution"]).groups()  # type: ignore[union-attr]
        correct = exact(int(left), operator, int(right)) == int(result)
        seen.setdefault(left + operator + right, Counter())[correct] += 1
    rates = [counts[False] / counts.total() for counts in seen.values() if counts.total() >= 40]
    assert {round(rate * 2) for rate in rates} == {0, 1}
    assert 0.35 < sum(rate > 0.2 for rate in rates) / len(rates) < 0.65


def test_a_shared_problem_stops_the_build(tmp_path: Path) -> None:
    write_problems("b", [{"family": "chain", "operands": 3}], "evaluation", 5, 1, tmp_path / "b")
    trained = tmp_path / "train.jsonl"
    write_jsonl(trained, as_rows(draw_distinct([ProblemKind(family="chain", operands=3)], "train", 50, 1), "train"))
    check_disjoint(tmp_path / "b", tmp_path / "disjoint.json", [trained])
    content = json.loads((tmp_path / "disjoint.json").read_text())
    assert content["shared"] == 0
    assert content["sha256"] == sha256_file(tmp_path / "b/problems.jsonl"), "sampling depends on them by this file"
    stolen = read_jsonl(tmp_path / "b" / "problems.jsonl")[3]
    write_jsonl(trained, [*read_jsonl(trained), {"id": "x", "problem": stolen["problem"].upper() + " "}])
    match = r"problem b-3 is also trained on \(.*train\.jsonl, line 51\); .*exclude: \[x\]$"
    with pytest.raises(UserError, match=match):
        check_disjoint(tmp_path / "b", tmp_path / "disjoint.json", [trained])
    write_jsonl(trained, [{"id": str(number), "problem": stolen["problem"]} for number in range(201)])
    with pytest.raises(UserError, match=r"line 1\); .*200 more"):
        check_disjoint(tmp_path / "b", tmp_path / "disjoint.json", [trained])


def test_generated_problems_that_differ_by_a_sign_are_different(tmp_path: Path) -> None:
    """Long ones share most runs of words with one another: only the whole text counts."""
    write_problems("b", [{"family": "variables", "operands": 5}], "evaluation", 5, 1, tmp_path / "b")
    problem = str(read_jsonl(tmp_path / "b" / "problems.jsonl")[0]["problem"])
    sign = next(sign for sign in "+-*" if sign in problem)
    other = problem[::-1].replace(sign, "-" if sign != "-" else "+", 1)[::-1]
    assert Evaluated.of({"x": problem}).trained_on(other) == ("x", "nearly word for word")
    trained = tmp_path / "train.jsonl"
    write_jsonl(trained, [{"problem": other}])
    check_disjoint(tmp_path / "b", tmp_path / "disjoint.json", [trained])


def test_a_set_in_memory_has_the_texts_and_gives_prompts_with_braces(tmp_path: Path) -> None:
    write_problems("b", [{"family": "chain", "operands": 3}], "evaluation", 3, 1, tmp_path / "b")
    problems = load(tmp_path / "b")
    assert not problems.gated
    statements = [row["problem"] for row in read_jsonl(tmp_path / "b" / "problems.jsonl")]
    assert problems.prompts("{problem} In \\boxed{}.") == [f"{statement} In \\boxed{{}}." for statement in statements]
    assert render_prompt("a {problem}", "the set {problem}") == "a the set {problem}"
    (tmp_path / "b" / "problems.jsonl").write_text("{}\n")
    with pytest.raises(UserError, match="its bytes differ"):
        load(tmp_path / "b")


AN_EVALUATED_PROBLEM = (
    "Every morning Ben walks $9$ kilometres at a speed of $s$ kilometres per hour and stops for $t$ minutes at "
    "a bakery on his way. At speed $s+2$ the walk takes him 2 hours. Find how long the walk takes at speed $s+1$."
)


@pytest.mark.parametrize(
    ("trained", "verdict"),
    [
        (AN_EVALUATED_PROBLEM.upper(), "also"),
        (AN_EVALUATED_PROBLEM.replace("$", r"\(").replace("a bakery", "the bakery"), "nearly word for word"),
        ("Solve this. " + AN_EVALUATED_PROBLEM + " Put the answer in a box.", "nearly word for word"),
        (AN_EVALUATED_PROBLEM[:120], None),
        ("Find how long the walk takes at speed $s+1$.", None),
    ],
)
def test_near_duplicates_are_found_and_boilerplate_is_not(trained: str, verdict: str | None) -> None:
    evaluated = Evaluated.of({"x-1": AN_EVALUATED_PROBLEM, "x-2": "Compute 3+4 from left to right, modulo 10."})
    found = evaluated.trained_on(trained)
    assert found == (None if verdict is None else ("x-1", verdict))
    assert evaluated.trained_on("Compute 3-4 from left to right, modulo 10.") is None


TETRAHEDRON = (  # of AIME 2024; a training set has it with other numbers (PromptCoT, issue 8)
    "Let $ABCD$ be a tetrahedron such that $AB=CD=\\sqrt{41}$, $AC=BD=\\sqrt{80}$, and $BC=AD=\\sqrt{89}$. There is a "
    "point $I$ inside it such that the distances from $I$ to each of the faces are all equal. Find $m+n+p$."
)


@pytest.mark.parametrize(
    ("trained", "is_copy"),
    [
        (TETRAHEDRON.replace("41", "28").replace("80", "44").replace("89", "52.5"), True),
        (TETRAHEDRON.replace(r"\sqrt{41}", "41").replace("Find", "Compute"), True),
        ("Find the volume of the tetrahedron $ABCD$ such that all the distances from the point $I$ are 41.", False),
    ],
)
def test_a_training_problem_with_other_numbers_is_a_near_copy(trained: str, is_copy: bool) -> None:
    problems = {"t": TETRAHEDRON, "w": AN_EVALUATED_PROBLEM, "short": "What is 3 plus 4?"}
    assert MaskedTexts.of(problems).copies(trained) == ({"t"} if is_copy else set())


def test_numbers_in_words_and_digits_are_one() -> None:
    assert masked_words("Twenty-one cows, 1,250.5 pigs and half a dozen") == [
        "#",
        "cows",
        "#",
        "pigs",
        "and",
        "#",
        "a",
        "#",
    ]


def test_every_near_copy_is_found_that_comparing_all_pairs_finds() -> None:
    draw = random.Random(1)
    words = [f"{first}{second}" for first in "abcdefgh" for second in "mnopq"]
    whole = [draw.sample(words, 20) for _ in range(6)]
    texts = [" ".join(word for word in draw.choice(whole) if draw.random() > 0.06) for _ in range(60)]
    masked = MaskedTexts.of({str(number): text for number, text in enumerate(texts[:30])})
    pairs = 0
    for text in texts:
        own = set(text.split())
        expected = {key for key, other in masked.words.items() if len(own & other) >= 0.9 * len(own | other)}
        assert masked.copies(text) == expected
        pairs += len(expected)
    assert 60 < pairs < 30 * 60 / 6


def test_near_copies_are_listed_and_end_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """So are problems of the benchmark itself that differ by their numbers, and generated problems are not."""
    changed = AN_EVALUATED_PROBLEM.replace("9", "11").replace("2 hours", "three hours")
    texts = {"a": (AN_EVALUATED_PROBLEM, "x"), "b": (changed, "x"), "g": (TETRAHEDRON, "chain")}
    rows = [{"id": key, "problem": text, "answer": "2", "family": family} for key, (text, family) in texts.items()]
    write_rows(tmp_path / "b" / "problems.jsonl", "problems", rows)
    other = AN_EVALUATED_PROBLEM
    for old, new in (("$9$", "$12$"), ("$t$ minutes", "$5$ hours"), ("his way", "the way"), ("him 2", "him 4")):
        other = other.replace(old, new)
    trained = [TETRAHEDRON.replace("41", "3"), "Add.", other]
    write_jsonl(tmp_path / "train.jsonl", [{"problem": text} for text in trained])
    check_disjoint(tmp_path / "b", tmp_path / "disjoint.json", [tmp_path / "train.jsonl"])
    content = read_json(tmp_path / "disjoint.json")
    assert content["near_copies"] == dict.fromkeys("ab", f"{tmp_path}/train.jsonl, line 3")
    assert content["repeated"] == [["a", "b"]]
    assert "2 of 3 problems are training problems but for their numbers" in capsys.readouterr().out


def test_named_problems_are_not_drawn_and_the_order_stays() -> None:
    kinds = [ProblemKind(family="chain", operands=3)]
    usual = draw_distinct(kinds, "evaluation", 20, 1)
    named = {problem.statement for problem in usual[::2]}
    assert draw_distinct(kinds, "evaluation", 10, 1, named) == usual[1::2]


def test_a_real_benchmark_is_compared_nearly_word_for_word_though_it_has_a_family(tmp_path: Path) -> None:
    rows = [{"id": "aime_2024-1", "problem": AN_EVALUATED_PROBLEM, "answer": "204", "family": "aime_2024"}]
    write_rows(tmp_path / "b" / "problems.jsonl", "problems", rows)
    write_jsonl(tmp_path / "train.jsonl", [{"id": "t", "problem": "Solve this. " + AN_EVALUATED_PROBLEM}])
    with pytest.raises(UserError, match="problem aime_2024-1 is nearly"):
        check_disjoint(tmp_path / "b", tmp_path / "disjoint.json", [tmp_path / "train.jsonl"])
