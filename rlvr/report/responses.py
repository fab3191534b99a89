"""Pages with every response to a benchmark: which method solved which problem, and what it wrote.

A page opens from disk, without a network or a server. It holds the verdicts; the texts lie in files beside it that it
loads when they are looked at. A page cannot read other files from disk, but it can run scripts: the texts are scripts
that hand over compressed JSON.
"""

import base64
import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from evals.core.audits import BenchmarkAudits
from evals.core.errors import InvalidInput
from evals.core.files import fingerprint, read_jsonl, sha256_file, write_text
from evals.core.manifest import Manifest, hash_files
from evals.core.records import Condition, Run, conditions_of, read_runs
from rlvr.diagnostics.tokens.table import read_comparison
from rlvr.diagnostics.tokens.view import levels, scale_of
from rlvr.report.html import render_page

CHUNK_BYTES = 2_000_000
"""Text that a page loads at a time, about; a problem's responses are never divided."""
CORRECT, TRUNCATED, NO_ANSWER, GRADERS_DISAGREE = 1, 2, 4, 8

TokenTexts = dict[tuple[str, int], tuple[list[str], list[int]]]
"""(problem, sample) -> the texts of its tokens, and a colour of each, -4 (less likely after training) to 4."""


@dataclass
class _RunResponses:
    """The responses of one run: a row for each problem, in the benchmark's order."""

    flags: list[list[int]]  # sums of CORRECT and so on, by problem and sample
    rows: list[list[list[Any]]]  # text, answer, reason, tokens and, where known, token texts and colours
    files: list[Path] = field(default_factory=list)


def write_responses_page(
    benchmark: str,
    runs: Path,
    audit: Path,
    results: Path,
    out: Path,
    benchmarks: Sequence[str],
    tokens: Sequence[Path] = (),
    report: str = "",
) -> None:
    """Write the page of every response to a benchmark, with the files that it loads beside it.

    Args:
        benchmark: its name.
        runs: the run sheet.
        audit: of the benchmark: where a second grader disagrees.
        results: results/, where problems, samples and grades are.
        out: the page; the texts go to the directory texts/ beside it.
        benchmarks: of the study, each with a directory beside that of this page.
        tokens: directories RUN/BENCHMARK made by `rlvr-bench tokens compare`, whose responses are shown in colour.
        report: the report's address, from the page; default: there is none.

    Raises:
        UserError: an input is missing or malformed, or the grades are not of the samples.
    """
    sheet, audits = read_runs(runs), BenchmarkAudits.read(audit)
    problems_file = results / "problems" / benchmark / "problems.jsonl"
    problems = read_jsonl(problems_file, ("id", "answer"))
    places = {str(row["id"]): place for place, row in enumerate(problems)}
    coloured = {directory.parent.name: directory for directory in tokens}
    inputs, chunks, shown = [runs, audit, problems_file], list[Path](), {}
    for run in sheet:
        disagreeing = {
            (str(row.problem_id), row.sample)
            for each in audits.audits
            if each.run == run.run and each.second
            for row in each.second.disagreements
        }
        texts = read_token_texts(coloured[run.run]) if run.run in coloured else {}
        responses = _read_responses(run, benchmark, results, places, disagreeing, texts)
        inputs += [*responses.files, *([coloured[run.run] / "tokens.parquet"] if texts else [])]
        size, written = _write_chunks(run.run, responses.rows, out.with_name("texts"))
        chunks += written
        flags = "".join(f"{flag:x}" for row in responses.flags for flag in row)
        shown[run.run] = {"run": run.run, "seed": run.seed, "chunk": size, "flags": flags}
    index = {
        "benchmark": benchmark,
        "samples": len(responses.rows[0]),
        "problems": [[str(row["id"]), row.get("problem"), row["answer"]] for row in problems],
        "columns": [_column(condition, shown) for condition in conditions_of(sheet)],
    }
    page = render_page(
        "responses.html.jinja",
        out,
        inputs,
        title=f"{benchmark}: every response",
        benchmark=benchmark,
        benchmarks=benchmarks,
        report=report,
        index=_compressed(index),
    )
    write_text(out, page)
    hashes = {path.as_posix(): sha256_file(path) for path in inputs}
    identity = fingerprint({"kind": "responses", "inputs": sorted(hashes.values()), "parameters": {}})
    manifest = Manifest("responses", hashes, hash_files(out.parent, out, *chunks), {}, identity, {})
    manifest.write(out.with_name("manifest.json"))


