"""Every run's score on one benchmark: grades in, ``results/scores/{benchmark}.json`` out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evals.core.errors import UserError
from evals.core.files import fingerprint, sha256_file, write_json
from evals.core.manifest import Manifest, hash_files
from evals.core.records import BenchmarkScores, Grade, Run, Score, read_runs
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


def write_scores(benchmark: str, grades: Sequence[Path], runs: Path, out: Path) -> None:
    """Write the scores of one benchmark, and a manifest beside them.

    Args:
        benchmark: its name.
        grades: results/grades/{run}/{benchmark} of every run.
        runs: the run sheet.
        out: results/scores/{benchmark}.json.

    Raises:
        UserError: an input is missing, changed or malformed, or the output cannot be written.
    """
    graded = [read_graded_run(directory) for directory in grades]
    content = score_benchmark(benchmark, graded, {run.run: run for run in read_runs(runs)}, runs)
    write_json(out, content.to_json())
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
            "runs": len(content.scores),
            "problems": len(content.problem_ids),
            "samples_per_problem": content.samples_per_problem,
        },
    ).write(out.with_suffix(".manifest.json"))


def score_benchmark(
    benchmark: str, graded: Sequence[GradedRun], runs: Mapping[str, Run], runs_path: Path
) -> BenchmarkScores:
    """Score every run on a benchmark.

    Raises:
        UserError: grades are of another benchmark or an unknown run, or the runs differ in problems or samples.
    """
    first = graded[0]
    seen: set[str] = set()
    for entry in graded:
        if entry.benchmark != benchmark:
            raise UserError(f"{entry.path.parent}: holds grades of {entry.benchmark}, not of {benchmark}")
        if entry.run not in runs:
            known = ", ".join(runs)
            raise UserError(f"{entry.path.parent}: run {entry.run} is not in {runs_path}, which lists {known}")
        if entry.run in seen:
            raise UserError(f"--grades: run {entry.run} is given twice")
        seen.add(entry.run)
        _check_same_problems(first, entry)
    problem_ids = tuple(first.grades)
    scores = []
    for entry in graded:
        run, values = runs[entry.run], measure(entry.rows(problem_ids), CONFIDENCE)
        scores.append(Score(run=run.run, model=run.model, method=run.method, seed=run.seed, **values))
    return BenchmarkScores(
        benchmark=benchmark, samples_per_problem=first.samples, problem_ids=problem_ids, scores=tuple(scores)
    )


def _check_same_problems(first: GradedRun, other: GradedRun) -> None:
    """Refuse scores of different problems, or of different numbers of samples, side by side."""
    lacking = [problem for problem in first.grades if problem not in other.grades]
    extra = [problem for problem in other.grades if problem not in first.grades]
    about = f"{other.path}: run {other.run}"
    if lacking:
        raise UserError(f"{about} lacks {len(lacking)} problems that {first.run} has: {lacking[0]} ...")
    if extra:
        raise UserError(f"{about} has {len(extra)} problems that {first.run} lacks: {extra[0]} ...")
    if other.samples != first.samples:
        raise UserError(f"{about} has {other.samples} samples per problem where {first.run} has {first.samples}")


def measure(rows: Sequence[Sequence[Grade]], confidence: float) -> dict[str, Any]:
    """Compute every number of a :class:`~evals.core.records.Score`.

    Args:
        rows: the grades of each problem; all problems have the same number of samples.
        confidence: level of the interval.
    """
    grades = [grade for row in rows for grade in row]
    samples = len(rows[0])
    counts = np.array([sum(grade.correct for grade in row) for row in rows])
    levels = [2**exponent for exponent in range(samples.bit_length())]  # 1, 2, 4 ... up to the number of samples
    return {
        "average_at_k": float(average_at_k(counts, samples)),
        "standard_error": float(clustered_standard_error(counts / samples)) if len(counts) > 1 else None,
        "confidence_interval": score_interval(counts, samples, confidence) if len(counts) > 1 else None,
        "sampling_standard_error": float(sampling_standard_error(counts, samples)) if samples > 1 else None,
        "pass_at_k": {str(k): float(pass_at_k(counts, samples, k)) for k in levels},
        "g_pass_at_k": {f"{each:g}": float(g_pass_at_k(counts, samples, samples, each)) for each in G_PASS_THRESHOLDS},
        "majority_at_k": majority_of(rows),
        "truncation_rate": _rate(grade.finish_reason == "length" for grade in grades),
        "no_answer_rate": _rate(grade.answer is None for grade in grades),
        "timeout_rate": _rate(grade.reason == "timeout" for grade in grades),
        "unparsable_rate": _rate(grade.reason == "unparsable" for grade in grades),
        "mean_tokens": float(np.mean([grade.tokens for grade in grades])),
        "total_tokens": sum(grade.tokens for grade in grades),
        "correct_counts": tuple(counts.tolist()),
    }


def majority_of(rows: Sequence[Sequence[Grade]], k: int | None = None) -> float:
    """maj@k of the grades of each problem; all samples vote if k is None."""
    votes = [[grade.answer for grade in row] for row in rows]
    return majority_at_k(votes, [[grade.correct for grade in row] for row in rows], k)


def _rate(flags: Iterable[bool]) -> float:
    """The fraction of true values."""
    return float(np.mean(list(flags)))
