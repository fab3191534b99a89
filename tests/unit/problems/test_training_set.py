"""A published training set: repetitions, white space, conflicts and counts, on rows made in the same format."""

import base64
import json
import pickle
import zlib
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from evals.core.config.problem_sets import Columns
from evals.core.config.sections import PublishedProblems
from evals.core.errors import InvalidInput, UserError
from evals.core.files import read_json, read_jsonl, write_jsonl
from evals.core.yaml_file import read_yaml
from evals.problems.benchmark import program_problem
from evals.problems.training_set import write_training_set
from rlvr.study.benchmarks import DATASETS, training_settings, training_verifier
from rlvr.study.study import Study
from tests.stages import status

CONFIG = DATASETS.parent


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    return training_settings(
        PublishedProblems(source="dapo_math_17k", path=str(tmp_path / "copy.jsonl"), prompt="{problem}"), "study.yaml"
    )


def wrapped(settings: dict[str, Any], identifier: str, problem: str, answer: str) -> dict[str, Any]:
    content = settings["prefix"] + problem + settings["suffix"]
    return {
        "data_source": "math_dapo",
        "prompt": [{"content": content, "role": "user"}],
        "reward_model": {"ground_truth": answer, "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": identifier},
    }


@pytest.fixture
def rows(settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Three times a block of seven rows: a repeated text, one with other white space, one with two answers."""
    block = [
        ("a", "What is 1+1?", "2"),
        ("b", "What is 2+2?", "4"),
        ("c", "What is 1+1?", "2"),
        ("d", "What  is\n2+2?", "4"),
        ("e", "Greatest power of 2?", "64"),
        ("f", "Greatest power of 2?", "6"),
        ("g", "Large?", "-18446744073709551617"),
    ]
    return [wrapped(settings, *row) for row in block] * 3


COUNTS = {"rows": 21, "distinct_rows": 7, "distinct_texts": 5, "distinct_problems": 4, "kept": 3}


CONFLICTS = [["f", "e"]]


@pytest.mark.usefixtures("datasets_cache")
@pytest.mark.parametrize("copy", ["copy.jsonl", "copy/train.jsonl", "copy/data/train.parquet"])
def test_problems_stand_once(settings: dict[str, Any], rows: list[dict[str, Any]], tmp_path: Path, copy: str) -> None:
    path = tmp_path / copy
    if path.suffix == ".parquet":
        path.parent.mkdir(parents=True)
        pd.DataFrame(rows).to_parquet(path)
    else:
        write_jsonl(path, rows)
    settings |= {"counts": COUNTS, "conflicts": CONFLICTS, "path": str(tmp_path / Path(copy).parts[0])}
    write_training_set(settings, tmp_path / "out")
    assert [(row["id"], row["problem"], row["answer"]) for row in read_jsonl(tmp_path / "out" / "problems.jsonl")] == [
        ("a", "What is 1+1?", "2"),
        ("b", "What is 2+2?", "4"),
        ("g", "Large?", "-18446744073709551617"),
    ]
    manifest = read_json(tmp_path / "out" / "manifest.json")
    assert manifest["details"]["conflicts"] == [
        {"text": "Greatest power of 2?", "answers": ["64", "6"], "ids": ["e", "f"]}
    ]
    assert {key: manifest["details"][key] for key in COUNTS} == COUNTS
    assert "path" not in manifest["parameters"] and "sha256" not in manifest["parameters"]
    digest = manifest["outputs"]["problems.jsonl"]
    for expected, code in ((digest, 0), ("0" * 64, 2)):
        assert status(write_training_set, {**settings, "sha256": expected}, tmp_path / "again") == code


@pytest.mark.parametrize(
    ("conflicts", "message"),
    [([], "conflicts: e, f: has two answers, unexpectedly"), ([*CONFLICTS, ["a", "c"]], "a, c: has no two answers")],
)
def test_the_problems_with_two_answers_are_the_known_ones(
    settings: dict[str, Any], rows: list[dict[str, Any]], tmp_path: Path, conflicts: list[list[str]], message: str
) -> None:
    write_jsonl(tmp_path / "copy.jsonl", rows)
    with pytest.raises(UserError, match=message):
        write_training_set({**settings, "counts": COUNTS, "conflicts": conflicts}, tmp_path / "out")


def test_a_benchmarks_problems_are_out(settings: dict[str, Any], rows: list[dict[str, Any]], tmp_path: Path) -> None:
    write_jsonl(tmp_path / "copy.jsonl", rows)
    settings |= {"counts": COUNTS, "conflicts": CONFLICTS, "exclude": ["b"]}
    write_training_set(settings, tmp_path / "out")
    assert [row["id"] for row in read_jsonl(tmp_path / "out" / "problems.jsonl")] == ["a", "g"]
    assert read_json(tmp_path / "out" / "manifest.json")["details"]["written"] == 2
    with pytest.raises(UserError, match="have SHA-256"):  # of the whole set
        write_training_set({**settings, "sha256": "0" * 64}, tmp_path / "out")
    with pytest.raises(UserError, match=r"exclude: .*d, e"):
        write_training_set({**settings, "exclude": ["e", "d"]}, tmp_path / "out")


@pytest.mark.usefixtures("datasets_cache")
@pytest.mark.parametrize("copy", ["eurus.jsonl", "eurus/train.jsonl"])
def test_of_a_set_with_mathematics_the_programs_are_taken_with_their_tests(tmp_path: Path, copy: str) -> None:
    tests = json.dumps({"inputs": ["1 2"], "outputs": ["3"]})
    (tmp_path / copy).parent.mkdir(exist_ok=True)
    rows = [
        {
            "prompt": [{"role": "system", "content": "Act."}, {"role": "user", "content": text}],
            "ability": ability,
            "reward_model": {"ground_truth": truth, "style": "rule"},
        }
        for ability, text, truth in (("math", "1+1?", "2"), ("code", "Add.", tests))
    ]
    write_jsonl(tmp_path / copy, rows)
    published = PublishedProblems(source="eurus_2_code", path=str(tmp_path / Path(copy).parts[0]), prompt="{problem}")
    write_training_set(training_settings(published, "study.yaml"), tmp_path / "out")
    (row,) = read_jsonl(tmp_path / "out" / "problems.jsonl")
    assert (row["problem"], row["answer"]) == ("Add.", tests)
    assert training_verifier(published, "study.yaml") == "config/verifiers/program_tests.py"


@pytest.mark.parametrize("stage", COUNTS)
def test_another_count_stops(settings: dict[str, Any], rows: list[dict[str, Any]], tmp_path: Path, stage: str) -> None:
    write_jsonl(tmp_path / "copy.jsonl", rows)
    settings |= {"counts": {**COUNTS, stage: COUNTS[stage] + 1}, "conflicts": CONFLICTS}
    with pytest.raises(UserError, match=rf"{stage}: is {COUNTS[stage]}; expected {COUNTS[stage] + 1}$"):
        write_training_set(settings, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_row_of_another_form_is_named(settings: dict[str, Any], rows: list[dict[str, Any]], tmp_path: Path) -> None:
    broken = {**rows[0], "prompt": [{"content": "What is 1+1?", "role": "user"}]}
    for row, message in ((broken, "row 2: prompt.0.content: lacks the instr"), ({**rows[0], "prompt": []}, "is empty")):
        write_jsonl(tmp_path / "copy.jsonl", [rows[0], row])
        with pytest.raises(UserError, match=message):
            write_training_set(settings, tmp_path / "out")


def test_the_published_counts_are_expected() -> None:
    dapo, deepmath = (
        training_settings(PublishedProblems(source=name, prompt="{problem}"), "x")
        for name in ("dapo_math_17k", "deepmath_103k")
    )
    assert list(dapo["counts"].values()) == [1_791_700, 17_917, 17_398, 17_188, 17_176]
    groups = [frozenset(ids) for ids in dapo["conflicts"]]
    assert len(set(groups)) == dapo["counts"]["distinct_problems"] - dapo["counts"]["kept"] == 12
    assert all(len(ids) == 2 for ids in groups)
    assert deepmath["counts"]["rows"] == 103_022
    with pytest.raises(InvalidInput) as caught:
        training_settings(PublishedProblems(source="math", prompt="{problem}"), "x")
    known = "dapo_math_17k, deepmath_103k, eurus_2_code, gsm8k_steps, gsm8k_train, mawps_asdiv_a, mawps_asdiv_a_train"
    assert (caught.value.key, caught.value.accepted) == ("problems.source", known)


def test_a_study_trains_on_a_published_set_or_on_a_drawn_one_but_not_on_half_of_each() -> None:
    config = read_yaml(CONFIG / "smoke.yaml")
    published = {"source": "dapo_math_17k", "prompt": "{problem} In \\boxed{}.", "exclude": ["b", "a"]}
    study = Study.resolve({**config, "problems": published}, "study.yaml")
    assert study.training_settings["name"] == "dapo_math_17k" and study.training_settings["exclude"] == ["a", "b"]
    assert study.training_problems == "DAPO-Math-17k"  # as config/reference/settings.yaml has it
    assert study.resolved_run("tiny-dapo-s1")["prompt"] == published["prompt"]
    for problems in ({**published, "seed": 1}, {"prompt": "{problem}", "seed": 1, "count": 5}):
        with pytest.raises(InvalidInput) as caught:
            Study.resolve({**config, "problems": problems}, "study.yaml")
        assert caught.value.key == "problems"


# Rows of the benchmarks of programs, as their sources write them, become problems and tests.

ENTRIES = Path(__file__).resolve().parents[3] / "config/benchmarks"


def read(name: str, row: dict[str, Any]) -> tuple[str, Any]:
    """A row as the entry of config/benchmarks reads it."""
    entry = yaml.safe_load((ENTRIES / f"{name}.yaml").read_text())
    return program_problem(row, Columns.parse(entry["columns"], name), entry["tests_format"], "row 1")


def test_humaneval_keeps_imports_and_helpers_of_the_prompt() -> None:
    prompt = "import math\n\ndef helper(x):\n    return x\n\ndef solve(x: int) -> int:\n    '''Twice.'''\n"
    row = {"task_id": "HumanEval/0", "prompt": prompt, "test": "def check(candidate): ...", "entry_point": "solve"}
    text, tests = read("humaneval_plus", row)
    assert text == prompt
    assert tests["preamble"] == "import math\n\ndef helper(x):\n    return x\n\n"
    assert (tests["kind"], tests["entry_point"]) == ("program", "solve")


def test_mbpp_takes_the_name_from_the_test_and_shows_one() -> None:
    test = "def assertion(out, exp, atol): ...\ninputs = []\nfor inp in inputs:\n    assertion(shared(*inp), 1, 0)\n"
    row = {"task_id": 2, "prompt": "Find shared elements.", "test": test, "test_list": ["assert shared(1) == 1", "x"]}
    text, tests = read("mbpp_plus", row)
    assert text == "Find shared elements.\n\nYour code should pass this test:\n\nassert shared(1) == 1"
    assert (tests["entry_point"], tests["preamble"]) == ("shared", "")


def packed(cases: list[dict[str, str]]) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(cases)))).decode()


def contest_row(kind: str, public: list[tuple[str, str]], private: list[tuple[str, str]]) -> dict[str, Any]:
    def cases(pairs: list[tuple[str, str]]) -> list[dict[str, str]]:
        return [{"input": given, "output": output, "testtype": kind} for given, output in pairs]

    return {
        "question_id": "abc_1",
        "question_content": "Add.",
        "public_test_cases": json.dumps(cases(public)),
        "private_test_cases": packed(cases(private)),
        "starter_code": "" if kind == "stdin" else "class Solution:\n    def add(self, a, b):\n        ",
        "metadata": json.dumps({} if kind == "stdin" else {"func_name": "add"}),
    }


def test_livecodebench_scripts_and_functions() -> None:
    text, tests = read("livecodebench", contest_row("stdin", [("1 2\n", "3\n")], [("4 5\n", "9\n")]))
    assert "standard input" in text
    assert tests["cases"] == [{"input": "1 2\n", "output": "3\n"}, {"input": "4 5\n", "output": "9\n"}]
    text, tests = read("livecodebench", contest_row("functional", [("1\n[2]", "3")], [("4\n[5]", '"x"')]))
    assert "class Solution" in text
    assert tests["entry_point"] == "Solution.add"
    assert tests["cases"] == [{"arguments": [1, [2]], "expected": 3}, {"arguments": [4, [5]], "expected": "x"}]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("livecodebench", {"private_test_cases": "%%%"}),
        ("livecodebench", {"private_test_cases": base64.b64encode(b"x").decode()}),
        ("livecodebench", {"public_test_cases": "5"}),
        ("humaneval_plus", {"entry_point": None}),
        ("mbpp_plus", {"test": "nothing is called"}),
    ],
)
def test_rows_of_another_format_are_one_line(name: str, change: dict[str, Any]) -> None:
    row = contest_row("stdin", [("1", "1")], [("1", "1")])
    row |= {"task_id": "x", "prompt": "p", "test": "t", "entry_point": "f", "test_list": ["t"]}
    with pytest.raises(UserError, match=r"^row 1: ") as error:
        read(name, row | change)
    assert "\n" not in str(error.value)
