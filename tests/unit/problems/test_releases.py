"""Word problems as their releases have them: files of three forms, made-up rows, and the real files where they are."""

import csv
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from evals.core.config.problem_sets import parse_benchmark
from evals.core.config.sections import LocalCopy, PublishedProblems
from evals.core.errors import InvalidInput, UserError
from evals.core.files import read_jsonl, write_jsonl
from evals.core.yaml_file import read_yaml
from evals.problems.problem_set import write_benchmark
from evals.problems.releases import RELEASES
from evals.problems.training_set import write_training_set
from rlvr.study.benchmarks import read_benchmarks, training_settings
from rlvr.study.source_files import REPOSITORY
from rlvr.study.study import Study
from rlvr.study.study_file import read_study_file

REAL = Path(__file__).parents[4] / "shared/data/word_problems"
MAWPS = [
    {"Question": "number0 and number1 , halved ?", "Numbers": "86.0 20", "Equation": "/ + number0 number1 2.0"},
    {"Question": "number1 less number0 of 0.3 ?", "Numbers": "0.7 2.45", "Equation": "- number1 number0"},
    {"Question": "number0 ml in cups of number1 ?", "Numbers": "1050 65", "Equation": "/ number0 number1"},
    {"Question": "number0 of something", "Numbers": "0.125", "Equation": "* number0 8"},
    {"Question": "number0 more , but the answer is wrong", "Numbers": "1", "Equation": "+ number0 1"},
]
ANSWERS = ["53.0", "1.75", "16.153846153846153", "1.0", "3.0"]
GSM8K = [
    {"question": "Clips?", "answer": "She sold 48/2 = <<48/2=24>>24.\nIn all <<48+24=72>>1,072.\n#### 1,072"},
    {"question": "None?", "answer": "None.\n#### -3"},
]
SVAMP = [
    {"ID": "chal-1", "Body": "Each costs 76 dollars. If it is 25 less", "Question": "How much?", "Answer": 51.0},
    {"ID": "chal-2", "Body": "Half of 5.", "Question": "How much?", "Answer": 2.5},
]


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    with open(path, "w", encoding="utf-8", newline="") as handle:
        writer = csv.DictWriter(handle, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def mawps(path: Path) -> dict[str, Any]:
    """The settings of the training set at ``path``, without the real one's counts."""
    settings = training_settings(
        PublishedProblems(source="mawps_asdiv_a", path=str(path), prompt="{problem}"), "study.yaml"
    )
    return settings | {"counts": dict.fromkeys(settings["counts"]), "conflicts": None, "sha256": None}


def benchmark(name: str, path: Path, count: int) -> dict[str, Any]:
    settings = read_benchmarks([name], {name: LocalCopy(path=str(path), sha256=None)}, "study.yaml")[name]
    return {**settings.problem_settings(), "count": count}


def test_equations_become_steps_and_unclear_problems_are_left_out(tmp_path: Path) -> None:
    write_csv(tmp_path / "train.csv", [{**row, "Answer": answer} for row, answer in zip(MAWPS, ANSWERS, strict=True)])
    write_training_set(mawps(tmp_path / "train.csv"), tmp_path / "out")
    rows = read_jsonl(tmp_path / "out" / "problems.jsonl")
    assert [(row["problem"], row["answer"], row["solution"]) for row in rows] == [
        ("86 and 20 , halved ?", "53", "86 + 20 = 106\n106 / 2 = 53\n#### 53"),
        ("2.45 less 0.7 of 0.3 ?", "1.75", "2.45 - 0.7 = 1.75\n#### 1.75"),
    ]


def test_tenths_part_a_release_by_its_questions_letters_and_a_benchmark_has_repeated_rows_once(tmp_path: Path) -> None:
    """A question in lower case, with other signs, falls in the same tenth."""
    rows = [
        {"Question": text, "Numbers": f"{number}", "Equation": "+ number0 1", "Answer": f"{number + 1}"}
        for number in range(1, 101)
        for text in (f"number0 {'AB' * number}", f"number0, {'ab' * number} ?", f"number0 {'AB' * number}")
    ]
    path = tmp_path / "train.csv"
    write_csv(path, rows)
    parts = []
    for tenths in ([9], list(range(9))):
        write_training_set(mawps(path) | {"rows": {"column": "Question", "tenths": tenths}}, tmp_path / "out")
        parts.append([row["problem"] for row in read_jsonl(tmp_path / "out" / "problems.jsonl")])
    test, train = parts
    numbers = [{int(re.search(r"\d+", problem)[0]) for problem in part} for part in parts]
    assert numbers[0] | numbers[1] == set(range(1, 101)) and not numbers[0] & numbers[1]
    assert len(test) == 2 * len(numbers[0]) and len(train) == 2 * len(numbers[1]) and 2 <= len(numbers[0]) <= 25
    settings = read_benchmarks(["mawps_asdiv_a_test"], {}, "study.yaml")["mawps_asdiv_a_test"].problem_settings()
    write_benchmark(settings | {"path": str(path), "sha256": None, "count": len(test)}, tmp_path / "benchmark")
    assert [row["problem"] for row in read_jsonl(tmp_path / "benchmark" / "problems.jsonl")] == test


def test_a_value_without_letters_is_in_no_tenth(tmp_path: Path) -> None:
    write_csv(tmp_path / "train.csv", [{**MAWPS[0], "Answer": "53.0"}])
    settings = mawps(tmp_path / "train.csv") | {"rows": {"column": "Numbers", "tenths": [1]}}
    with pytest.raises(InvalidInput, match="letters") as caught:
        write_training_set(settings, tmp_path / "out")
    assert (caught.value.source, caught.value.key) == (f"mawps_asdiv_a: {tmp_path / 'train.csv'}", "column Numbers")


def test_rows_of_a_file_in_the_projects_form_are_not_selected() -> None:
    entry = read_yaml(REPOSITORY / "config/benchmarks/mawps_asdiv_a_test.yaml")
    del entry["columns"]
    with pytest.raises(InvalidInput) as caught:
        parse_benchmark(entry, "here.yaml")
    assert (caught.value.key, caught.value.accepted) == ("rows", "rows with the columns of a release")


@pytest.mark.parametrize("change", [{"grader": "choice", "option_seed": 1}, {"verifier": "mine.py"}])
def test_the_last_statement_is_for_what_the_grader_of_mathematics_reads(change: dict[str, Any]) -> None:
    entry = read_yaml(REPOSITORY / "config/benchmarks/gsm8k.yaml") | {"extraction": "last_statement"}
    assert parse_benchmark(entry, "here.yaml").extraction == "last_statement"
    with pytest.raises(InvalidInput) as caught:
        parse_benchmark(entry | change, "here.yaml")
    assert (caught.value.key, caught.value.accepted) == ("extraction", "marked, or grader math")


def test_solutions_of_gsm8k_lose_the_notes_of_the_calculator() -> None:
    first, second = RELEASES["gsm8k"].rows(GSM8K, "here")
    assert first == {
        "problem": "Clips?",
        "answer": "1072",
        "solution": "She sold 48/2 = 24.\nIn all 1,072.\n#### 1072",
    }
    assert second["answer"] == "-3"


def test_the_notes_of_the_calculator_are_solutions_where_they_end_in_the_answer() -> None:
    texts = [
        "Half: 10% of $<<48/2=24>>24.\nIn all <<48+24-(-1,000)=1072>>1,072.\n#### 1,072",
        "She has <<3*.5=1.5>>1.5 or <<1.5-3=-1.5>>.\n#### -1.5",
        "So 75-55 = $<<75-55=20>>20 and 20/4 = $5\n#### 5",
        "None at all.\n#### 3",
        "Half: <<1/2=1/2>>.\n#### 0.5",
        "A share of <<5*2=10%>>.\n#### 10",
        "Now <<4+4=8>>.\n#### $8",
        "Now <<4+4=>>.\n#### 8",
        "Now <<1/0=1/0>>.\n#### 8",
    ]
    rows = [{"question": f"How many, {number}?", "answer": text} for number, text in enumerate(texts)]
    assert RELEASES["gsm8k_steps"].rows(rows, "here") == [
        {"problem": "How many, 0?", "answer": "1072", "solution": "48 / 2 = 24\n48 + 24 - (-1000) = 1072\n#### 1072"},
        {"problem": "How many, 1?", "answer": "-1.5", "solution": "3 * .5 = 1.5\n1.5 - 3 = -1.5\n#### -1.5"},
    ]


@pytest.mark.usefixtures("datasets_cache")
@pytest.mark.parametrize("copy", ["test.jsonl", "copy/test.jsonl"])
def test_a_benchmark_is_read_from_the_releases_file_or_a_copy(copy: str, tmp_path: Path) -> None:
    (tmp_path / copy).parent.mkdir(exist_ok=True)
    write_jsonl(tmp_path / copy, GSM8K)
    settings = benchmark("gsm8k", tmp_path / Path(copy).parts[0], 2)
    write_benchmark({**settings, "configuration": None} if "/" in copy else settings, tmp_path / "out")
    rows = read_jsonl(tmp_path / "out" / "problems.jsonl")
    assert [(row["problem"], row["answer"]) for row in rows] == [("Clips?", "1072"), ("None?", "-3")]
    assert all(row["id"].startswith("gsm8k-") and "solution" not in row for row in rows)


def test_a_json_array_is_read(tmp_path: Path) -> None:
    (tmp_path / "svamp.json").write_text(json.dumps(SVAMP))
    write_benchmark(benchmark("svamp", tmp_path / "svamp.json", 2), tmp_path / "out")
    rows = read_jsonl(tmp_path / "out" / "problems.jsonl")
    assert [(row["id"], row["problem"], row["answer"]) for row in rows] == [
        ("svamp-chal-1", "Each costs 76 dollars. If it is 25 less How much?", "51"),
        ("svamp-chal-2", "Half of 5. How much?", "2.5"),
    ]


def test_olympiadbench_keeps_its_ids_and_has_one_answer(tmp_path: Path) -> None:
    row = {"id": 1606, "question": "How many? ", "final_answer": ["$2$"], "context": None}
    write_jsonl(tmp_path / "ob.jsonl", [{**row, "id": number} for number in (1606, 2045)])
    settings = benchmark("olympiadbench_675", tmp_path / "ob.jsonl", 2)
    write_benchmark({**settings, "exclude": []}, tmp_path / "out")
    first = read_jsonl(tmp_path / "out" / "problems.jsonl")[0]
    assert (first["id"], first["problem"], first["answer"]) == ("olympiadbench_675-1606", "How many?", "2")
    with pytest.raises(InvalidInput, match=r"not of the form of the release \(ValueError"):
        RELEASES["olympiadbench"].rows([{**row, "final_answer": ["1", "2"]}], "here")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"ID": 1}', "svamp.json: is no array; accepted: one JSON array of objects"),
        ("[3]", "svamp.json: row 1: lacks ID, Body, Question, Answer"),
        (json.dumps([{**SVAMP[0], "Answer": None}]), "svamp.json: row 1: lacks Answer"),
        (json.dumps([*SVAMP, {**SVAMP[0], "Answer": "many"}]), "row 3: is not of the form of the release (ValueError"),
        (json.dumps(SVAMP), "has 2 problems; expected 3"),
    ],
)
def test_a_file_of_another_form_ends_in_one_line(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "svamp.json").write_text(content)
    with pytest.raises(UserError) as caught:
        write_benchmark(benchmark("svamp", tmp_path / "svamp.json", 3), tmp_path / "out")
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(("key", "value"), [("Equation", "+ number0"), ("Equation", "+ number7 1"), ("Numbers", "x")])
def test_a_row_without_an_equation_ends_in_one_line(key: str, value: str, tmp_path: Path) -> None:
    write_csv(tmp_path / "train.csv", [{**MAWPS[0], "Answer": "53.0", key: value}])
    with pytest.raises(InvalidInput, match="row 1: is not of the form of the release"):
        write_training_set(mawps(tmp_path / "train.csv"), tmp_path / "out")


