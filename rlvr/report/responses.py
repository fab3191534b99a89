"""Pages with every response to a benchmark: which method solved which problem, and what it wrote."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evals.core.errors import InvalidInput
from evals.core.files import read_jsonl
from evals.core.records import conditions_of, read_runs, rows_in
from evals.tables.audit import read_audits
from rlvr.report.viewer import CORRECT, TRUNCATED, Part, column_of, level_letters, write_responses, write_viewer
from rlvr.tokens.table import read_comparison
from rlvr.tokens.view import scale_of

NO_ANSWER, GRADERS_DISAGREE = 4, 8

TokenTexts = dict[tuple[str, int], tuple[list[str], dict[str, str]]]
"""(problem, sample) -> the texts of its tokens, and by the colour's key a letter for each of them."""
_CHANGE = {
    "key": "change",
    "title": "log-prob difference to the base model",
    "meaning": "blue is more likely after training, orange less likely",
}


def write_responses_page(
    benchmark: str,
    runs: Path,
    results: Path,
    out: Path,
    benchmarks: Sequence[str],
    tokens: Sequence[Path] = (),
    report: str = "",
    rollouts: str = "",
    seeds: int | None = None,
    **said: Any,
) -> None:
    """Write the page of every response to a benchmark, with the files that it loads beside it.

    Args:
        benchmark: its name.
        runs: the run sheet.
        results: results/, where problems, samples and grades are.
        out: the page; the texts go to the directory texts/ beside it.
        benchmarks: of the study, each with a directory beside that of this page.
        tokens: directories RUN/BENCHMARK made by `rlvr-bench claims compare`, whose responses are shown in colour.
        report: the report's address, from the page; default: there is none.
        rollouts: the address of the page of rollouts, likewise.
        seeds: show the first so many runs of each method; default: all.
        said: what the page says of itself: created, root_hash.
    """
    sheet = read_runs(runs)
    audits = read_audits(results, [benchmark], sheet)
    sheet = [run for condition in conditions_of(sheet) for run in condition.runs[:seeds]]
    problems_file = results / "problems" / benchmark / "problems.jsonl"
    problems = read_jsonl(problems_file, ("id", "answer"))
    numbers = {str(row["id"]): number for number, row in enumerate(problems)}
    coloured = {directory.parent.name: directory for directory in tokens}
    inputs, chunks, shown = [runs, *audits.files, problems_file], list[Path](), {}
    for run in sheet:
        disagreeing = {
            (str(row.problem_id), row.sample)
            for audit in audits.by_benchmark[benchmark]
            if audit.run == run.run and audit.second
            for row in audit.second.disagreements
        }
        texts = read_token_texts(coloured[run.run]) if run.run in coloured else {}
        files = tuple(rows_in(results / kind / run.run / benchmark, kind) for kind in ("samples", "grades"))
        flags, rows = _read_responses(files, benchmark, numbers, disagreeing, texts)
        inputs += [*files, *([coloured[run.run] / "tokens.parquet"] if texts else [])]
        shown[run.run], written = write_responses(run.run, run.run, run.seed, flags, rows, out.with_name("texts"))
        chunks += written
    texts_of_problems = [(str(row["id"]), row.get("problem"), row["answer"]) for row in problems]
    columns = [column_of(condition, shown) for condition in conditions_of(sheet)]
    write_viewer(
        "responses",
        out,
        inputs,
        chunks,
        [Part(None, texts_of_problems, columns, {})],
        [_CHANGE],
        title=f"{benchmark}: {'every response' if seeds is None else 'responses of the first seeds'}",
        benchmark=benchmark,
        benchmarks=benchmarks,
        report=report,
        rollouts=rollouts,
        of_training=False,
        **said,
    )


def _read_responses(
    files: Sequence[Path],
    benchmark: str,
    numbers: dict[str, int],
    disagreeing: set[tuple[str, int]],
    texts: TokenTexts,
) -> tuple[list[list[int]], list[list[list[Any]]]]:
    """Read the files of samples and grades of a run; each problem has as many, in the order of the samples' numbers.

    Returns:
        By problem, in the order of ``numbers``, and sample: sums of CORRECT and so on; and text, answer, reason, tokens
        and, where known, token texts and colours.
    """
    samples_file, grades_file = files
    samples = read_jsonl(samples_file, ("problem_id", "sample", "text", "tokens", "finish_reason"))
    grades = read_jsonl(grades_file, ("problem_id", "sample", "correct", "answer", "reason"))
    keys, graded = ([(str(row["problem_id"]), row["sample"]) for row in rows] for rows in (samples, grades))
    if keys != graded:
        raise InvalidInput(str(grades_file), "", "has not the samples in their order", "the grades of these samples")
    flags: list[list[int]] = [[] for _ in numbers]
    rows: list[list[list[Any]]] = [[] for _ in numbers]
    for key, sample, grade in sorted(zip(keys, samples, grades, strict=True), key=lambda response: response[0][1]):
        if key[0] not in numbers:
            raise InvalidInput(str(samples_file), "", f"answers problem {key[0]}", f"a problem of {benchmark}")
        flag = CORRECT * bool(grade["correct"]) + TRUNCATED * (sample["finish_reason"] == "length")
        flag += NO_ANSWER * (grade["answer"] is None) + GRADERS_DISAGREE * (key in disagreeing)
        flags[numbers[key[0]]].append(flag)
        row = [sample["text"], grade["answer"], grade["reason"], sample["tokens"]]
        rows[numbers[key[0]]].append([*row, *texts.get(key, ())])
    if len({len(row) for row in rows}) > 1:
        raise InvalidInput(str(samples_file), "", "has not as many samples of each problem", "the same number of each")
    return flags, rows


def read_token_texts(directory: Path) -> TokenTexts:
    """Read what training changed of each response in a comparison of two checkpoints, token by token."""
    frame = read_comparison(directory, columns=("problem", "sample", "text", "trained_log_prob", "base_log_prob"))
    change = (frame["trained_log_prob"] - frame["base_log_prob"]).to_numpy(dtype=np.float64)
    responses: TokenTexts = {}
    letters = level_letters(change, 0.0, scale_of(change, 0.0))
    rows = zip(frame["problem"].astype(str), frame["sample"], frame["text"], letters, strict=True)
    for problem, sample, text, letter in rows:
        texts, colours = responses.setdefault((problem, int(sample)), ([], {_CHANGE["key"]: ""}))
        texts.append(str(text))
        colours[_CHANGE["key"]] += letter
    return responses