def _column(condition: Condition, shown: dict[str, dict[str, Any]]) -> dict[str, Any]:
    name = f"{condition.model}-{condition.method}"
    return {"name": name, "title": condition.title, "runs": [shown[run.run] for run in condition.runs]}


def _read_responses(
    run: Run,
    benchmark: str,
    results: Path,
    places: dict[str, int],
    disagreeing: set[tuple[str, int]],
    texts: TokenTexts,
) -> _RunResponses:
    """Read samples and grades of a run; each problem has as many, in the order of the samples' numbers."""
    paths = [results / kind / run.run / benchmark / f"{kind}.jsonl" for kind in ("samples", "grades")]
    samples = read_jsonl(paths[0], ("problem_id", "sample", "text", "tokens", "finish_reason"))
    grades = read_jsonl(paths[1], ("problem_id", "sample", "correct", "answer", "reason"))
    keys = [(str(row["problem_id"]), row["sample"]) for row in samples]
    if keys != [(str(row["problem_id"]), row["sample"]) for row in grades]:
        raise InvalidInput(str(paths[1]), "", "has not the samples in their order", "the grades of these samples")
    flags: list[list[int]] = [[] for _ in places]
    rows: list[list[list[Any]]] = [[] for _ in places]
    for key, sample, grade in sorted(zip(keys, samples, grades, strict=True), key=lambda each: each[0][1]):
        if key[0] not in places:
            raise InvalidInput(str(paths[0]), "", f"answers problem {key[0]}", f"a problem of {benchmark}")
        flag = CORRECT * bool(grade["correct"]) + TRUNCATED * (sample["finish_reason"] == "length")
        flag += NO_ANSWER * (grade["answer"] is None) + GRADERS_DISAGREE * (key in disagreeing)
        flags[places[key[0]]].append(flag)
        row = [sample["text"], grade["answer"], grade["reason"], sample["tokens"]]
        rows[places[key[0]]].append([*row, *texts.get(key, ())])
    if len({len(row) for row in rows}) > 1:
        raise InvalidInput(str(paths[0]), "", "has not as many samples of each problem", "the same number of each")
    return _RunResponses(flags, rows, paths)


def read_token_texts(directory: Path) -> TokenTexts:
    """Read what training changed of each response in a comparison of two checkpoints, token by token."""
    frame = read_comparison(directory, columns=("problem", "sample", "text", "trained_log_prob", "base_log_prob"))
    change = (frame["trained_log_prob"] - frame["base_log_prob"]).to_numpy(dtype=np.float64)
    found: TokenTexts = {}
    strengths = levels(change, 0.0, scale_of(change, 0.0)).tolist()
    rows = zip(frame["problem"].astype(str), frame["sample"], frame["text"], strengths, strict=True)
    for problem, sample, text, strength in rows:
        texts, colours = found.setdefault((problem, int(sample)), ([], []))
        texts.append(str(text))
        colours.append(strength)
    return found


def _write_chunks(run: str, rows: Sequence[Sequence[Sequence[Any]]], directory: Path) -> tuple[int, list[Path]]:
    """Write a run's responses as scripts; returns the number of problems in each, and the files."""
    size = sum(len(response[0]) for row in rows for response in row)
    problems = max(1, min(len(rows), CHUNK_BYTES * len(rows) // max(size, 1)))
    paths = []
    for number, first in enumerate(range(0, len(rows), problems)):
        name = f"{run}-{number}"
        path = directory / f"{name}.js"
        write_text(path, f'loaded("{name}","{_compressed(rows[first : first + problems])}");\n')
        paths.append(path)
    for stale in set(directory.glob("*.js")) & set(_other_chunks(directory, run, len(paths))):
        stale.unlink()
    return problems, paths


def _other_chunks(directory: Path, run: str, count: int) -> Iterable[Path]:
    """Chunks of an earlier page of the run, which had more of them."""
    return (path for path in directory.glob(f"{run}-*.js") if int(path.stem.rpartition("-")[2]) >= count)


def _compressed(content: Any) -> str:
    """JSON, compressed as browsers can read it (zlib), in base64."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode("utf-8", "replace"), 6)).decode("ascii")
