"""What a text commits to, and what it does not."""

import json
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.grading import Case, multiple_choice, statements
from evals.grading.extraction import extract_answer, extract_gold
from evals.grading.languages import TASK_WORDS, small_letters
from evals.grading.multiple_choice import choice_letter
from evals.grading.normalisation import normalise
from evals.grading.pool import Undecided, examine
from evals.grading.symbolic import judge
from evals.grading.verdict import Kind, Reason
from tests.unit.grading.cases import table

MARKED = [*table("marked"), (r"\boxed{4}" + " and so on" * 2_000, "4")]


@pytest.mark.parametrize(("text", "answer"), MARKED)
def test_marked_answers_are_found(text: str, answer: str) -> None:
    assert extract_answer(text, Kind.COMPLETION, truncated=False) == answer


@pytest.mark.parametrize(("text",), [*table("unmarked"), ("",)])
def test_unmarked_text_has_no_answer(text: str) -> None:
    assert extract_answer(text, Kind.COMPLETION, truncated=False) is Reason.NO_ANSWER


@pytest.mark.parametrize(("text", "answer"), table("stated"))
def test_the_last_statement_is_an_answer_where_a_benchmark_asks_for_it(text: str, answer: str) -> None:
    assert extract_answer(text, Kind.LAST_STATEMENT, truncated=False) == answer
    assert isinstance(extract_answer(text, Kind.LAST_STATEMENT, truncated=True), Reason)
    assert isinstance(extract_answer(text, Kind.COMPLETION, truncated=False), Reason)


def test_a_task_that_the_model_made_up_after_its_statement_does_not_count() -> None:
    text = "the total is 204\n\nQuestion: Ann has 3 cats and 4 dogs. How many?\nShe has 3 + 4 = 7.\n\nQuestion: 5 or 6?"
    assert extract_answer(text, Kind.LAST_STATEMENT, truncated=True) == "204"


@pytest.mark.parametrize(("text",), table("not stated"))
def test_a_sentence_that_states_no_value_is_no_answer(text: str) -> None:
    assert extract_answer(text, Kind.LAST_STATEMENT, truncated=False) is Reason.NO_ANSWER


@pytest.mark.parametrize(("text", "answer"), MARKED)
def test_a_mark_comes_before_every_statement(text: str, answer: str) -> None:
    assert extract_answer(f"{text}\nso it is 7.", Kind.COMPLETION, truncated=False) == extract_answer(
        f"{text}\nso it is 7.", Kind.LAST_STATEMENT, truncated=False
    )
    assert extract_answer(text, Kind.LAST_STATEMENT, truncated=False) == answer


def test_truncated_text_needs_a_complete_box() -> None:
    assert extract_answer("Answer: 20", Kind.COMPLETION, truncated=True) is Reason.TRUNCATED
    assert extract_answer(r"\boxed{20", Kind.COMPLETION, truncated=True) is Reason.TRUNCATED
    assert extract_answer(r"\boxed{204} and then", Kind.COMPLETION, truncated=True) == "204"
    assert extract_answer("the answer is B", Kind.CHOICE, truncated=True) is Reason.TRUNCATED


@pytest.mark.parametrize(("text", "answer"), table("sentences"))
def test_sentences_lead_up_to_their_answer(text: str, answer: str) -> None:
    assert extract_answer(text, Kind.ANSWER, truncated=False) == answer


@pytest.mark.parametrize(("text", "letter"), table("letters"))
def test_choice_letters(text: str, letter: str) -> None:
    expected = Reason.NO_ANSWER if letter == "none" else letter
    assert extract_answer(text, Kind.CHOICE, truncated=False) == expected


@pytest.mark.parametrize(("text",), table("chooses B"))
def test_an_option_is_chosen(text: str) -> None:
    assert extract_answer(text, Kind.CHOICE, truncated=False) == "B"


@pytest.mark.parametrize(("text",), table("chooses no B"))
def test_no_option_is_chosen(text: str) -> None:
    assert extract_answer(text, Kind.CHOICE, truncated=False) == "no_answer"


@pytest.mark.parametrize(("text",), table("given"))
def test_an_answer_is_given(text: str) -> None:
    assert examine(Case(text, "18")).correct  # type: ignore[union-attr]


@pytest.mark.parametrize(("text",), table("not given"))
def test_an_answer_that_is_denied_or_of_another_is_not_given(text: str) -> None:
    assert not getattr(examine(Case(text, "18")), "correct", False)


