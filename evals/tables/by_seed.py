"""Every run on every benchmark: what the main table averages away."""

from __future__ import annotations

from typing import Any

import pandas as pd

from evals.core.records import Run
from evals.results import Results
from evals.tables import numbers
from evals.tables.layout import Table

_NUMBERS = (
    "average_at_k",
    "standard_error",
    "majority_at_k",
    "truncation_rate",
    "no_answer_rate",
    "timeout_rate",
    "unparsable_rate",
    "mean_tokens",
    "total_tokens",
)


def by_seed_tables(results: Results) -> list[Table]:
    """One table per benchmark, one row per run."""
    return [_benchmark_table(results, benchmark) for benchmark in results.benchmarks]


def _benchmark_table(results: Results, benchmark: str) -> Table:
    k, level = results.samples_per_problem, round(100 * results.confidence)
    reported_pass = sorted(
        {key for run in results.runs for key in results.scores[run.run, benchmark].pass_at_k}, key=int
    )
    reported_pass = [key for key in reported_pass if key != "1"]  # pass@1 is avg@k
    rows = []
    for run in results.runs:
        score = results.scores[run.run, benchmark]
        rows.append(
            (
                run.run,
                numbers.percent_with_error(score.average_at_k, score.standard_error),
                numbers.NO_INTERVAL if score.confidence_interval is None else numbers.bounds(score.confidence_interval),
                *(numbers.percent(score.pass_at_k.get(key)) for key in reported_pass),
                numbers.percent(score.majority_at_k),
                numbers.percent(score.truncation_rate),
                numbers.percent(score.no_answer_rate),
                numbers.percent(score.unparsable_rate + score.timeout_rate),
                f"{score.mean_tokens:.1f}",
            )
        )
    header = (
        "Run",
        f"avg@{k} ± SE",
        f"{level} % interval",
        *(f"pass@{key}" for key in reported_pass),
        f"maj@{k}",
        "Truncated",
        "No answer",
        "Not judged",
        "Tokens a sample",
    )
    note = (
        "Per cent but for tokens. SE: problems are the clusters of their samples; it says how well this checkpoint is "
        "measured and holds no variance between training seeds. Not judged: unparsable, or grading timed out. "
        f"{numbers.NO_INTERVAL}: a handful of problems decides, and no interval is to be trusted."
    )
    return Table(f"by_seed_{benchmark}", f"{benchmark}: every run", header, tuple(rows), (note,))


def by_seed_frame(results: Results) -> pd.DataFrame:
    """One row per run and benchmark in full precision; rates and averages are fractions of one."""
    rows = [_frame_row(results, run, benchmark) for benchmark in results.benchmarks for run in results.runs]
    return pd.DataFrame(rows).astype({"seed": "Int64"})  # nullable: the base model has no seed


def _frame_row(results: Results, run: Run, benchmark: str) -> dict[str, Any]:
    score = results.scores[run.run, benchmark]
    low, high = score.confidence_interval or (None, None)
    return {
        **dict(run),
        "benchmark": benchmark,
        "samples_per_problem": results.samples_per_problem,
        **{name: getattr(score, name) for name in _NUMBERS},
        "confidence_low": low,
        "confidence_high": high,
        **{f"pass_at_{k}": value for k, value in score.pass_at_k.items()},
        "sampling_standard_error": score.sampling_standard_error,
        **{f"g_pass_at_{results.samples_per_problem}_{share}": value for share, value in score.g_pass_at_k.items()},
    }
