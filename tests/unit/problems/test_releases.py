"""Word problems as their releases have them: files of three forms, made-up rows, and the real files where they are."""

import csv
import json
import random
import re
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from evals.core.config.problem_sets import parse_benchmark
from evals.core.config.sections import LocalCopy, PublishedProblems
from evals.core.errors import InvalidInput, UserError
from evals.core.files import read_json, read_jsonl, sha256_bytes, write_jsonl
from evals.core.manifest import Manifest, hash_files
from evals.core.yaml_file import read_yaml
from evals.generation.checkpoint import Checkpoint
from evals.generation.evaluate import withheld
from evals.generation.settings import EvaluationSettings
from evals.grading import Case, GradingPool, Kind
from evals.grading.multiple_choice import LETTERS
from evals.problems.benchmark import permutation, with_options
from evals.problems.disjoint import check_disjoint
from evals.problems.problem_set import load, write_benchmark
from evals.problems.releases import RELEASES
from evals.problems.training_set import write_training_set
from rlvr.study.benchmarks import BENCHMARKS, read_benchmarks, training_settings
from rlvr.study.source_files import REPOSITORY
from rlvr.study.study import Study
from rlvr.study.study_file import read_study_file
from tests.artifacts import write_rows
from tests.stages import grade, sample_benchmark, status

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
    assert first == {"problem": "Clips?", "answer": "1072", "solution": "She sold 48/2 = 24.\nIn all 1,072.\n#### 1072"}
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


# A benchmark under GPQA's terms: no question, option, quoting response or token reaches any file or message.

SECRET = "zyxw"  # in every question and option, and in nothing else
TOKEN = "hf_zyxwtokenzyxw"
LINES = [f"Question {SECRET} {number}?" for number in range(12)]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A local copy with the columns of GPQA; the right option is named so."""
    rows = [
        {
            "Question": line,
            "Correct Answer": f"right {SECRET}",
            **{f"Incorrect Answer {wrong}": f"wrong {wrong} {SECRET}\n" for wrong in (1, 2, 3)},
            "Explanation": f"because {SECRET}",
        }
        for line in LINES
    ]
    write_jsonl(tmp_path / "source" / "train.jsonl", rows)
    return tmp_path / "source"


@pytest.fixture
def settings(source: Path, datasets_cache: None, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """GPQA's own entry, cut down to the copy."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    entry = read_benchmarks(["gpqa_diamond"], {}, "study.yaml")["gpqa_diamond"]
    configuration = {"configuration": None}
    return {**entry.problem_settings(), **configuration, "path": str(source), "count": 12}


@pytest.fixture
def problems(settings: dict[str, Any], tmp_path: Path) -> Path:
    out = tmp_path / "results" / "problems" / "gpqa_diamond"
    write_benchmark(settings, out)
    return out


def test_the_file_has_ids_letters_orders_and_hashes_only(problems: Path) -> None:
    rows = read_jsonl(problems / "problems.jsonl")
    assert {frozenset(row) for row in rows} == {frozenset({"id", "answer", "family", "options", "problem_sha256"})}
    loaded = load(problems)
    assert loaded.gated
    for row, full, line in zip(rows, loaded.problems, LINES, strict=True):
        options = [f"right {SECRET}", *(f"wrong {wrong} {SECRET}" for wrong in (1, 2, 3))]
        assert full.problem == with_options(line, [options[index] for index in row["options"]])
        assert row["problem_sha256"] == sha256_bytes(full.problem.encode())
        assert f"{row['answer']}) right {SECRET}" in full.problem
        assert sorted(row["options"]) == [0, 1, 2, 3]
    assert len({row["answer"] for row in rows}) > 1


