"""Every run's score on one benchmark: grades in, ``results/scores/{benchmark}.json`` out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evals.core.errors import UserError
from evals.core.files import fingerprint, sha256_file, write_json
from evals.core.manifest import Manifest, hash_files
from evals.core.records import Grade, Run, read_runs
from evals.scores.grades import GradedRun, read_graded_run
from evals.statistics.accuracy import (
    average_at_k,
    clustered_standard_error,
    g_pass_at_k,
    majority_at_k,
    pass_at_k,
    sampling_standard_error,
)
from evals.statistics.interval import score_interval

CONFIDENCE = 0.95
G_PASS_THRESHOLDS = (0.5, 0.75, 1.0)


def score_benchmark(benchmark: str, graded: Sequence[GradedRun], runs: dict[str, Run], runs_path: Path) -> Any:
    """The content of ``scores/{benchmark}.json`` (docs/architecture.md, section 4).

    Raises:
        UserError: grades are of another benchmark or an unknown run, or the runs differ in problems or samples.
    """
    first = graded[0]
    seen: set[str] = set()
    for entry in graded:
        if entry.benchmark != benchmark:
            raise UserError(f"{entry.directory}: holds grades of {entry.benchmark}, not of {benchmark}")
        if entry.run not in runs:
            raise UserError(f"{entry.directory}: run {entry.run} is not in {runs_path}, which lists {', '.join(runs)}")
        if entry.run in seen:
            raise UserError(f"--grades: run {entry.run} is given twice")
        seen.add(entry.run)
        _check_same_problems(first, entry)
    return {
        "benchmark": benchmark,
        "samples_per_problem": first.samples,
        "problem_ids": list(first.grades),
        "scores": [_score(runs[entry.run], entry, list(first.grades)) for entry in graded],
    }


def _check_same_problems(first: GradedRun, other: GradedRun) -> None:
    """Scores of different problems, or of different numbers of samples, must not stand side by side."""
    path = other.directory / "grades.jsonl"
    lacking = [problem for problem in first.grades if problem not in other.grades]
    extra = [problem for problem in other.grades if problem not in first.grades]
    if lacking:
        raise UserError(f"{path}: run {other.run} lacks {len(lacking)} problems that {first.run} has: {lacking[0]} ...")
    if extra:
        raise UserError(f"{path}: run {other.run} has {len(extra)} problems that {first.run} lacks: {extra[0]} ...")
    if other.samples != first.samples:
        raise UserError(
            f"{path}: run {other.run} has {other.samples} samples per problem where {first.run} has {first.samples}"
        )


def _score(run: Run, graded: GradedRun, problem_ids: Sequence[str]) -> dict[str, Any]:
    """One row of the scores file."""
    identity = {"run": run.run, "model": run.model, "method": run.method, "seed": run.seed}
    return identity | measure([graded.grades[problem] for problem in problem_ids], CONFIDENCE)


def measure(rows: Sequence[Sequence[Grade]], confidence: float) -> dict[str, Any]:
    """Every number of a score, from the grades of each problem; all problems have the same number of samples."""
    grades = [grade for row in rows for grade in row]
    samples = len(rows[0])
    counts = np.array([sum(grade.correct for grade in row) for row in rows])
    interval = score_interval(counts, samples, confidence) if len(counts) > 1 else None
    answers, correct = (
        [[grade.answer for grade in row] for row in rows],
        [[grade.correct for grade in row] for row in rows],
    )
    return {
        "average_at_k": float(average_at_k(counts, samples)),
        "standard_error": float(clustered_standard_error(counts / samples)) if len(counts) > 1 else None,
        "confidence_interval": None if interval is None else list(interval),
        "sampling_standard_error": float(sampling_standard_error(counts, samples)) if samples > 1 else None,
        "pass_at_k": {str(k): float(pass_at_k(counts, samples, k)) for k in _powers_of_two(samples)},
        "g_pass_at_k": {f"{each:g}": float(g_pass_at_k(counts, samples, samples, each)) for each in G_PASS_THRESHOLDS},
        "majority_at_k": majority_at_k(answers, correct),
        "truncation_rate": _rate(grade.finish_reason == "length" for grade in grades),
        "no_answer_rate": _rate(grade.answer is None for grade in grades),
        "timeout_rate": _rate(grade.reason == "timeout" for grade in grades),
        "unparsable_rate": _rate(grade.reason == "unparsable" for grade in grades),
        "mean_tokens": float(np.mean([grade.tokens for grade in grades])),
        "total_tokens": sum(grade.tokens for grade in grades),
        "correct_counts": counts.tolist(),
    }


def _powers_of_two(samples: int) -> list[int]:
    """1, 2, 4 ... up to the number of samples."""
    return [2**exponent for exponent in range(samples.bit_length())]


def _rate(flags: Iterable[bool]) -> float:
    """Fraction of true values."""
    return float(np.mean(list(flags)))


def write_scores(benchmark: str, grades: Sequence[Path], runs: Path, out: Path) -> None:
    """Write the scores of one benchmark, and a manifest beside them.

    Args:
        benchmark: its name.
        grades: directories of the grades of each run.
        runs: the run sheet.
        out: the JSON file.

    Raises:
        UserError: an input is missing, changed or malformed, or the output cannot be written.
    """
    graded = [read_graded_run(directory) for directory in grades]
    content = score_benchmark(benchmark, graded, {run.run: run for run in read_runs(runs)}, runs)
    write_json(out, content)
    inputs = {runs.as_posix(): sha256_file(runs)}
    for entry in graded:
        inputs |= entry.hashes
    parameters = {"benchmark": benchmark, "confidence": CONFIDENCE}
    Manifest(
        kind="scores",
        inputs=inputs,
        outputs=hash_files(out.parent, out),
        parameters=parameters,
        fingerprint=fingerprint({"kind": "scores", "parameters": parameters, "inputs": sorted(inputs.values())}),
        details={
            "runs": len(content["scores"]),
            "problems": len(content["problem_ids"]),
            "samples_per_problem": content["samples_per_problem"],
        },
    ).write(out.with_suffix(".manifest.json"))
