"""Grading of a file of samples, in a study's job, and of cases on standard input; the trial of a user's verifier."""

import json
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from pydantic import Field

from evals.core.errors import InvalidInput, UserError
from evals.core.files import fingerprint, parse_json, read_jsonl, sha256_file, write_bytes, write_jsonl
from evals.core.manifest import Manifest, hash_files, verify_outputs
from evals.core.record import ExtensibleRecord, read_rows, scan_rows
from evals.core.records import Gold, Grade, Sample
from evals.core.run_spec import VERIFIER_FILE
from evals.grading import CHOICE_VERSION, VERSION
from evals.grading.code import VERIFIER_VERSION
from evals.grading.code.run import PARAMETERS, grade_programs
from evals.grading.code.sandbox import require_sandbox
from evals.grading.code.tests import TESTS_FILE
from evals.grading.pool import GradingPool
from evals.grading.verdict import CODE, VERIFIER, Case, Kind, Reason, Verdict

Row = dict[str, Any]

_MOST_ERRORS = 20  # different ones that the manifest counts
_BATCH = 2_000  # cases of standard input between two writes


@dataclass(frozen=True)
class GradedSamples:
    """The samples and grades of one run on one benchmark, in one order.

    ``samples`` reads them anew at each call, one in memory at a time.
    """

    run: str
    benchmark: str
    kind: str  # one of Kind, code or verifier
    samples: Callable[[], Iterator[Sample]]
    grades: Sequence[Grade]
    golds: Mapping[str | int, str]  # problem -> reference answer


def grade_file(
    samples: Path, problems: Path, out: Path, pool: GradingPool, kind: str = Kind.COMPLETION
) -> Counter[str]:
    """Grade a file of samples; return how often each reason was given.

    Writes ``grades.jsonl.bz2``, a row per sample in the same order, and ``manifest.json``, which has the seconds: equal
    samples have equal rows. A manifest is beside the samples and, of programs, beside the problems with their tests.
    ``kind`` is one of :class:`Kind`, ``code``, or ``verifier`` where the pool has one.
    """
    if kind == CODE:
        require_sandbox()
    if (kind == VERIFIER) != (pool.verifier is not None):
        raise UserError(f"--kind: is {kind}, --verifier: {pool.verifier or 'none'}; accepted: both or none")
    inputs = _inputs(samples, problems)
    if kind == CODE:
        tests, manifest = problems.with_name(TESTS_FILE), problems.with_name("manifest.json")
        outputs = verify_outputs(manifest, "problems").outputs
        if TESTS_FILE not in outputs:
            raise UserError(f"{manifest}: does not list {TESTS_FILE}: no benchmark of programs")
        inputs[str(tests)] = outputs[TESTS_FILE]
        read = list(scan_samples(samples, problems, read_golds(problems)))
        verdicts, parameters = _unanswered(read, grade_programs(read, tests, pool.workers)), PARAMETERS
        rows = list(map(_grade_row, read, verdicts))
    else:
        version, read_as = CHOICE_VERSION if kind == Kind.CHOICE else VERSION, kind
        if pool.verifier is not None:
            version, read_as = VERIFIER_VERSION, Kind.COMPLETION
            inputs[str(pool.verifier)] = sha256_file(pool.verifier)
        golds = read_golds(problems)
        by_id = {row["id"]: row for row in read_jsonl(problems)} if pool.verifier else {}
        rows, verdicts = judge_samples(scan_samples(samples, problems, golds), golds, pool, Kind(read_as), by_id)
        parameters = {"grader_version": version, "kind": str(kind)}
        parameters |= {"time_limit": pool.time_limit, "memory_limit": pool.memory_limit}
    path = out / "grades.jsonl.bz2"
    write_jsonl(path, rows)
    reasons: Counter[str] = Counter(verdict.reason for verdict in verdicts)
    Manifest(
        kind="grades",
        inputs=inputs,
        outputs=hash_files(out, path),
        parameters=parameters,
        fingerprint=fingerprint({"inputs": sorted(inputs.values()), "parameters": parameters}),
        details={
            "rows": len(rows),
            "correct": reasons[Reason.MATCH],
            "reasons": {reason.value: reasons[reason] for reason in Reason},
            "errors": dict(Counter(verdict.error for verdict in verdicts if verdict.error).most_common(_MOST_ERRORS)),
            "seconds": round(sum(verdict.seconds for verdict in verdicts), 3),
        },
    ).write(out / "manifest.json")
    return reasons


def _inputs(samples: Path, problems: Path) -> dict[str, str]:
    """Path -> hash of both files, after checking them against the samples' manifest."""
    path = samples.with_name("manifest.json")
    manifest = verify_outputs(path, "samples")
    if samples.name not in manifest.outputs:
        raise UserError(f"{path}: does not list {samples.name} among its outputs")
    problems_hash = sha256_file(problems)
    recorded = {digest for name, digest in manifest.inputs.items() if Path(name).name == problems.name}
    if recorded and problems_hash not in recorded:
        raise UserError(f"{problems}: is not the file that {samples} was sampled from; sample again, or name that file")
    return {str(samples): manifest.outputs[samples.name], str(problems): problems_hash}


