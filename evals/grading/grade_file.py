"""Grading of a file of samples, in a study's job, and of cases on standard input (``rlvr-bench grade``)."""

import json
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from pydantic import Field

from evals.core.errors import InvalidInput, UserError
from evals.core.files import fingerprint, parse_json, read_jsonl, sha256_file, write_jsonl
from evals.core.manifest import Manifest, hash_files, verify_outputs
from evals.core.record import ExtensibleRecord, read_rows, scan_rows
from evals.core.records import Gold, Sample
from evals.grading import CHOICE_VERSION, VERSION
from evals.grading.code import VERIFIER_VERSION
from evals.grading.code.run import PARAMETERS, grade_programs
from evals.grading.code.sandbox import require_sandbox
from evals.grading.code.tests import TESTS_FILE
from evals.grading.pool import GradingPool
from evals.grading.verdict import CODE, VERIFIER, Case, Kind, Reason, Verdict

Row = dict[str, Any]

_BATCH = 2_000  # cases of standard input between two writes


def grade_file(
    samples: Path, problems: Path, out: Path, pool: GradingPool, kind: str = Kind.COMPLETION
) -> Counter[str]:
    """Grade a file of samples; write ``grades.jsonl``, a row per sample in the same order, and ``manifest.json``.

    Equal samples have equal rows: the seconds that grading took stand in the manifest.

    Args:
        samples: ``samples.jsonl``, with its manifest beside it.
        problems: ``problems.jsonl``; of programs, with its manifest and ``tests.jsonl`` beside it.
        out: the directory to write to.
        pool: what grades; as many programs run at a time as it has workers.
        kind: the form of the samples, one of :class:`Kind`, ``code``, or ``verifier`` where the pool has one.

    Returns:
        How often each reason was given.
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
        read = list(_scan_samples(samples, problems, read_golds(problems)))
        verdicts, parameters = _unanswered(read, grade_programs(read, tests, pool.workers)), PARAMETERS
        rows = list(map(_grade_row, read, verdicts))
    else:
        version, read_as = CHOICE_VERSION if kind == Kind.CHOICE else VERSION, kind
        if pool.verifier is not None:
            version, read_as = VERIFIER_VERSION, Kind.COMPLETION
            inputs[str(pool.verifier)] = sha256_file(pool.verifier)
        rows, verdicts = grade_samples(samples, problems, pool, Kind(read_as))
        limits = {"time_limit": pool.time_limit, "memory_limit": pool.memory_limit}
        parameters = {"grader_version": version, "kind": str(kind), **limits}
    path = out / "grades.jsonl"
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


def grade_samples(samples: Path, problems: Path, pool: GradingPool, kind: Kind) -> tuple[list[Row], list[Verdict]]:
    """The rows of ``grades.jsonl`` and the verdicts behind them, without regard to manifests.

    Of the samples' texts one is in memory at a time.
    """
    golds = read_golds(problems)
    rows = {row["id"]: row for row in read_jsonl(problems)} if pool.verifier else {}
    return judge_samples(_scan_samples(samples, problems, golds), golds, pool, kind, rows)


def judge_samples(
    samples: Iterable[Sample],
    golds: Mapping[str | int, str],
    pool: GradingPool,
    kind: Kind,
    problems: Mapping[str | int, Row] = {},
) -> tuple[list[Row], list[Verdict]]:
    """The same of samples from anywhere, with the gold answers of their problems; for a verifier, with their rows."""
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
    pairs = zip(samples, verdicts, strict=True)
    return [none if sample.finish_reason == "unanswered" else verdict for sample, verdict in pairs]


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


def _scan_samples(samples: Path, problems: Path, golds: Container[str | int]) -> Iterator[Sample]:
    """The rows of ``samples.jsonl``: no two of the same problem and number, and all of problems with a gold answer."""
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
    of_verifier = {"reward": verdict.verified, "error": verdict.error}
    return {
        "correct": verdict.correct,
        "answer": verdict.answer,
        "reason": verdict.reason.value,
        **{key: value for key, value in of_verifier.items() if value is not None},
    }


class _Line(ExtensibleRecord):
    """A case on standard input."""

    id: Any
    pred: str
    gold: str
    kind: Kind = Field(Kind.COMPLETION, strict=False)
    truncated: bool = False
    in_thinking: bool = False


def grade_lines(source: Iterable[bytes], target: TextIO, pool: GradingPool) -> None:
    """Grade lines of JSON with id, pred, gold and, if wanted, kind, truncated, in_thinking; none if one is malformed.

    ``target`` gets lines of JSON with id, correct, answer, reason and seconds, of a verifier also its reward.
    """
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
