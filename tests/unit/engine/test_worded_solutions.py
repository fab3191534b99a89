"""Worked solutions in words: what they say, what decides their answer, and what says nothing about it."""

import random
import re
from collections import Counter, defaultdict

import pytest

from evals.core.config.base_models import Corpus, Searching, Skipping, Wording
from evals.core.errors import InvalidInput
from evals.core.records import ProblemKind
from evals.problems.arithmetic import LIST_FUNCTIONS, Lists, Worded, answer, exact, split_of
from rlvr.base_model import worded_solutions
from rlvr.base_model.corpus import FlawedArithmetic, draw_corpus
from rlvr.base_model.train import UNKNOWN, build_word_tokenizer
from rlvr.base_model.worded_solutions import LARGEST_ERROR_RATE, MANNERS, WAYS, WordedSolutions

SETTINGS = {
    "way_shares": [0.4, 0.2, 0.2, 0.2],
    "manner_shares": [0.4, 0.3, 0.3],
    "manner_factors": [0.5, 1.0, 2.0],
    "reliable_error_rate": 0.1,
    "unreliable_error_rate": 0.4,
    "guess_error_rate": 0.6,
    "usual_share": 0.4,
    "distraction_rate": 0.3,
    "remark_share": 0.25,
}
KINDS = [ProblemKind(family="worded", operands=3), ProblemKind(family="worded", operands=4)]
OPERATORS = {"plus": "+", "minus": "-", "times": "*"}
WAY_OF = {name: way for way, names in WAYS.items() for name in names}
MANNER_OF = {name: manner for manner, names in MANNERS.items() for name in names}
STEP = re.compile(rf"(\d) (plus|minus|times) (\d) ({'|'.join(MANNER_OF)}) ({'|'.join(WAY_OF)}) ([a-z]+) (\d)\.")


def corpus(count: int, **changes: object) -> list[dict[str, str]]:
    wording = Wording.parse({**SETTINGS, **changes}, "x")
    return list(draw_corpus(KINDS, count, 1, FlawedArithmetic((0.2,), (1.0,), 0.5, 1), wording))


def steps_of(solution: str) -> list[tuple[int, str, int, int, str, str]]:
    """Left digit, operator, right digit, result, way and manner of every step."""
    return [
        (int(left), OPERATORS[operator], int(right), int(result), WAY_OF[way], MANNER_OF[manner])
        for left, operator, right, manner, way, _, result in STEP.findall(solution)
    ]


def test_solutions_follow_their_problem_and_box_what_their_last_step_gives() -> None:
    rows = corpus(500)
    assert rows == corpus(500)
    assert all(split_of(row["problem"]) == "train" for row in rows)
    for row in rows:
        value, *items = re.findall(r"(?:with|plus|minus|times|note) \d", row["problem"])
        value, steps = int(value[-1]), iter(steps_of(row["solution"]))
        for word, digit in (item.split() for item in items):
            if word == "note" and re.search(rf"note {digit}\b", row["solution"]):
                continue
            left, operator, right, result, _, _ = next(steps)
            assert (left, operator, right) == (value, OPERATORS.get(word, "+"), int(digit))
            value = result
        assert next(steps, None) is None
        assert row["solution"].endswith(f" \\boxed{{{value}}}.")


def test_without_mistakes_every_solution_is_correct() -> None:
    wording = Wording.parse(
        {
            **SETTINGS,
            "reliable_error_rate": 0,
            "unreliable_error_rate": 0,
            "guess_error_rate": 0,
            "distraction_rate": 0,
        },
        "x",
    )
    writer, generator = WordedSolutions(wording, lambda a, operator, b, *_: exact(a, operator, b)), random.Random(1)
    for _ in range(200):
        problem = Worded.draw(4, generator)
        assert f"\\boxed{{{answer(problem)}}}" in writer.write(problem, generator)


def test_each_way_fails_as_often_as_configured_for_each_operator_and_manner() -> None:
    failures: dict[tuple[str, bool, str], Counter[bool]] = defaultdict(Counter)
    for row in corpus(12000):
        for left, operator, right, result, way, manner in steps_of(row["solution"]):
            failures[way, operator == "*", manner][exact(left, operator, right) != result] += 1
    rates = {key: counts[True] / counts.total() for key, counts in failures.items()}
    expected = {("table", True): 0.1, ("table", False): 0.4, ("fingers", True): 0.4, ("fingers", False): 0.1}
    expected |= {(way, times): rate for way, rate in (("guess", 0.6), ("memory", 0.2)) for times in (True, False)}
    factors = {"careful": 0.5, "plain": 1.0, "hasty": 2.0}
    assert rates == pytest.approx(
        {
            (*key, manner): min(LARGEST_ERROR_RATE, rate * factor)
            for key, rate in expected.items()
            for manner, factor in factors.items()
        },
        abs=0.06,
    )