def test_nothing_that_is_written_or_said_holds_a_text_or_the_token(
    problems: Path, source: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results"
    check_disjoint(problems, problems / "disjoint.json", [])
    copying = [f"Answer: A, as {SECRET} says", "no letter", rf"{SECRET} \boxed{{B}}"]
    samples = results / "samples" / "r" / "gpqa_diamond" / "samples.jsonl.bz2"
    rows = [
        {"problem_id": problem.id, "sample": number, **withheld(text, False), "tokens": 3, "finish_reason": "stop"}
        for problem in load(problems).problems
        for number, text in enumerate(copying)
    ]
    write_rows(samples, "samples", rows)
    grade(samples, problems / "problems.jsonl", results / "grades", "choice")
    shutil.rmtree(tmp_path / "cache")
    (source / "train.jsonl").write_text(json.dumps({"Question": f"other {SECRET}"}) + "\n")
    assert status(check_disjoint, problems, results / "again.json") == 2
    said = "".join(capfd.readouterr())
    assert said.count("error: ") == 1 and SECRET not in said
    written = [path for path in results.rglob("*") if path.is_file()]
    assert len(written) >= 7
    assert [path for path in written if SECRET.encode() in path.read_bytes()] == []


def test_a_changed_source_is_noticed_without_being_quoted(problems: Path, source: Path, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "cache")
    path = source / "train.jsonl"
    path.write_text(path.read_text().replace("right", "wrong"))
    with pytest.raises(UserError) as caught:
        load(problems)
    assert "no longer holds problem gpqa_diamond-" in str(caught.value) and SECRET not in str(caught.value)


@pytest.mark.parametrize("text", ["Answer: C", r"so \boxed{D}.", "no idea", "(B)", r"\boxed{}", "Answer: $A and more"])
@pytest.mark.parametrize("truncated", [False, True])
def test_what_is_kept_of_a_response_is_graded_as_the_response_is(text: str, truncated: bool) -> None:
    kept = withheld(text, truncated)["text"]
    with GradingPool(workers=1) as pool:
        for gold in "ABCD":
            whole, part = pool.grade([Case(each, gold, Kind.CHOICE, truncated) for each in (text, kept)])
            assert (whole.correct, whole.answer, whole.reason) == (part.correct, part.answer, part.reason)


def test_samples_of_a_gated_benchmark_keep_letters(
    problems: Path, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "runs" / "r"
    shutil.copytree(checkpoint, run / "checkpoint")
    weights = run / "checkpoint" / "model.safetensors"
    Manifest("run", {}, hash_files(run, weights), {}, "f").write(run / "manifest.json")
    monkeypatch.setattr("evals.generation.evaluate.withheld", lambda text, *_: {"text": f"kept {len(text) > 0}"})
    content = {"samples_per_problem": 2, "seed": 1, "prompt": "{problem}", "max_new_tokens": 4}
    settings = EvaluationSettings.parse(
        {**content, "temperature": 1.0, "top_p": 1.0, "sampling_batch_size": 256, "sampling_threads": 1}, ""
    )
    sample_benchmark([Checkpoint.of(run)], problems, settings, tmp_path / "samples" / "r" / "b")
    texts = [row["text"] for row in read_jsonl(tmp_path / "samples" / "r" / "b" / "samples.jsonl.bz2")]
    assert len(texts) == 24 and all(text.startswith("kept ") for text in texts)


def test_an_unreachable_gated_source_names_the_variable_and_not_the_token(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    import datasets

    def refuse(*_arguments: object, **options: Any) -> None:
        raise PermissionError(f"401 for {options['token']}: {SECRET}")

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    assert status(write_benchmark, {**settings, "path": None}, tmp_path / "out") == 2
    said = "".join(capfd.readouterr())
    assert "(PermissionError); accept its terms on the Hub and set HF_TOKEN" in said
    assert SECRET not in said


def test_orders_depend_on_problem_and_seed_alone_and_are_even() -> None:
    state = random.getstate()
    orders = [tuple(permutation(f"q-{number}", 4, 1)) for number in range(2400)]
    assert random.getstate() == state
    assert orders == [tuple(permutation(f"q-{number}", 4, 1)) for number in range(2400)]
    assert orders != [tuple(permutation(f"q-{number}", 4, 2)) for number in range(2400)]
    counts = Counter(orders)
    assert len(counts) == 24 and min(counts.values()) > 60 and max(counts.values()) < 145
    assert Counter(order.index(0) for order in orders).most_common()[-1][1] > 520


def test_ten_options_with_their_letters_are_read(tmp_path: Path) -> None:
    options = [f"option {number}" for number in range(10)]
    rows = [{"id": 5, "problem": "Which?", "options": options, "answer": "H", "topic": "law"}]
    rows += [{"id": 6, "problem": "Which?", "options": options[:3], "answer": "C", "topic": "law"}]
    write_jsonl(tmp_path / "local.jsonl", rows)
    entry = read_benchmarks(["mmlu_pro"], {}, "study.yaml")["mmlu_pro"]
    settings = {**entry.problem_settings(), "path": str(tmp_path / "local.jsonl"), "count": 2}
    write_benchmark(settings, tmp_path / "out")
    first, second = load(tmp_path / "out").problems
    assert f"{first.answer}) option 7" in first.problem and first.problem.count("option") == 10
    assert f"{second.answer}) option 2" in second.problem
    order = read_jsonl(tmp_path / "out" / "problems.jsonl")[0]["options"]
    assert order[LETTERS.index(first.answer)] == 7
    assert "one of ABCDEFGHIJ" in entry.prompt("chat")
    write_jsonl(tmp_path / "local.jsonl", [rows[0], {**rows[1], "answer": "D"}])
    with pytest.raises(UserError, match=r"row 2: answer: .*3 options"):
        raise UserError(_error(settings, tmp_path))


def _error(settings: dict[str, Any], tmp_path: Path) -> str:
    from evals.problems.problem_set import write_benchmark

    with pytest.raises(UserError) as caught:
        write_benchmark(settings, tmp_path / "out")
    return str(caught.value)


def test_a_gated_entry_has_to_be_multiple_choice(settings: dict[str, Any]) -> None:
    entry = read_yaml(BENCHMARKS / "gpqa_diamond.yaml")
    parse_benchmark(entry, "x")
    with pytest.raises(InvalidInput) as caught:
        parse_benchmark({**entry, "grader": "math"}, "x")
    assert (caught.value.key, caught.value.accepted) == ("grader", "choice")


def test_a_read_set_says_in_its_manifest_what_it_was_read_from(problems: Path, source: Path) -> None:
    manifest = read_json(problems / "manifest.json")
    assert manifest["parameters"]["gated"] is True and "path" not in manifest["parameters"]
    assert manifest["details"]["path"] == str(source)