def test_the_end_of_a_long_text_is_enough_only_where_it_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Statements and hedges lie before, across and behind the place where the tail of the text begins."""
    words = "We look at the units and go on with the next line. "
    statements = ("the answer is B or C", "option A is wrong", "so we choose option D.", r"\boxed{E}")
    texts = [
        f"{words * 45}{one}. {words * count}{other}. {words * rest}"
        for one in statements
        for other in ("", *statements[:2])
        for count in (0, 12)
        for rest in (3, 19, 22, 40)
    ]
    hedged = "The answer is option B or option C. "
    texts += [hedged + (words * 50)[: 2000 - cut] for cut in range(0, len(hedged), 2)]
    letters = [choice_letter(text) for text in texts]
    monkeypatch.setattr(multiple_choice, "_TAIL", max(map(len, texts)))
    assert letters == [choice_letter(text) for text in texts]
    assert {"D", "E", None} == set(letters)


def test_each_rule_finds_what_its_pattern_finds() -> None:
    """No match begins elsewhere than where its rule looks for one."""
    cases = [json.loads(line) for line in (Path(__file__).parent / "cases.jsonl").read_text("utf-8").splitlines()]
    texts = [str(case["text"]) for case in cases if case["kind"] == "choice"]
    texts += [
        "\u0130\u0130 So the ANSWER KEY is C. \u0130 It CORRESPONDS TO option D!",
        "The correct choice (B).",
        "that (option D)",
        "So only B remains.",
        "Option B fits.",
        "The closest is B.",
        "Verdict: B",
        "\u6545\u9009C",
        "\uc815\ub2f5\uc740 B",
    ]
    found = Counter[int]()
    for text in ("".join(f"{one}\n" for one in texts), *texts):
        for number, rule in enumerate(statements._RULES):
            spans = [match.span() for match in rule.pattern.finditer(text)]
            assert spans == [match.span() for match in rule.finditer(text, small_letters(text), 0)]
            found[number] += len(spans)
    assert min(found.values()) > 0


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("5", "5"),
        (r"Long solution, so $n = \boxed{1,-2}.$", "1,-2"),
        (r"\boxed{p = -1 \text{ and } p = 2", r"p = -1 \text{ and } p = 2"),
        ("answer is 0.25 + 3", "0.25 + 3"),
        ("  ", ""),
        (r"\boxed{}", ""),
    ],
)
def test_golds(gold: str, answer: str) -> None:
    assert extract_gold(gold) == answer


@given(st.text(alphabet="ab {}\\$,.1", max_size=40), st.integers(0, 10**6))
def test_the_last_box_wins_over_any_text_before_it(noise: str, value: int) -> None:
    text = f"{noise}. Then I checked everything again and found\n\n \\boxed{{{value}}}"
    assert extract_answer(text, Kind.COMPLETION, truncated=False) == str(value)


@given(st.text(max_size=60))
def test_text_without_a_mark_never_has_an_answer(text: str) -> None:
    if "box" not in text and "nswer" not in text.lower():
        assert isinstance(extract_answer(text, Kind.COMPLETION, truncated=False), Reason)


_REPEATED = (
    "\\boxed{", "\\boxed{A} ", "\\boxed 1 ", "{", "}", "<answer>", "<answer>1", "<think>", "</think>", "Answer: ",
    "reAnswer: ",
    "The answer is A. ", "the answer is 1 ", "so C. ", "(A) ", "A, ", "Option B is correct. ", "####", "\nProblem 2:",
    "\n## Problem",
    "**", "$", "$1$ and ", "<|channel|>final<|message|>", "<|begin_of_box|>", "[INST]", "Antwort: ", "is ", "= ", " ",
    "\n",
    "B or ",
    "wait ", "**Answer**\n", "```python\n", "<|im_start|>", "1 ", "1 and ", "\\[1\\]", "10, ", "1.5 ", "x. ",
    "<think ", "<|think ", "<user>", "\nExample 2:", "\n**Problem 2** (", "\n第二题", "\nnew ", "\nuser", "**1** ",
    "__", "**!", "if it is so, the answer is A. ", "the wrong answer is A. ", "उत्तर 1 ", "उत्तर B ",
    "respuesta correcta es la ", "a answer ", "<|channel|>analysis<|message|>", "(A)", "1 million ", "\\angle A",
    "base 5 ", "ABC \\sim ",
)  # fmt: skip


@pytest.mark.parametrize("unit", _REPEATED)
@pytest.mark.parametrize("before", ["So x. ", "Answer: x "])
@pytest.mark.parametrize("kind", [Kind.COMPLETION, Kind.CHOICE])
def test_a_longer_text_takes_no_more_time_a_character(unit: str, before: str, kind: Kind) -> None:
    """Extraction has no limit on time: it runs in the calling process. Four times the length would take 16 times."""

    def seconds(length: int) -> float:
        text = before + unit * (length // len(unit))
        times = []
        for _ in range(3):
            start = time.process_time()
            extract_answer(text, kind, truncated=False)
            times.append(time.process_time() - start)
        return min(times)

    assert seconds(80_000) < 8 * seconds(20_000) + 0.05


def test_nested_and_unclosed_boxes_are_read_in_one_pass() -> None:
    for text in ("\\boxed{" * 20_000, "\\boxed{" * 20_000 + "5" + "}" * 20_000):
        start = time.process_time()
        extract_answer(text, Kind.CHOICE, truncated=False)
        extract_answer(text, Kind.COMPLETION, truncated=False)
        assert time.process_time() - start < 5


@given(st.sampled_from("abdknpqrtuvwxyz"), st.integers(1, 99), st.sampled_from(("text", "mathrm", "textbf")))
def test_a_letter_in_a_font_is_a_variable(letter: str, number: int, font: str) -> None:
    assert normalise(f"{number}\\{font}{{{letter}}}") == f"{number}{letter}"
    assert normalise(f"{number}\\{font}{{ {letter * 2} }}").replace(" ", "") == f"{number}{letter * 2}"


@given(
    st.sampled_from(sorted(TASK_WORDS)),
    st.integers(1, 20),
    st.sampled_from(("## {} {}", "**{} {}**", "{} {}:", "{} {})", "{} #{}:")),
)
def test_a_task_that_the_model_made_up_has_no_part(word: str, number: int, form: str) -> None:
    text = f"It is \\boxed{{18}}.\n\n{form.format(word.capitalize(), number)}\nand \\boxed{{7}}"
    assert extract_answer(text, Kind.COMPLETION, truncated=True) == "18"


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