def test_a_wording_is_the_usual_one_as_often_as_configured() -> None:
    rows = corpus(3000, usual_share=0.8)
    verbs = Counter(match.group(6) for row in rows for match in STEP.finditer(row["solution"]))
    assert verbs["gives"] / verbs.total() == pytest.approx(0.8, abs=0.02)
    assert len({verb for verb, count in verbs.items() if count / verbs.total() == pytest.approx(0.05, abs=0.02)}) == 4


def test_wordings_say_nothing_about_the_answer() -> None:
    """Right and wrong solutions, and each digit in the box, go with every wording equally often."""
    outcomes: dict[str, Counter[bool]] = defaultdict(Counter)
    rows = corpus(8000)
    for row in rows:
        steps = steps_of(row["solution"])
        correct = all(exact(*step[:3]) == step[3] for step in steps)
        lists = ("OPENINGS", "CONCLUSIONS")
        phrases = [phrase for name in lists for phrase in getattr(worded_solutions, name) if phrase in row["solution"]]
        verbs = {match.group(6) for match in STEP.finditer(row["solution"])}
        for phrase in {*phrases, *(verbs if len(verbs) == 1 else ())}:
            outcomes[phrase][correct] += 1
    overall = sum((counts for counts in outcomes.values()), Counter())
    share = overall[True] / overall.total()
    assert len(outcomes) == 4 + 5 + 5
    for counts in outcomes.values():
        assert abs(counts[True] / counts.total() - share) < 4.5 * (share * (1 - share) / counts.total()) ** 0.5


def test_names_of_a_way_and_of_a_manner_are_equally_reliable() -> None:
    failures: dict[str, Counter[bool]] = defaultdict(Counter)
    for row in corpus(16000):
        for left, word, right, manner, way, _, result in STEP.findall(row["solution"]):
            for name in (manner, way):
                failures[name][exact(int(left), OPERATORS[word], int(right)) != int(result)] += 1
    for names in (*WAYS.values(), *MANNERS.values()):
        rates = [failures[name][True] / failures[name].total() for name in names]
        assert max(rates) - min(rates) < 0.04


def test_the_word_tokenizer_gives_texts_back_and_knows_every_problem() -> None:
    rows = corpus(2000)
    texts = [text for row in rows for text in (row["problem"] + "\n", row["solution"])]
    tokenizer = build_word_tokenizer(texts)
    for text in texts[:200]:
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    unseen = Worded.draw(8, random.Random(5)).statement + "\n"
    assert UNKNOWN not in tokenizer.convert_ids_to_tokens(tokenizer(unseen)["input_ids"])
    assert len(tokenizer) < 300
    assert tokenizer("zebra")["input_ids"] == [tokenizer.unk_token_id]


@pytest.mark.parametrize(("key", "shares"), [("way_shares", [0.5, 0.2, 0.2, 0.2]), ("manner_shares", [0.5, 0.2, 0.2])])
def test_shares_that_do_not_sum_to_one_are_refused(key: str, shares: list[float]) -> None:
    with pytest.raises(InvalidInput) as caught:
        Wording.parse({**SETTINGS, key: shares}, "study.yaml")
    assert caught.value.key == key and f"{len(shares)} shares" in caught.value.accepted


def skipping_corpus(shares: list[float], count: int = 300, error_rate: float = 0.0) -> list[dict[str, str]]:
    kinds = [ProblemKind(family="hundreds", operands=number) for number in (3, 5)]
    flaws = FlawedArithmetic((error_rate,), (1.0,), 0.5, 1)
    return list(draw_corpus(kinds, count, 1, flaws, skipping=Skipping.parse({"shares": shares}, "x")))


def boxed(row: dict[str, str]) -> int:
    (number,) = re.findall(r"\\boxed\{(\d\d)\}", row["solution"])
    return int(number)


def solved(row: dict[str, str]) -> int:
    """The answer by the problem's text alone."""
    value = int(re.findall(r"with (\d\d)", row["problem"])[0])
    for word, digit in re.findall(r"(plus|minus) (\d)", row["problem"]):
        value += int(digit) if word == "plus" else -int(digit)
    return value % 100


@pytest.mark.parametrize("shares", [[0.0], [0.3, 0.8], [1.0]])
def test_whatever_steps_are_skipped_a_solution_is_right_and_has_all_steps_in_order(shares: list[float]) -> None:
    for row in skipping_corpus(shares):
        assert boxed(row) == solved(row)
        assert re.findall(r"(?:plus|minus) \d", row["solution"]) == re.findall(r"(?:plus|minus) \d", row["problem"])
        for left, steps, result in re.findall(r"Then (\d\d)((?: (?:plus|minus) \d)+) gives (\d\d)\.", row["solution"]):
            assert solved({"problem": f"with {left}{steps}"}) == int(result)


