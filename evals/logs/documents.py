"""Readers of logs that are whole documents: inspect_ai, matharena, evalchemy."""

import json
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from evals.core.errors import InvalidInput, UserError
from evals.core.files import MOST_BYTES, parse_json, reading, sha256_bytes
from evals.core.numbers import Index
from evals.core.record import ExtensibleRecord
from evals.core.records import FinishReason
from evals.logs.response import Judgement, Log, Response

_ENDS: dict[str, FinishReason] = {"stop": "stop", "max_tokens": "length", "model_length": "length"}


def problem_name(number: Any, text: Any) -> str:
    """The name of a problem: its number in its set, and a hash of its text, so that no two sets share names."""
    spelled = json.dumps(text, sort_keys=True, separators=(",", ":"), ensure_ascii=False)  # NaN is one too
    return f"{number}-{sha256_bytes(spelled.encode('utf-8', 'replace'))[:8]}"


# inspect_ai: a zip file (.eval) or one JSON document, of one task.


class _Score(ExtensibleRecord):
    value: Any
    answer: str | None = None


class _Message(ExtensibleRecord):
    content: str | tuple[Any, ...] = ""

    @property
    def text(self) -> str:
        """Its text, in parts or not; reasoning is a part of another type."""
        parts = ({"type": "text", "text": self.content},) if isinstance(self.content, str) else self.content
        texts = (part for part in parts if isinstance(part, dict) and part.get("type") == "text")
        return "".join(str(part.get("text", "")) for part in texts)


class _Choice(ExtensibleRecord):
    stop_reason: str | None = None
    message: _Message | None = None


class _Usage(ExtensibleRecord):
    output_tokens: Index | None = None


class _Output(ExtensibleRecord):
    completion: str | None = None  # absent from older logs, whose text is in the first choice alone
    choices: tuple[_Choice, ...] = ()
    usage: _Usage | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        """The text of the response; empty where the log has none."""
        if self.completion is not None:
            return (self.completion,)
        return tuple(choice.message.text for choice in self.choices[:1] if choice.message is not None)


class _InspectSample(ExtensibleRecord):
    id: int | str
    epoch: int
    input: Any
    target: str | tuple[str, ...]
    scores: dict[str, _Score] | None = None
    output: _Output = _Output()


class _Evaluation(ExtensibleRecord):
    task: str
    model: str


class _Header(ExtensibleRecord):
    status: str
    eval: _Evaluation


def read_inspect_archive(path: Path) -> list[Log]:
    """Read the ``.eval`` log of inspect_ai; epochs are samples of one problem."""
    archive = Archive(path)
    if "header.json" not in archive:
        raise InvalidInput(str(path), "", "has no header.json: the evaluation was not finished", "a finished one")
    header = _Header.parse(archive.read("header.json"), f"{path}: header.json")
    samples = (
        _InspectSample.parse(archive.read(name), f"{path}: {name}") for name in archive if name.startswith("samples/")
    )
    return [_inspect_log(path, header, samples)]


def read_inspect_json(path: Path, content: Any) -> list[Log]:
    """Read the same as one JSON document."""
    rows = enumerate(content["samples"], start=1)
    samples = (_InspectSample.parse(row, f"{path}: sample {number}") for number, row in rows)
    return [_inspect_log(path, _Header.parse(content, str(path)), samples)]


def _inspect_log(path: Path, header: _Header, samples: Iterable[_InspectSample]) -> Log:
    if header.status != "success":  # the samples that are there are no random part of them
        raise InvalidInput(str(path), "status", f"is {header.status}", "success")
    responses = sorted(samples, key=lambda sample: sample.epoch)
    return Log(path, header.eval.model, header.eval.task, [_inspect_response(sample) for sample in responses])


def _inspect_response(sample: _InspectSample) -> Response:
    judgements: dict[str, Judgement] = {}
    for name, score in (sample.scores or {}).items():
        values = score.value if isinstance(score.value, dict) else {"": score.value}
        for part, value in values.items():
            judgements[f"{name}/{part}" if part else name] = Judgement(value, score.answer)
    targets = (sample.target,) if isinstance(sample.target, str) else sample.target
    output, usage = sample.output, sample.output.usage
    return Response(
        problem_name(sample.id, sample.input),
        judgements,
        output.texts,
        targets[0] if len(targets) == 1 else None,
        (usage.output_tokens,) if usage is not None and usage.output_tokens is not None else (),
        tuple(_ENDS.get(choice.stop_reason or "") for choice in output.choices[:1]),
    )


# matharena: a directory with one file a problem.


class _Cost(ExtensibleRecord):
    output_tokens: Index | None = None


class _MatharenaProblem(ExtensibleRecord):
    idx: int
    problem: str | None = None
    gold_answer: str | None = None
    correct: tuple[Any, ...]
    answers: tuple[str | None, ...] = ()
    messages: tuple[tuple[dict[str, Any], ...], ...] = ()
    detailed_costs: tuple[_Cost, ...] = ()


