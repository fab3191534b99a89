"""The numbers, settings and responses of an MLflow run, from result files."""

import json
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd
from mlflow.entities import Metric

from evals.core.errors import InvalidInput
from evals.core.files import parse_json, read_lines
from evals.core.record import scan_rows
from evals.core.records import Grade, Run, Sample
from evals.results import Results
from evals.statistics.weighting import weighted_mean
from evals.tables.layout import interval_columns

PROBLEMS_IN_TABLE = 10  # of each benchmark
_LONGEST_TEXT = 4000  # characters of a response


def first_responses(run: Run, results: Results, directory: Path) -> pd.DataFrame:
    """The first response to the first problems of every benchmark, with its verdict, as far as samples are kept.

    Of files in the order of the problems no more than the beginning is read.
    """
    rows = []
    for benchmark in results.benchmarks:
        files = [directory / kind / run.run / benchmark / f"{kind}.jsonl" for kind in ("samples", "grades")]
        if not all(path.exists() for path in files):
            continue
        lines = islice(read_lines(directory / "problems" / benchmark / "problems.jsonl"), PROBLEMS_IN_TABLE)
        problems = {str(row["id"]): row for row in (parse_json(line, where) for where, line in lines)}
        for sample, grade in zip(scan_rows(files[0], Sample), scan_rows(files[1], Grade), strict=False):
            if (sample.problem_id, sample.sample) != (grade.problem_id, grade.sample):
                raise InvalidInput(str(files[1]), "", "has not the samples in their order", "grades of these samples")
            if problem := problems.pop(str(sample.problem_id), None):
                text, number = sample.text, len(sample.text)
                text = text if number <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]} [... of {number:,} characters]"
                verdict = (grade.correct, grade.answer, problem["answer"], grade.reason)
                rows.append([problem.get("problem", problem["id"]), text, *verdict, benchmark, problem["id"]])
            if not problems:
                break
    # MLflow puts runs side by side by the first column, and shows the second.
    columns = ["problem", "response", "correct", "answer", "expected", "reason", "benchmark", "problem_id"]
    return pd.DataFrame(rows, columns=columns, dtype=object)


def scores_of(results: Results, run: Run) -> dict[str, float]:
    """What a policy scored on every benchmark, and the mean over them; shares are in percent, as in the tables."""
    k, scores = results.samples_per_problem, {name: results.scores[run.run, name] for name in results.benchmarks}
    mean = weighted_mean([score.average_at_k for score in scores.values()], results.weights)
    values = {f"eval/all/avg_at_{k}": 100 * float(mean)}
    for name, score in scores.items():
        row = {f"avg_at_{k}": score.average_at_k, **score.to_json(), **interval_columns(score.confidence_interval)}
        row |= {f"pass_at_{key}": value for key, value in score.pass_at_k.items()}
        numbers = {key: value for key, value in row.items() if isinstance(value, float)}
        values |= {f"eval/{name}/{key}": x if "tokens" in key else 100 * x for key, x in numbers.items()}
    return values


def flatten(value: Any, prefix: str = "") -> dict[str, str]:
    """Nested settings as dotted keys: ``{"training": {"steps": 60}}`` -> ``{"training.steps": "60"}``."""
    if not isinstance(value, Mapping) or (prefix and not value):
        return {prefix: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}
    inner = (flatten(item, f"{prefix}.{key}" if prefix else str(key)) for key, item in value.items())
    return {key: text for flat in inner for key, text in flat.items()}


def metric_name(column: str) -> str:
    """The name of a column of ``metrics.parquet`` in MLflow: ``train/reward_mean``, ``time/seconds_step``."""
    return f"{'time' if column.startswith(('seconds_', 'peak_memory')) else 'train'}/{column}"


def metrics_of_steps(frame: pd.DataFrame, ended: int) -> list[Metric]:
    """Every number of every step, timed so that the last step is at ``ended``; NaN (not measured) makes no metric."""
    frame = frame.sort_values("step", kind="stable").select_dtypes("number")
    seconds = frame["seconds_step"].fillna(0.0) if "seconds_step" in frame else frame["step"] * 0.0
    timed = frame.assign(ended=ended - 1000 * (seconds.sum() - seconds.cumsum()))
    rows = timed.melt(["step", "ended"]).dropna().to_numpy().tolist()
    return [Metric(metric_name(name), float(value), round(time), int(step)) for step, time, name, value in rows]


def single_metrics(values: Mapping[str, float], time: int) -> list[Metric]:
    """Values that were measured once, at step 0, which MLflow draws as bars."""
    return [Metric(key, value, time, 0) for key, value in values.items()]
