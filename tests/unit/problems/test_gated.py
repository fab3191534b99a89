"""A benchmark under GPQA's terms: no question, option, quoting response or token reaches any file or message."""

import json
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from evals.core.config.problem_sets import parse_benchmark
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
from rlvr.study.benchmarks import BENCHMARKS, read_benchmarks
from tests.stages import grade, sample_benchmark, status

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
    samples = results / "samples" / "r" / "gpqa_diamond" / "samples.jsonl"
    rows = [
        {"problem_id": problem.id, "sample": number, **withheld(text, False), "tokens": 3, "finish_reason": "stop"}
        for problem in load(problems).problems
        for number, text in enumerate(copying)
    ]
    write_jsonl(samples, rows)
    Manifest("samples", {}, hash_files(samples.parent, samples), {}, "f").write(samples.parent / "manifest.json")
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
    texts = [row["text"] for row in read_jsonl(tmp_path / "samples" / "r" / "b" / "samples.jsonl")]
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
