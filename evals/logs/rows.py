"""Readers of logs with one row a response or problem: lm-eval-harness, verl, lighteval, and any CSV, JSONL, parquet."""

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ConfigDict

from evals.core.errors import InvalidInput, UserError
from evals.core.files import MOST_BYTES, located, parse_json, read_lines, sha256_bytes
from evals.core.record import ExtensibleRecord, read_rows
from evals.logs.response import Judgement, Log, Response, number_of

PARQUET = b"PAR1"
"""The first bytes of a parquet file."""
COLUMNS = ("problem", "correct", "text", "gold", "answer", "tokens")
"""The parts of a response that a column of any table can give; a problem, and correct or text, are needed."""


class _OpenRecord(ExtensibleRecord):
    """A row with columns of any names besides those that are known."""

    model_config = ConfigDict(extra="allow")

    def numbers(self) -> list[str]:
        """The names of the other columns that hold numbers or truth values."""
        return [name for name, value in (self.model_extra or {}).items() if isinstance(value, bool | int | float)]

    def value(self, name: str) -> Any:
        """Return the value of another column; None if there is no such column."""
        return (self.model_extra or {}).get(name)


# lm-eval-harness: samples_{task}_{date}.jsonl of --log_samples, a row for each problem and filter.


class _LmEvalRow(_OpenRecord):
    doc_id: int
    doc_hash: str = ""
    target: Any = None
    resps: tuple[Any, ...]
    filtered_resps: tuple[Any, ...]
    filter: str = "none"
    metrics: tuple[str, ...] | None = None
    arguments: Any = None

    @property
    def prompt(self) -> str:
        """The first text in the arguments of the request, which are lists or named."""
        prompt = self.arguments
        while isinstance(prompt, Mapping | list | tuple) and prompt:
            prompt = next(iter(prompt.values() if isinstance(prompt, Mapping) else prompt))
        return prompt if isinstance(prompt, str) else ""

    @property
    def filtered(self) -> str | None:
        """The answer that a filter took from the text; None without a filter, whose result is the text."""
        answer = self.filtered_resps[0] if self.filter != "none" and self.filtered_resps else None
        return ("" if answer == "[invalid]" else answer) if isinstance(answer, str) else None


def read_lm_eval(path: Path) -> list[Log]:
    """Read the samples of a task; a score is named as in lm-eval's own tables, ``exact_match,strict-match``.

    Its scores are of a problem and not of a response: with ``repeats`` the filters choose or vote first.
    """
    by_problem: dict[str, list[_LmEvalRow]] = {}
    for row in read_rows(path, _LmEvalRow):
        earlier = by_problem.setdefault(f"{row.doc_id}-{row.doc_hash[:8]}", [])
        if any(other.filter == row.filter for other in earlier):
            complaint = f"filter {row.filter} is there twice, as in the samples of two runs"
            raise InvalidInput(str(path), f"doc_id {row.doc_id}", complaint, "one row for each problem and filter")
        earlier.append(row)
    responses = []
    for problem, rows in by_problem.items():
        first, judgements = rows[0], {}
        for row in rows:
            for name in row.numbers() if row.metrics is None else row.metrics:
                judgements[f"{name},{row.filter}"] = Judgement(row.value(name), row.filtered)
        texts = first.resps[0] if first.resps and isinstance(first.resps[0], list) else []
        texts = [text for text in texts if isinstance(text, str)]  # those of multiple choice are log-probabilities
        gold = None if first.target is None else str(first.target)
        responses.append(Response(problem, judgements, texts, gold, prompt=first.prompt))
    named = re.fullmatch(r"samples_(.+?)_\d{4}-\d\d-\d\dT.*", path.stem)
    return [Log(path, located(path).parent.name, named[1] if named else path.stem, responses)]


# verl: {step}.jsonl of trainer.validation_data_dir, a row for each response.


class _VerlRow(_OpenRecord):
    input: str
    output: str
    gts: Any = None
    score: float
    step: int
    uid: str | None = None
    pred: str | None = None


def read_verl(path: Path) -> list[Log]:
    """Read the validation of a step; verl names no problems, so the prompt does, with its reference if it has two."""
    responses: dict[str, Response] = {}
    golds: dict[str, set[str | None]] = {}
    for number, row in enumerate(read_rows(path, _VerlRow)):
        judgements = {"score": Judgement(row.score, row.pred)}
        judgements |= {name: Judgement(row.value(name), row.pred) for name in row.numbers()}
        gold = str(row.gts) if isinstance(row.gts, str | int | float) else None
        # A session of several outputs, {problem}_{sample}_{output}, has the score of its last one on each.
        parts = (row.uid or "").rsplit("_", 2)
        session = "_".join(parts[:2]) if len(parts) == 3 else str(number)
        name = f"prompt-{sha256_bytes(row.input.encode('utf-8', 'replace'))[:12]}"
        responses[session] = Response(name, judgements, (row.output,), gold, prompt=row.input)
        golds.setdefault(name, set()).add(gold)
    named = [
        response
        if len(golds[response.problem_id]) == 1
        else replace(response, problem_id=f"{response.problem_id}-{response.gold}")
        for response in responses.values()
    ]
    return [Log(path, f"{located(path).parent.name}-{path.stem}", "–", named)]


