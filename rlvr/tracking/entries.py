"""From result files to MLflow runs: study > method (on a model) > seed > evaluation on a benchmark."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

import pandas as pd

from evals.artifacts import fingerprint, sha256_file
from evals.errors import UserError
from evals.manifest import Manifest, read_manifest
from evals.tables.averages import condition_average
from evals.tables.records import ALL_BENCHMARKS, BASE, Condition, Results, Run
from rlvr.tracking.entry import Entry, Point, content_hash, flatten, read_problem_set

SHOWN_FOLDERS = ("tables", "figures")
_SHOWN = (".md", ".csv", ".tex", ".png", ".svg")
_SECONDS_COLUMN = "seconds_step"


def entries(study: str, results: Results, directory: Path) -> Iterator[Entry]:
    """Every run that MLflow shall show, parents before children.

    Args:
        study: name of the study, tagged on every run.
        results: runs, scores and comparisons.
        directory: results/, with the manifests, metrics, tables and figures.

    Raises:
        UserError: a file is missing or malformed.
    """
    manifests = {run.run: _read_run_manifest(run, directory) for run in results.runs}
    latest = max(_milliseconds(manifest) for manifest in manifests.values())
    yield _overview(study, results, directory, latest)
    for condition in results.conditions:
        yield _condition(study, results, condition, latest)
        for run in condition.runs:
            manifest = manifests[run.run]
            yield _training(study, run, manifest, directory)
            for benchmark in results.benchmarks:
                yield _evaluation(study, results, run, benchmark, manifest, directory)


def _overview(study: str, results: Results, directory: Path, now: int) -> Entry:
    files = {
        path: folder
        for folder in SHOWN_FOLDERS
        for path in sorted((directory / folder).glob("*"))
        if path.suffix in _SHOWN
    }
    hashes = {path.name: sha256_file(path) for path in files}
    tags = {"study": study, "stage": "overview", "reference_method": results.reference_method}
    identity = fingerprint({"study": study, "files": hashes})
    return Entry(
        f"study {study}", f"{study}: tables and figures", None, identity, content_hash(hashes, tags), tags, now, now,
        artifacts=files,
    )  # fmt: skip


def _condition(study: str, results: Results, condition: Condition, now: int) -> Entry:
    """A method on a model: its means over seeds and how it compares."""
    tags = {"study": study, "stage": "method", "model": condition.model, "method": condition.method}
    values: dict[str, float | None] = {}
    for name in (ALL_BENCHMARKS, *results.benchmarks):
        average = condition_average(results, condition, results.benchmarks if name == ALL_BENCHMARKS else [name])
        values[f"{name}/avg_at_{results.samples_per_problem}"] = average.value
        values[f"{name}/standard_error"] = average.standard_error
        for against in (results.reference_method, BASE):
            comparison = results.comparison(condition, against, name)
            if comparison is not None:
                values[f"{name}/difference_to_{against}"] = comparison.difference
                values[f"{name}/p_holm_against_{against}"] = comparison.p_value_holm
                values[f"{name}/minimum_detectable_effect_against_{against}"] = comparison.minimum_detectable_effect
                if name == ALL_BENCHMARKS:
                    tags[f"verdict_against_{against}"] = comparison.verdict
    metrics = _single_points(values, now)
    content = content_hash(tags, condition.title, [asdict(point) for point in metrics])
    return Entry(
        f"method {condition.model} {condition.method}", condition.title, None, content, content, tags, now, now,
        metrics=metrics,
    )  # fmt: skip


def _training(study: str, run: Run, manifest: Manifest, directory: Path) -> Entry:
    """One seed: every column of its metrics at every step, its settings, the hashes of its weights."""
    folder = _run_directory(run, directory)
    ended = _milliseconds(manifest)
    tags = {
        "study": study,
        "stage": "base_model" if run.method == BASE else "train",
        "model": run.model,
        "method": run.method,
        "seed": "none" if run.seed is None else str(run.seed),
        **{f"sha256/{name}": sha256 for name, sha256 in manifest.outputs.items()},
    }
    training_set = () if run.method == BASE else (read_problem_set(directory, "train", "training"),)
    for problem_set in training_set:
        tags[f"sha256/problems/{problem_set.name}"] = problem_set.sha256
    started = ended - round(1000 * float(manifest.details.get("seconds", 0.0)))
    metrics = _metrics(folder / "metrics.parquet", started) if "metrics.parquet" in manifest.outputs else ()
    return Entry(
        f"run {run.run}",
        run.run,
        f"method {run.model} {run.method}",
        manifest.fingerprint,
        content_hash(tags, manifest.fingerprint, dict(manifest.outputs), dict(manifest.parameters)),
        tags,
        started,
        ended,
        params=flatten(dict(manifest.parameters)),
        metrics=metrics,
        problem_sets=training_set,
        artifacts={folder / "manifest.json": ""},
    )


def _evaluation(study: str, results: Results, run: Run, benchmark: str, training: Manifest, directory: Path) -> Entry:
    """A run on a benchmark, nested under the run."""
    score = results.scores[run.run, benchmark]
    k = score.samples_per_problem
    problems = read_problem_set(directory, benchmark, "evaluation")
    low, high = score.confidence_interval or (None, None)
    values = {
        f"avg_at_{k}": score.average_at_k,
        "standard_error": score.standard_error,
        "confidence_low": low,
        "confidence_high": high,
        **{f"pass_at_{key}": value for key, value in score.pass_at_k.items()},
        f"maj_at_{k}": score.majority_at_k,
        "truncation_rate": score.truncation_rate,
        "no_answer_rate": score.no_answer_rate,
        "timeout_rate": score.timeout_rate,
        "unparsable_rate": score.unparsable_rate,
        "mean_tokens": score.mean_tokens,
    }
    tags = {
        "study": study,
        "stage": "evaluation",
        "model": run.model,
        "method": run.method,
        "seed": "none" if run.seed is None else str(run.seed),
        "benchmark": benchmark,
        "train_fingerprint": training.fingerprint,
        f"sha256/problems/{benchmark}": problems.sha256,
    }
    now = _milliseconds(training)
    content = content_hash(tags, values, score.correct_counts)
    return Entry(
        f"score {run.run} {benchmark}",
        f"{run.run} on {benchmark}",
        f"run {run.run}",
        content,
        content,
        tags,
        now,
        now,
        params={"benchmark": benchmark, "samples_per_problem": str(k), "problems": str(len(score.correct_counts))},
        metrics=_single_points(values, now),
        problem_sets=(problems,),
    )


def _run_directory(run: Run, directory: Path) -> Path:
    return directory / "base" / run.model if run.method == BASE else directory / "runs" / run.run


def _read_run_manifest(run: Run, directory: Path) -> Manifest:
    kind = "base_model" if run.method == BASE else "run"
    return read_manifest(_run_directory(run, directory) / "manifest.json", kind)


def _milliseconds(manifest: Manifest) -> int:
    return round(1000 * datetime.fromisoformat(manifest.created).timestamp())


def _single_points(values: dict[str, float | None], now: int) -> tuple[Point, ...]:
    return tuple(Point(key, float(value), 0, now) for key, value in values.items() if value is not None)


def _metrics(path: Path, started: int) -> tuple[Point, ...]:
    """Every number of every step; the values that a method does not have (NaN) make no point."""
    try:
        frame = pd.read_parquet(path)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except ValueError as error:  # pyarrow's error for a foreign file
        raise UserError(f"{path}: is not parquet ({error})") from None
    if "step" not in frame:
        raise UserError(f"{path}: lacks the column step")
    seconds = frame[_SECONDS_COLUMN].fillna(0.0).cumsum() if _SECONDS_COLUMN in frame else frame["step"] * 0.0
    times = (started + 1000 * seconds).round().astype(int).tolist()
    steps = frame["step"].astype(int).tolist()
    columns = frame.drop(columns="step").select_dtypes("number").astype(float)
    return tuple(
        Point(str(key), value, step, time)
        for key in columns
        for value, step, time in zip(columns[key].tolist(), steps, times, strict=True)
        if not math.isnan(value)
    )