def test_a_result_is_written_before_a_note_and_at_the_end_and_otherwise_as_often_as_the_shares_say() -> None:
    for row in skipping_corpus([0.0]):
        assert row["solution"].count(" gives ") == len(re.findall("plus|minus", row["problem"]))
    for row in skipping_corpus([1.0]):
        note_between_steps = re.search(r"(plus|minus) \d, note \d, (plus|minus)", row["problem"])
        assert row["solution"].count(" gives ") == 1 + bool(note_between_steps)
    habits = skipping_corpus([0.1, 0.9], 3000)
    often: dict[str, list[bool]] = defaultdict(list)
    for row in habits:
        for step, after in re.findall(r"((?:plus|minus) \d)(?= (plus|minus|gives))", row["solution"]):
            if after != "gives" or not re.search(rf"{step}(?:, note \d)?\.$|{step}, note", row["problem"]):
                often[step].append(after != "gives")
    shares = [sum(skipped) / len(skipped) for skipped in often.values()]
    assert all(abs(share - 0.1) < 0.08 or abs(share - 0.9) < 0.08 for share in shares)
    assert min(shares) < 0.2 and max(shares) > 0.8


def test_a_wrong_fact_makes_the_last_digit_wrong_alone() -> None:
    for row in skipping_corpus([0.0], error_rate=1.0):
        for left, step, result in re.findall(r"Then (\d\d)( \w+ \d) gives (\d\d)\.", row["solution"]):
            right = solved({"problem": f"with {left}{step}"})
            assert right // 10 == int(result) // 10 and right != int(result)


def test_a_search_ends_with_the_right_expression_or_gives_up_as_often_as_asked() -> None:
    kinds, flaws = [ProblemKind(family="countdown", operands=5)], FlawedArithmetic((0.0,), (1.0,), 0.5, 1)
    searching = Searching.parse({"give_up": [0.0, 0.5, 1.0]}, "x")
    lengths: Counter[int] = Counter()
    for row in draw_corpus(kinds, 2000, 1, flaws, searching=searching):
        *attempts, last = row["solution"].split("\n")
        target = row["problem"].split()[1]
        assert not [attempt for attempt in attempts[:-1] if attempt.endswith(f"={target}?{target} yes")]
        assert attempts[-1].endswith("yes") == (f"={target}?{target}" in attempts[-1])
        expression = re.sub(r"[=?]\d\d", "", attempts[-1].split()[0])
        assert last == f"\\boxed{{{expression}}}" and len(set(attempts)) == len(attempts)
        lengths[len(attempts)] += not attempts[-1].endswith("yes")
    assert set(lengths) <= {1, 2, 3} and lengths[1] == 0 and lengths[2] == pytest.approx(lengths[3], rel=0.2)


def test_functions_of_lists_are_skipped_by_their_shares_and_their_results_are_right() -> None:
    kinds, flaws = [ProblemKind(family="lists", operands=5)], FlawedArithmetic((0.9,), (1.0,), 0.5, 1)
    rows = list(draw_corpus(kinds, 500, 1, flaws, skipping=Skipping.parse({"shares": [0.0, 1.0]}, "x")))
    followed = Counter(name for row in rows for name in re.findall(r" ([a-z]+)(?= [a-z]+ (?!\d))", row["solution"]))
    assert len([name for name in followed if name in LIST_FUNCTIONS]) == 4, "every other function is always skipped"
    for row in rows:
        first, *names = re.findall(r"with (\d+)|, (\w+)", row["problem"])
        value = int(first[0])
        for _, name in names:
            value = Lists.after(value, name, 0)
        assert row["solution"].endswith(f"\\boxed{{{value}}}.")


@pytest.mark.parametrize(
    ("family", "key"), [("lists", "skipping"), ("countdown", "searching"), ("hundreds", "skipping")]
)
def test_a_corpus_says_how_solutions_of_its_families_are_written(family: str, key: str) -> None:
    flaws = {"error_rates": [0.0], "shares": [1.0], "misconception_share": 0.5}
    with pytest.raises(InvalidInput) as caught:
        Corpus.parse({"seed": 1, "kinds": [{"family": family, "operands": 3}], **flaws}, "study.yaml")
    assert caught.value.key == key


def test_a_search_without_problems_of_countdown_is_refused() -> None:
    flaws = {"error_rates": [0.0], "shares": [1.0], "misconception_share": 0.5, "searching": {"give_up": [0.1]}}
    with pytest.raises(InvalidInput) as caught:
        Corpus.parse({"seed": 1, "kinds": [{"family": "chain", "operands": 3}], **flaws}, "study.yaml")
    assert caught.value.key == "searching" and "countdown" in caught.value.accepted