# lighteval: details_{task}_{date}.parquet of --save-details, a row for each problem.

LIGHTEVAL_COLUMNS = ("doc", "metric", "model_response")
_MEAN_OF = re.compile(r"(?:avg@n:n|pass@k:k=1&n)=(\d+)")


class _Document(ExtensibleRecord):
    id: str
    task_name: str
    query: str
    choices: tuple[Any, ...] = ()
    gold_index: Any = None


class _ModelResponse(ExtensibleRecord):
    input: Any = None
    text: tuple[str, ...] | None = None
    output_tokens: tuple[tuple[Any, ...], ...] | None = None


class _LightevalRow(ExtensibleRecord):
    doc: _Document
    metric: dict[str, Any]
    model_response: _ModelResponse


def read_lighteval(path: Path) -> list[Log]:
    """Read the details of a task; avg@n and pass@1 of n samples are as many verdicts, other scores are one."""
    responses, tasks = [], []
    for number, content in enumerate(_parquet_rows(path, LIGHTEVAL_COLUMNS), start=1):
        row = _LightevalRow.parse(content, f"{path}: row {number}")
        judgements = {}
        for name, value in row.metric.items():
            mean = _MEAN_OF.fullmatch(name)
            judgements[name] = Judgement(value, None, int(mean[1]) if mean else 1)
        golds = row.doc.gold_index if isinstance(row.doc.gold_index, list) else [row.doc.gold_index]
        known = len(golds) == 1 and isinstance(golds[0], int) and golds[0] < len(row.doc.choices)
        gold = str(row.doc.choices[golds[0]]) if known else None
        lengths = tuple(map(len, row.model_response.output_tokens or ()))
        problem = f"{row.doc.id}-{sha256_bytes(row.doc.query.encode('utf-8', 'replace'))[:8]}"
        given = row.model_response.input
        prompt = given if isinstance(given, str) else ""
        responses.append(Response(problem, judgements, row.model_response.text or (), gold, lengths, prompt=prompt))
        tasks.append(row.doc.task_name)
    directory = located(path).parent  # {model}/{date}
    return [Log(path, directory.parent.name, tasks[0] if tasks else "–", responses)]


@contextmanager
def _parquet(path: Path) -> Iterator[Any]:
    """Open a parquet file; one that is damaged is a UserError, whenever it is noticed."""
    import pyarrow as pa  # not for those who read other formats
    import pyarrow.parquet as pq

    try:
        yield pq.ParquetFile(path)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: is no sound parquet file ({str(error).splitlines()[0]})") from None


def _parquet_rows(path: Path, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
    with _parquet(path) as file:
        groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
        if (size := sum(group.total_byte_size for group in groups)) > MOST_BYTES:
            raise UserError(f"{path}: unpacks to {size} bytes; accepted: up to {MOST_BYTES}")
        rows: list[dict[str, Any]] = file.read(columns=None if columns is None else list(columns)).to_pylist()
    return rows


def parquet_columns(path: Path) -> list[str]:
    """The names of a parquet file's columns; UserError if it is none."""
    with _parquet(path) as file:
        return list(file.schema_arrow.names)


# Any table, by names of its columns.


def read_table(path: Path, columns: Mapping[str, str]) -> list[Log]:
    """Read CSV, JSONL or parquet whose ``columns`` have the parts of a response (:data:`COLUMNS`), a row for each."""
    responses = []
    for number, row in enumerate(_table_rows(path), start=1):
        missing = [column for column in columns.values() if column not in row]
        if missing:
            complaint = f"has no column {missing[0]}"
            raise InvalidInput(f"{path}: row {number}", "", complaint, ", ".join(map(str, row)))
        part = {name: row[column] for name, column in columns.items()}
        tokens = number_of(part.get("tokens"))
        if tokens is not None and (tokens < 0 or tokens != int(tokens)):
            raise InvalidInput(f"{path}: row {number}", "", f"tokens is {part['tokens']!r}", "a whole number from 0 on")
        answer = None if part.get("answer") is None else str(part["answer"])
        responses.append(
            Response(
                str(part["problem"]),
                {columns["correct"]: Judgement(part["correct"], answer)} if "correct" in part else {},
                (str(part["text"]),) if "text" in part else (),
                None if part.get("gold") is None else str(part["gold"]),
                () if tokens is None else (int(tokens),),
            )
        )
    return [Log(path, path.stem, "–", responses)]


def _table_rows(path: Path) -> list[dict[str, Any]]:
    with open(path, "rb") as file:
        if file.read(4) == PARQUET:
            return _parquet_rows(path)
    lines = list(read_lines(path))
    if lines and lines[0][1].lstrip().startswith("{"):
        rows = [parse_json(line, where) for where, line in lines]
        return [row if isinstance(row, dict) else {} for row in rows]
    try:
        return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8-sig"), newline=""), strict=True))
    except csv.Error as error:
        raise UserError(f"{path}: is no CSV ({error})") from None