def read_matharena(path: Path, problems: Sequence[tuple[Path, Any]]) -> list[Log]:
    """Read the problems of a run of matharena, each with the file that it stands in; runs are samples."""
    responses = []
    for file, content in problems:
        row = _MatharenaProblem.parse(content, str(file))
        columns: list[Sequence[Any]] = [row.correct, row.answers, row.messages, row.detailed_costs]
        if any(column and len(column) != len(row.correct) for column in columns):
            raise UserError(f"{file}: correct, answers, messages and detailed_costs have different lengths")
        filled = (column or [None] * len(row.correct) for column in columns)
        for correct, answer, messages, cost in zip(*filled, strict=True):
            text = messages[-1].get("content") if messages else None
            tokens = cost.output_tokens if cost else None
            responses.append(
                Response(
                    problem_name(row.idx, row.problem),
                    {"correct": Judgement(correct, "" if answer == "None" else answer)},
                    (text,) if isinstance(text, str) else (),
                    row.gold_answer,
                    () if tokens is None else (tokens,),
                )
            )
    return [Log(path, path.name if path.is_dir() else path.parent.name, "–", responses)]


# evalchemy: the results of several benchmarks in one document, with their texts but without a verdict on each.


def read_evalchemy(path: Path, content: Any) -> list[Log]:
    """Read the texts and reference answers in evalchemy's ``results_*.json``; it keeps no verdict of a text."""
    logs = []
    for benchmark, result in content["results"].items():
        if not isinstance(result, Mapping) or not isinstance(result.get("examples"), list):
            continue  # of lm-eval's own tasks, whose samples are in files of their own
        where = f"{path}: results.{benchmark}.examples"
        examples = [_example(f"{where}.{number}", number, row) for number, row in enumerate(result["examples"])]
        logs.append(Log(path, path.parent.name, benchmark, examples))
    return logs


def _example(where: str, number: int, row: Any) -> Response:
    row = row if isinstance(row, Mapping) else {}
    texts = row.get("model_outputs", [row["model_output"]] if "model_output" in row else None)
    gold = next((str(row[key]) for key in ("expected_answer", "answer") if key in row), None)
    text = next((row[key] for key in ("problem", "question", "Question", "prompt") if key in row), None)
    if not isinstance(texts, list) or not all(isinstance(output, str) for output in texts):
        raise InvalidInput(where, "", f"has {', '.join(row) or 'nothing'}", "model_output or model_outputs")
    return Response(problem_name(row.get("id", number), text), {}, texts, gold)


ZSTANDARD = 93
"""The method of compression that inspect_ai uses within zip files (APPNOTE.TXT, 4.4.5); Python's zipfile lacks it."""


def read_zstandard(path: Path) -> Any:
    """Read JSON that is compressed with Zstandard."""
    with reading(path), _errors(path):
        return parse_json(_decompressed(path.read_bytes(), path), str(path))


class Archive:
    """The JSON documents of a zip file, one in memory at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with reading(path), _errors(path):
            self._file = zipfile.ZipFile(path)  # closed with this object: its directory is read once
            self._entries = {entry.filename: entry for entry in self._file.infolist()}

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def read(self, name: str) -> Any:
        """Read one document."""
        entry, where = self._entries[name], f"{self.path}: {name}"
        if entry.file_size > MOST_BYTES:
            raise UserError(f"{where}: has {entry.file_size} bytes; accepted: up to {MOST_BYTES}")
        with reading(self.path), _errors(self.path):
            if entry.compress_type == ZSTANDARD:
                content = _decompressed(self._compressed(entry), self.path)
                if zlib.crc32(content) != entry.CRC:
                    raise zipfile.BadZipFile(f"{name} has another checksum")
                return parse_json(content, where)
            with self._file.open(entry) as document:
                return parse_json(document.read(MOST_BYTES), where)

    def _compressed(self, entry: zipfile.ZipInfo) -> bytes:
        """The bytes behind an entry's local header, which ends with a name and extra fields of its own lengths."""
        with open(self.path, "rb") as file:
            file.seek(entry.header_offset + 26)
            lengths = file.read(4)
            file.seek(int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little"), 1)
            return file.read(entry.compress_size)


def _decompressed(content: bytes, path: Path) -> bytes:
    import pyarrow as pa  # not for those who read other formats

    stream = pa.CompressedInputStream(pa.BufferReader(content), "zstd")
    parts, size = [], 0
    while part := stream.read(2**20):
        parts.append(part)
        size += len(part)
        if size > MOST_BYTES:
            raise UserError(f"{path}: unpacks to more than {MOST_BYTES} bytes, which is the most that is accepted")
    return b"".join(parts)


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    """Make what is wrong with compressed bytes a :class:`UserError`."""
    try:
        yield
    except (zipfile.BadZipFile, NotImplementedError, EOFError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the file system, and not of the decoder
            raise
        raise UserError(f"{path}: cannot be unpacked ({error})") from None
