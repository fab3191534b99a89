"""Logs that other tools wrote (files/README.md): their own means, what is ambiguous, and what must be refused."""

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from evals.core.errors import UserError
from evals.logs import documents
from evals.logs.documents import Archive
from evals.logs.formats import read_logs
from evals.logs.response import Judgement, Judging, Log, Response
from tests.commands import run_command

ROOT = Path(__file__).resolve().parents[3]
FILES = Path(__file__).resolve().parent / "files"


def scored(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    assert run_command("score", *words, "--json") == 0, capsys.readouterr().err
    (row,) = json.loads(capsys.readouterr().out)["scores"]
    return row


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert run_command(*words) == 2
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1 and printed.out == ""
    return printed.err


@pytest.mark.parametrize(
    ("path", "options", "problems", "samples", "mean"),
    [
        ("lm_eval/mock-1", ["--score", "exact_match,strict-match"], 6, 1, 0.5),
        ("lm_eval/mock-1", ["--score", "exact_match,flexible-extract"], 6, 1, 1.0),
        ("inspect/mock-1", ["--score", "includes"], 6, 2, 11 / 12),
        ("inspect/mock-2/sums.eval", ["--score", "match"], 6, 2, 1 / 12),
        ("inspect/sums.json", ["--score", "match"], 2, 2, 0.25),
        ("lighteval/mock-1", ["--score", "pass@k:k=1&n=4"], 6, 4, 17 / 24),
        ("verl/mock-1/20.jsonl", ["--score", "acc"], 6, 2, 10 / 12),
        ("verl/mock-1/20.jsonl", ["--score", "score", "--correct-from", "1"], 6, 2, 10 / 12),
        ("matharena/mock-1", [], 3, 4, 10 / 12),
        ("matharena/mock-2", [], 3, 4, 8 / 12),
        ("table.csv", ["--columns", "problem=question,correct=is_right,answer=prediction"], 3, 2, 4 / 6),
    ],
)
def test_the_mean_is_the_one_that_the_tool_reported(
    capsys: pytest.CaptureFixture[str], path: str, options: list[str], problems: int, samples: int, mean: float
) -> None:
    """As its table, the header of its log or its results file says."""
    row = scored(capsys, FILES / path, *options)
    assert (row["problems"], row["samples_per_problem"]) == (problems, samples)
    assert row["average_at_k"] == pytest.approx(mean)


def test_our_grader_judges_texts_against_the_answers_in_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    """All responses are graded, also those that lm-eval's filters left out, and the boxes that its filter missed."""
    row = scored(capsys, FILES / "lm_eval/mock-1", "--regrade", "--workers", "1")
    texts = [
        (content["resps"][0], content["target"].split("#### ")[1])
        for content in map(json.loads, next((FILES / "lm_eval/mock-1").iterdir()).read_text().splitlines())
        if content["filter"] == "strict-match"
    ]
    right = [f"\\boxed{{{gold}}}" in text for several, gold in texts for text in several]
    assert (row["samples_per_problem"], row["average_at_k"]) == (2, pytest.approx(sum(right) / len(right)))


def test_our_grader_gives_the_means_that_evalchemy_reported(capsys: pytest.CaptureFixture[str]) -> None:
    """Its file has no verdict on a response; answers are named differently in each of the three benchmarks."""
    path = FILES / "evalchemy/mock-1/results.json"
    reported = json.loads(path.read_text())["results"]
    assert run_command("score", path, "--workers", "1", "--json") == 0
    *rows, _ = json.loads(capsys.readouterr().out)["scores"]  # the last is the mean over benchmarks
    assert {(row["run"], row["benchmark"], row["problems"], row["samples_per_problem"]) for row in rows} == {
        ("mock-1", "AIME24", 6, 10),
        ("mock-1", "AMC23", 6, 10),
        ("mock-1", "MATH500", 6, 1),
    }
    for row in rows:
        theirs = reported[row["benchmark"]]
        assert row["average_at_k"] == pytest.approx(theirs.get("accuracy_avg", theirs.get("accuracy")))


def test_the_directory_of_an_archive_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read for each of its samples it takes time by their square: an hour for those of a large benchmark."""
    opened: list[Any] = []
    directory_of = zipfile.ZipFile._RealGetContents  # type: ignore[attr-defined]
    monkeypatch.setattr(zipfile.ZipFile, "_RealGetContents", lambda file: opened.append(file) or directory_of(file))
    for path in sorted((FILES / "inspect").rglob("*.eval")):
        source = Archive(path)
        with zipfile.ZipFile(
            tmp_path / "log.eval", "w", zipfile.ZIP_DEFLATED
        ) as copy:  # inspect_ai's own are Zstandard
            for entry in (name for name in source if name == "header.json" or name.startswith("samples/")):
                copy.writestr(entry, json.dumps(source.read(entry)))
        opened.clear()
        (log,) = read_logs(tmp_path / "log.eval", {})
        assert len(log.responses) > 3 and len(opened) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lm_eval/mock-1"], "--score with one of exact_match,strict-match, exact_match,flexible-extract"),
        (["lm_eval/mock-1", "--score", "exact_match"], "is not one score of"),  # two filters have it
        (["lm_eval/mock-1", "--score", "acc"], "accepted: exact_match,strict-match, exact_match,flexible-extract"),
        (["inspect/mock-1"], "--score with one of match, includes"),
        (["verl/mock-1/20.jsonl", "--score", "score"], "score: is -1.0; accepted: 0 or 1; or --correct-from"),
        (["README.md"], "begins with '# Logs that other tools wrote'; accepted: grades and samples of this project"),
        (["table.csv"], "begins with 'question,is_right,prediction'"),
        (["table.csv", "--columns", "problem=id,correct=is_right"], "accepted: question, is_right, prediction"),
        (["table.csv", "--columns", "question=question"], "--columns: is 'question=question'"),
        (["table.csv", "--columns", "problem=question,text=prediction"], "no file of problems has all"),
        (["inspect"], "samples.jsonl or samples_*.jsonl or *.eval"),
    ],
)
def test_what_is_ambiguous_is_one_line(capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    assert message in refused(capsys, "score", FILES / words[0], *words[1:])


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ("nan,1", "is_right: is 'nan'; accepted: 0 or 1"),
        ("1e999,1", "is_right: is '1e999'"),
        ("0.5,1", "is_right: is '0.5'; accepted: 0 or 1; or --correct-from"),
        ("yes,1", "is_right: is 'yes'"),
        ("1,-1", "row 2: tokens is '-1'; accepted: a whole number from 0 on"),
        ("1,1.5", "tokens is '1.5'"),
    ],
)
def test_bad_values_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], cells: str, message: str) -> None:
    table = tmp_path / "table.csv"
    table.write_text(f"question,is_right,length\nq1,1,5\nq2,{cells}\n")
    columns = "problem=question,correct=is_right,tokens=length"
    assert message in refused(capsys, "score", table, "--columns", columns)


def test_scores_that_agree_need_no_choice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As verl's score and reward, and answers that a log does not name give no maj@k."""
    row = {"input": "1 + 1?", "output": "2", "gts": "2", "score": 1.0, "reward": 1.0, "step": 3}
    rows = [row, row | {"input": "1 + 2?", "score": 0.0, "reward": 0.0}]
    path = tmp_path / "3.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    score = scored(capsys, path)
    assert (score["average_at_k"], score["majority_at_k"], score["no_answer_rate"]) == (0.5, {"1": None}, None)


def test_outputs_of_one_session_of_verl_are_one_sample(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = {"input": "?", "output": "2", "gts": "2", "score": 1.0, "step": 3}
    rows = [row | {"uid": f"a_{sample}_{output}"} for sample in range(2) for output in range(3)]
    rows += [row | {"input": "!", "uid": f"b_{sample}_0", "score": 0.0} for sample in range(2)]
    path = tmp_path / "3.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    assert scored(capsys, path)["samples_per_problem"] == 2


def test_unfinished_and_hostile_logs_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    content = json.loads((FILES / "inspect/sums.json").read_text())
    path = tmp_path / "log.json"
    path.write_text(json.dumps(content | {"status": "error"}))
    assert "status: is error; accepted: success" in refused(capsys, "score", path)
    del content["samples"][0]["scores"]["match"]
    path.write_text(json.dumps(content))
    assert "has no score match" in refused(capsys, "score", path, "--score", "match")
    with zipfile.ZipFile(tmp_path / "empty.eval", "w") as archive:
        archive.writestr("samples/1.json", "{}")
    assert "was not finished" in refused(capsys, "score", tmp_path / "empty.eval")
    whole = (FILES / "inspect/mock-1/sums.eval").read_bytes()
    for cut, damaged in enumerate((whole[:9_000], whole[:2_000] + b"x" * 9 + whole[2_009:], b"PK\3\4", b"PAR1PAR1")):
        broken = tmp_path / f"{cut}.eval"
        broken.write_bytes(damaged)
        assert str(broken) in refused(capsys, "score", broken, "--score", "match")
    monkeypatch.setattr(documents, "MOST_BYTES", 300)
    for bomb in ("inspect/mock-1/sums.eval", "matharena/mock-1"):
        assert "300" in refused(capsys, "score", FILES / bomb)


def test_texts_of_a_table_are_graded_against_problems(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A CSV file has no numbers, so that its ids are compared as text."""
    problems, table = tmp_path / "problems.jsonl", tmp_path / "texts.csv"
    problems.write_text('{"id": 1, "answer": "7"}\n{"id": 2, "answer": "8"}\n')
    table.write_text('question,said\n1,"it is\n\\boxed{7}"\n2,\\boxed{7}\n')
    row = scored(capsys, table, "--columns", "problem=question,text=said", "--problems", problems, "--workers", "1")
    assert (row["problems"], row["average_at_k"], row["no_answer_rate"]) == (2, 0.5, 0.0)


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


LM_EVAL_ROW = {
    "doc_id": 0, "doc_hash": "h", "target": "1", "resps": [["so \\boxed{1} hmm"]], "filtered_resps": ["1"],
    "filter": "none", "metrics": ["exact_match"], "exact_match": 1.0,
}  # fmt: skip
VERL_ROW = {"input": "Find x.", "output": "so \\boxed{1} hmm", "gts": "1", "score": 1.0, "step": 3}


def test_thinking_that_a_prompt_opened_counts_for_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for prompt, mean in (
        ("1 + 0? ", 1.0),
        ("1 + 0? <think>\n", 0.0),
        ('1 + 0? <think type="x">', 0.0),
        ("1 + 0?<|start|>assistant<|channel|>analysis<|message|>", 0.0),
        ("1 + 0?<|start|>assistant<|channel|>final<|message|>", 1.0),
    ):
        rows = [{**LM_EVAL_ROW, "arguments": {"gen_args_0": {"arg_0": prompt, "arg_1": {}}}}]
        for path in (
            written(tmp_path / "samples_sums_2026-11-22T17.jsonl", rows),
            written(tmp_path / "3.jsonl", [{**VERL_ROW, "input": prompt}]),
        ):
            assert scored(capsys, path, "--regrade", "--workers", "1")["average_at_k"] == mean


def test_one_prompt_with_two_references_is_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{**VERL_ROW, "output": f"\\boxed{{{said}}}", "gts": gold} for gold in ("3", "7") for said in ("3", "7")]
    row = scored(capsys, written(tmp_path / "3.jsonl", rows), "--regrade", "--workers", "1")
    assert (row["problems"], row["samples_per_problem"], row["average_at_k"]) == (2, 2, 0.5)


def test_two_runs_in_one_file_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [LM_EVAL_ROW, {**LM_EVAL_ROW, "filter": "strict-match"}, {**LM_EVAL_ROW, "exact_match": 0.0}]
    path = written(tmp_path / "samples_sums_2026-11-22T17.jsonl", rows)
    assert "doc_id 0: filter none is there twice, as in the samples of two runs" in refused(capsys, "score", path)


def test_older_inspect_logs_have_their_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = json.loads((FILES / "inspect/sums.json").read_text())
    path = tmp_path / "log.json"
    path.write_text(json.dumps(content))
    expected = scored(capsys, path, "--regrade", "--workers", "1")["average_at_k"]
    for sample in content["samples"]:
        text = sample["output"].pop("completion")
        sample["output"]["choices"] = [{"message": {"role": "assistant", "content": [{"type": "text", "text": text}]}}]
    path.write_text(json.dumps(content))
    assert scored(capsys, path, "--regrade", "--workers", "1")["average_at_k"] == expected
    for sample in content["samples"]:
        sample["output"]["choices"] = []
    path.write_text(json.dumps(content))
    assert "has no text to grade" in refused(capsys, "score", path, "--regrade")


def test_a_mean_of_more_samples_than_the_row_has_texts_is_refused() -> None:
    response = Response("1", {"pass@k:k=1&n=8": Judgement(0.25, None, 8)}, ("a", "b", "c", "d"))
    with pytest.raises(UserError, match="is of 8 samples, of 4 texts"):
        Judging("pass@k:k=1&n=8").grades(Log(Path("log"), "run", "sums", [response]))


def test_problems_without_a_response_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    problems = written(tmp_path / "problems.jsonl", [{"id": name, "answer": "7"} for name in (0, 1, "\x1b[2J")])
    samples = written(
        tmp_path / "s.jsonl", [{"problem_id": number, "sample": 0, "text": "\\boxed{7}"} for number in range(2)]
    )
    words = ("score", samples, "--problems", problems, "--workers", "1")
    assert run_command(*words) == 0
    assert r"1 of 3 problems have no response, such as \x1b[2J" in capsys.readouterr().err
    assert "1 of 3 problems have no response" in refused(capsys, *words, "--require-all")
