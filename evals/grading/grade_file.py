"""The study's grading stage: a file of samples in, a file of grades out.

``rlvr-bench stage grade --samples .../samples.jsonl --problems .../problems.jsonl --out results/grades/R/B/``
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any

from evals.core.errors import UserError
from evals.core.files import fingerprint, read_jsonl, sha256_file, write_jsonl
from evals.core.manifest import Manifest, hash_files, verify_outputs
from evals.grading import VERSION
from evals.grading.pool import GradingPool
from evals.grading.verdict import Case, Kind, Reason, Verdict

SAMPLE_KEYS = ("problem_id", "sample", "text", "tokens", "finish_reason")
FINISH_REASONS = ("stop", "length")


def grade_file(
    samples: Path, problems: Path, out: Path, pool: GradingPool, kind: Kind = Kind.COMPLETION
) -> Counter[Reason]:
    """Grade a file of samples.

    Writes ``grades.jsonl``, a row per sample in the same order, and ``manifest.json`` to ``out``.

    Args:
        samples: ``samples.jsonl``, with the manifest of kind "samples" beside it.
        problems: ``problems.jsonl``.
        out: the directory to write to.
        pool: what grades.
        kind: how the samples are to be read.

    Returns:
        How often each reason was given.

    Raises:
        UserError: a file is missing, changed, or not in its format, or samples and problems do not belong together.
    """
    problems_hash = sha256_file(problems)
    samples_hash = check_origin(samples, problems, problems_hash)
    rows, verdicts = grade_samples(samples, problems, pool, kind)
    inputs = {str(samples): samples_hash, str(problems): problems_hash}
    parameters = {
        "grader_version": VERSION,
        "kind": kind.value,
        "time_limit": pool.time_limit,
        "memory_limit": pool.memory_limit,
    }
    return write_grades(out, rows, verdicts, inputs, parameters)


def write_grades(
    out: Path,
    rows: Sequence[Mapping[str, Any]],
    verdicts: Sequence[Verdict],
    inputs: Mapping[str, str],
    parameters: Mapping[str, Any],
) -> Counter[Reason]:
    """Write ``grades.jsonl`` and its manifest; how often each reason was given.

    Args:
        out: the directory to write to.
        rows: of the file, from :func:`grade_row`.
        verdicts: behind them, in the same order.
        inputs: path -> hash of every file that they were made from.
        parameters: all else that decides a verdict.

    Raises:
        UserError: a file cannot be written.
    """
    grades = out / "grades.jsonl"
    write_jsonl(grades, rows)
    reasons = Counter(verdict.reason for verdict in verdicts)
    Manifest(
        kind="grades",
        inputs=inputs,
        outputs=hash_files(out, grades),
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


def grade_samples(
    samples: Path, problems: Path, pool: GradingPool, kind: Kind
) -> tuple[list[dict[str, Any]], list[Verdict]]:
    """The rows of ``grades.jsonl`` and the verdicts behind them, without regard to manifests.

    Raises:
        UserError: a file is missing or not in its format, or samples and problems do not belong together.
    """
    golds = read_golds(problems)
    rows = read_samples(samples, problems, golds)
    verdicts = list(
        pool.grade(
            Case(row["text"], golds[row["problem_id"]], kind, truncated=row["finish_reason"] == "length")
            for row in rows
        )
    )
    return [grade_row(row, verdict) for row, verdict in zip(rows, verdicts, strict=True)], verdicts


def check_origin(samples: Path, problems: Path, problems_hash: str) -> str:
    """Check that the samples are the bytes their manifest speaks of, made from these problems; returns their hash."""
    path = samples.parent / "manifest.json"
    manifest = verify_outputs(path, "samples")
    if samples.name not in manifest.outputs:
        raise UserError(f"{path}: does not list {samples.name} among its outputs")
    recorded = {digest for name, digest in manifest.inputs.items() if Path(name).name == problems.name}
    if recorded and problems_hash not in recorded:
        raise UserError(f"{problems}: is not the file that {samples} was sampled from; sample again, or name that file")
    return manifest.outputs[samples.name]


def read_golds(problems: Path) -> dict[str, str]:
    """The gold answer of every problem, by id.

    Raises:
        UserError: the file is missing or not in its format, or an id appears twice.
    """
    golds: dict[str, str] = {}
    for row in read_jsonl(problems, ("id", "answer")):
        if row["id"] in golds:
            raise UserError(f"{problems}: id {row['id']!r} appears twice")
        if not isinstance(row["answer"], str) or not row["answer"].strip():
            raise UserError(
                f"{problems}: id {row['id']!r}: answer is {row['answer']!r}; accepted: text that is not empty"
            )
        golds[row["id"]] = row["answer"]
    return golds


def read_samples(samples: Path, problems: Path, known: Container[str] | None = None) -> Sequence[Mapping[str, Any]]:
    """The rows of ``samples.jsonl``.

    Raises:
        UserError: a row is malformed, doubled, or not of a ``known`` problem.
    """
    rows = read_jsonl(samples, SAMPLE_KEYS)
    seen: set[tuple[str, int]] = set()
    for row in rows:
        name = f"{samples}: problem_id {row['problem_id']!r}, sample {row['sample']!r}"
        if known is not None and row["problem_id"] not in known:
            raise UserError(f"{name}: is not a problem of {problems}")
        if (row["problem_id"], row["sample"]) in seen:
            raise UserError(f"{name}: appears twice")
        seen.add((row["problem_id"], row["sample"]))
        if not isinstance(row["text"], str):
            raise UserError(f"{name}: text is {type(row['text']).__name__}; accepted: a string")
        if row["finish_reason"] not in FINISH_REASONS:
            raise UserError(f"{name}: finish_reason is {row['finish_reason']!r}; accepted: {', '.join(FINISH_REASONS)}")
    return rows


def grade_row(row: Mapping[str, Any], verdict: Verdict) -> dict[str, Any]:
    """A sample's row of ``grades.jsonl``."""
    return {
        "problem_id": row["problem_id"],
        "sample": row["sample"],
        "correct": verdict.correct,
        "answer": verdict.answer,
        "reason": verdict.reason.value,
        "seconds": round(verdict.seconds, 6),
        "tokens": row["tokens"],
        "finish_reason": row["finish_reason"],
    }
