"""Score files of samples or grades: avg@k with its errors and interval, pass@k, maj@k, G-Pass@k, what went wrong.

A path is a file of grades or samples, a directory that holds one, or a run's directory with one for each benchmark.
Samples are graded on the way; nothing is written. A run with several benchmarks gets one more row, the mean over them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evals.core.errors import UserError
from evals.core.records import ALL_BENCHMARKS
from evals.grading.verdict import Kind
from evals.scores.score import measure
from evals.shell.inputs import Answers, find_files, read_answers
from evals.shell.output import Format, print_rows
from evals.statistics.accuracy import g_pass_at_k, majority_at_k, pass_at_k
from evals.statistics.average import estimate_average
from evals.tables import numbers
from evals.tables.layout import Table


@dataclass(frozen=True)
class ScoreOptions:
    """The options of ``rlvr-bench score``.

    Attributes:
        samples: files or directories.
        problems: problems with their answers, for samples without grades.
        kind: how samples are read; None: choice if the problems have options, else completion.
        workers: grading processes.
        k: of pass@k, maj@k and G-Pass@k; none: half of n.
        threshold: of G-Pass: share of the k samples that has to be right.
        confidence: of the intervals.
        form: what is printed.
    """

    samples: Sequence[Path]
    problems: Sequence[Path]
    kind: Kind | None
    workers: int
    k: Sequence[int]
    threshold: float
    confidence: float
    form: Format


def score(options: ScoreOptions) -> None:
    """Print the scores.

    Raises:
        UserError: an input is missing or malformed, or an option is out of range.
    """
    if not 0.5 <= options.confidence < 1.0:
        raise UserError(f"--confidence: is {options.confidence}; accepted: 0.5 up to 1, 1 excluded")
    if not 0.0 < options.threshold <= 1.0:
        raise UserError(f"--threshold: is {options.threshold}; accepted: above 0, up to 1")
    answers = read_answers(find_files(options.samples), options.problems, options.kind, options.workers)
    rows = [_row(each, options) for each in answers]
    for run_name in dict.fromkeys(each.run for each in answers):
        members = [each for each in answers if each.run == run_name]
        if len({each.benchmark for each in members}) == len(members) > 1:
            rows.append(_suite_row(run_name, members, options.confidence))
    print_rows(options.form, rows, _table(rows, answers, options), "scores")


def _row(answers: Answers, options: ScoreOptions) -> dict[str, Any]:
    n = answers.samples
    chosen = options.k or [max(1, n // 2)]
    if min(chosen) < 1 or max(chosen) > n:
        raise UserError(
            f"--k: is {' '.join(map(str, chosen))}; {answers.path} has {n} samples a problem; accepted: 1..{n}"
        )
    values = measure(answers.rows, options.confidence)
    votes = [[grade.answer for grade in row] for row in answers.rows]
    correct = [[grade.correct for grade in row] for row in answers.rows]
    values["pass_at_k"] = {str(k): float(pass_at_k(answers.counts, n, k)) for k in chosen}
    values["g_pass_at_k"] = {
        f"{k}_{options.threshold:g}": float(g_pass_at_k(answers.counts, n, k, options.threshold)) for k in chosen
    }
    values["majority_at_k"] = {str(k): majority_at_k(votes, correct, k) for k in chosen}
    identity = {
        "run": answers.run,
        "benchmark": answers.benchmark,
        "file": str(answers.path),
        "verified": answers.verified,
        "problems": len(answers.grades),
        "samples_per_problem": n,
        "confidence": options.confidence,
    }
    return identity | values


def _suite_row(run_name: str, members: Sequence[Answers], confidence: float) -> dict[str, Any]:
    """The mean over benchmarks, each weighing the same; the interval is stratified by benchmark."""
    for each in members:
        if len(each.grades) < 2:
            raise UserError(f"{each.path}: has one problem; a mean over benchmarks needs two or more in each")
    average = estimate_average(
        [np.array([each.counts]) / each.samples for each in members],
        [each.samples for each in members],
        is_fixed=True,
        confidence=confidence,
    )
    return {
        "run": run_name,
        "benchmark": ALL_BENCHMARKS,
        "problems": sum(len(each.grades) for each in members),
        "samples_per_problem": members[0].samples if len({each.samples for each in members}) == 1 else None,
        "confidence": confidence,
        "average_at_k": average.value,
        "standard_error": average.standard_error,
        "confidence_interval": None if average.interval is None else list(average.interval),
    }


def _table(rows: Sequence[Mapping[str, Any]], answers: Sequence[Answers], options: ScoreOptions) -> Table:
    chosen = sorted({k for row in rows for k in row.get("pass_at_k", {})}, key=int)
    level, threshold = f"{100 * options.confidence:g}", f"{options.threshold:g}"
    header = (
        "Run", "Benchmark", "Problems", "n", "avg@n ± SE", f"{level} % interval", "Sampling SE",
        *(f"pass@{k}" for k in chosen), *(f"maj@{k}" for k in chosen), *(f"G-Pass@{k} ({threshold})" for k in chosen),
        "Truncated", "No answer", "Not judged", "Tokens",
    )  # fmt: skip
    cells = []
    for row in rows:
        interval = row["confidence_interval"]
        unjudged = None if "timeout_rate" not in row else row["timeout_rate"] + row["unparsable_rate"]
        cells.append(
            (
                row["run"],
                row["benchmark"],
                str(row["problems"]),
                str(row["samples_per_problem"] or "mixed"),
                numbers.percent_with_error(row["average_at_k"], row["standard_error"]),
                numbers.NO_INTERVAL if interval is None else numbers.bounds(interval),
                numbers.percent(row.get("sampling_standard_error")),
                *(numbers.percent(row.get("pass_at_k", {}).get(k)) for k in chosen),
                *(numbers.percent(row.get("majority_at_k", {}).get(k)) for k in chosen),
                *(numbers.percent(row.get("g_pass_at_k", {}).get(f"{k}_{threshold}")) for k in chosen),
                numbers.percent(row.get("truncation_rate")),
                numbers.percent(row.get("no_answer_rate")),
                numbers.percent(unjudged),
                f"{row['mean_tokens']:.1f}" if "mean_tokens" in row else numbers.NOTHING,
            )
        )
    notes = [
        "Per cent but for problems, samples and tokens. SE and interval: over problems, their samples are clusters. "
        "docs/evaluation.md says what each number means."
    ]
    if any(row["confidence_interval"] is None for row in rows):
        notes.append(f"{numbers.NO_INTERVAL}: a handful of problems decides, and no interval is to be trusted.")
    unverified = [str(each.path) for each in answers if not each.verified]
    if unverified:
        notes.append(f"Read without a manifest that vouches for its bytes: {', '.join(unverified)}.")
    return Table("scores", "Scores", header, tuple(cells), tuple(notes))