def test_a_set_that_is_not_on_the_hub_needs_its_file() -> None:
    with pytest.raises(InvalidInput, match=r"problems\.path: is missing; accepted: a file of MAWPS"):
        training_settings(PublishedProblems(source="mawps_asdiv_a", prompt="{problem}"), "study.yaml")


@pytest.mark.skipif(not REAL.is_dir(), reason="the real files are not here")
def test_the_real_files_have_the_counts_and_hashes_of_the_shipped_study(tmp_path: Path) -> None:
    study = Study.resolve(read_yaml(REPOSITORY / "config/smollm2.yaml"), "smollm2.yaml")
    write_training_set({**study.training_settings, "path": str(REAL / "mawps_asdiv_a_train.csv")}, tmp_path / "train")
    one_gpu = Study.resolve(read_yaml(REPOSITORY / "config/one_gpu.yaml"), "one_gpu.yaml")
    write_training_set({**one_gpu.training_settings, "path": str(REAL / "gsm8k_train.jsonl")}, tmp_path / "gsm8k")
    steps = Study.resolve(read_study_file(REPOSITORY / "config/smollm2_gsm8k.yaml"), "here").solution_settings
    write_training_set({**steps["gsm8k_steps"], "path": str(REAL / "gsm8k_train.jsonl")}, tmp_path / "steps")
    held_out = ("mawps_asdiv_a_test", "mawps_asdiv_a_train.csv")
    for name, file in (("svamp", "svamp.json"), ("gsm8k", "gsm8k_test.jsonl"), held_out):
        write_benchmark({**study.benchmarks[name].problem_settings(), "path": str(REAL / file)}, tmp_path / name)