def judge_samples(
    samples: Iterable[Sample],
    golds: Mapping[str | int, str],
    pool: GradingPool,
    kind: Kind,
    problems: Mapping[str | int, Row] = {},
) -> tuple[list[Row], list[Verdict]]:
    """The rows of a file of grades and the verdicts behind them, of samples from anywhere, read one at a time.

    ``golds``: the answers of their problems; ``problems``: the rows of these, for a verifier.
    """
    read: list[Sample] = []  # without their texts

    def cases() -> Iterator[Case]:
        for row in samples:
            read.append(row.model_copy(update={"text": ""}))
            gold, truncated = golds[row.problem_id], row.finish_reason == "length"
            yield Case(row.text, gold, kind, truncated, row.in_thinking or False, problems.get(row.problem_id))

    verdicts = pool.grade(cases())
    verdicts = _unanswered(read, verdicts)
    return list(map(_grade_row, read, verdicts)), verdicts


def _unanswered(samples: Iterable[Sample], verdicts: Iterable[Verdict]) -> list[Verdict]:
    """The verdicts on samples; of one that no server answered it is that there was nothing to judge."""
    none = Verdict.of(None, Reason.UNANSWERED, 0.0)
    return [none if row.finish_reason == "unanswered" else of for row, of in zip(samples, verdicts, strict=True)]


def read_golds(problems: Path) -> dict[str | int, str]:
    """The gold answer of every problem, by id."""
    golds: dict[str | int, str] = {}
    for row in read_rows(problems, Gold):
        if row.id in golds:
            raise UserError(f"{problems}: id {row.id!r} appears twice")
        if not row.answer.strip():
            raise InvalidInput(str(problems), f"id {row.id!r}", f"answer is {row.answer!r}", "text that is not empty")
        golds[row.id] = row.answer
    return golds


def scan_samples(samples: Path, problems: Path, golds: Container[str | int]) -> Iterator[Sample]:
    """The rows of a file of samples: no two of the same problem and number, and all of problems with a gold answer."""
    seen: set[tuple[str | int, int]] = set()
    for row in scan_rows(samples, Sample):
        name = f"{samples}: problem_id {row.problem_id!r}, sample {row.sample}"
        if row.problem_id not in golds:
            raise UserError(f"{name}: is not a problem of {problems}")
        if (row.problem_id, row.sample) in seen:
            raise UserError(f"{name}: appears twice")
        seen.add((row.problem_id, row.sample))
        yield row


def _grade_row(sample: Sample, verdict: Verdict) -> Row:
    identity = {"problem_id": sample.problem_id, "sample": sample.sample}
    return {**identity, **_judged(verdict), "tokens": sample.tokens, "finish_reason": sample.finish_reason}


def _judged(verdict: Verdict) -> Row:
    row = {"correct": verdict.correct, "answer": verdict.answer, "reason": verdict.reason.value}
    known = {"reward": verdict.verified, "error": verdict.error}
    return row | {key: value for key, value in known.items() if value is not None}


class _Line(ExtensibleRecord):
    """A case on standard input."""

    id: Any
    pred: str
    gold: str
    kind: Kind = Field(Kind.COMPLETION, strict=False)
    truncated: bool = False
    in_thinking: bool = False


def grade_lines(source: Iterable[bytes], target: TextIO, pool: GradingPool) -> None:
    """Grade lines of JSON (:class:`_Line`), and write id, correct, answer, reason, seconds; none if one is bad."""
    lines: list[tuple[_Line, Row]] = []
    for number, text in enumerate(source, start=1):
        where = f"standard input: line {number}"
        if text.strip():
            content = parse_json(text, where)
            lines.append((_Line.parse(content, where), content))
    for start in range(0, len(lines), _BATCH):
        batch = lines[start : start + _BATCH]
        verdicts = pool.grade(
            Case(line.pred, line.gold, line.kind, line.truncated, line.in_thinking, {**row, "answer": line.gold})
            for line, row in batch
        )
        for (line, _), verdict in zip(batch, verdicts, strict=True):
            row = {"id": line.id, **_judged(verdict), "seconds": round(verdict.seconds, 6)}
            target.write(json.dumps(row) + "\n")
        target.flush()


def try_verifier(file: Path, problems: Path, out: Path) -> None:
    """Try a user's verifier on a gold answer and an empty response; ``out`` gets a copy for what depends on it."""
    row = read_jsonl(problems, required=("id", "problem", "answer"))[0]
    gold = str(row["answer"])
    responses = {"its gold answer": gold, "an empty response": ""}
    with GradingPool(workers=1, verifier=file) as pool:
        verdicts = pool.grade(Case(response, gold, problem=row) for response in responses.values())
    for name, verdict in zip(responses, verdicts, strict=True):
        if verdict.error is not None:
            raise UserError(f"{file}: tried on problem {row['id']} with {name}: {verdict.error}")
    copy = out / VERIFIER_FILE
    write_bytes(copy, file.read_bytes())
    parameters = {"version": VERIFIER_VERSION, "sha256": sha256_file(copy)}
    Manifest(
        kind="verifier",
        inputs={str(problems): sha256_file(problems)},  # the user's file has the bytes of the copy, wherever it lies
        outputs=hash_files(out, copy),
        parameters=parameters,
        fingerprint=fingerprint(parameters),
        details={"tried": {name: verdict.reward for name, verdict in zip(responses, verdicts, strict=True)}},
    ).write(out / "manifest.json")
