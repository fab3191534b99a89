"""From result files to MLflow runs: study > method (on a model) > seed > evaluation on a benchmark."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from mlflow.utils.mlflow_tags import MLFLOW_RUN_NOTE

from evals.core.errors import UserError
from evals.core.files import sha256_file
from evals.core.manifest import Manifest, read_manifest
from evals.core.records import ProblemFile
from evals.tables.averages import condition_average
from evals.tables.records import ALL_BENCHMARKS, BASE, Condition, Results, Run
from rlvr.tracking.entry import Entry, Point, content_hash, flatten
from rlvr.tracking.history import history_of, read_table

SHOWN_FOLDERS = ("tables", "figures")
_SHOWN = (".md", ".csv", ".tex", ".png", ".svg")
_LONGEST_NOTE = 8000  # characters of a tag that MLflow keeps


def entries(study: str, results: Results, directory: Path, own: Path) -> Iterator[Entry]:
    """Every run that MLflow shall show, parents before children.

    Args:
        study: name of the study, tagged on every run.
        results: runs, scores and comparisons.
        directory: results/, with the manifests and metrics.
        own: directory of the study's tables and figures.

    Raises:
        UserError: a file is missing or malformed.
    """
    manifests = {run.run: _read_run_manifest(run, directory) for run in results.runs}
    latest = max(_ended(manifest) for manifest in manifests.values())
    # MLflow lists the newest runs first and nests a child only under a parent on the same page: parents come last.
    yield _overview(study, results, own, latest + len(results.conditions))
    for place, condition in enumerate(reversed(results.conditions)):
        yield _condition(study, results, condition, latest + place)
        for run in condition.runs:
            manifest = manifests[run.run]
            yield _training(study, run, manifest, directory)
            for benchmark in results.benchmarks:
                yield _evaluation(study, results, run, benchmark, manifest, directory)


def _overview(study: str, results: Results, directory: Path, now: int) -> Entry:
    """The tables and figures; the main table is also the description that MLflow renders."""
    files = {
        path: folder
        for folder in SHOWN_FOLDERS
        for path in sorted((directory / folder).glob("*"))
        if path.suffix in _SHOWN
    }
    table = directory / "tables" / "main.md"
    if table not in files:
        raise UserError(f"{table}: no such file")
    tags = {
        "study": study,
        "stage": "overview",
        "reference_method": results.reference_method,
        MLFLOW_RUN_NOTE: table.read_text(encoding="utf-8").split("\n## ")[0][:_LONGEST_NOTE],
    }
    content = content_hash(tags, {path.name: sha256_file(path) for path in files})
    name = f"{study}: tables and figures"
    return Entry(f"study {study}", name, None, content, content, tags, now, now, artifacts=files)


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
    content = content_hash(tags, condition.title, values)
    metrics = _single_points(values, now)
    result = f"method {condition.model} {condition.method}"
    return Entry(result, condition.title, None, content, content, tags, now, now, metrics=metrics)


def _training(study: str, run: Run, manifest: Manifest, directory: Path) -> Entry:
    """One seed: every column of its metrics at every step, its settings, the hashes of its weights."""
    folder = _run_directory(run, directory)
    tags = run_tags(study, "base_model" if run.method == BASE else "train", run)
    tags |= {f"sha256/{name}": sha256 for name, sha256 in manifest.outputs.items()}
    problem_sets = () if run.method == BASE else (ProblemFile.of(directory / "problems" / "train"),)
    tags |= {f"sha256/problems/{problem_set.name}": problem_set.sha256 for problem_set in problem_sets}
    ended = _ended(manifest)
    metrics = folder / "metrics.parquet"
    history = history_of(read_table(metrics), ended) if metrics.name in manifest.outputs else ()
    return Entry(
        f"run {run.run}",
        run.run,
        f"method {run.model} {run.method}",
        manifest.fingerprint,
        content_hash(tags, manifest.fingerprint, manifest.created, dict(manifest.parameters)),
        tags,
        min((point.milliseconds for point in history), default=ended),
        ended,
        params=flatten(dict(manifest.parameters)),
        history=history,
        problem_sets=problem_sets,
        artifacts={folder / "manifest.json": ""},
    )


def run_tags(study: str, stage: str, run: Run) -> dict[str, str]:
    """Tags by which runs are grouped and filtered."""
    seed = "none" if run.seed is None else str(run.seed)
    return {"study": study, "stage": stage, "model": run.model, "method": run.method, "seed": seed}


def _evaluation(study: str, results: Results, run: Run, benchmark: str, training: Manifest, directory: Path) -> Entry:
    """A run on a benchmark, nested under the run."""
    score = results.scores[run.run, benchmark]
    k = score.samples_per_problem
    problems = ProblemFile.of(directory / "problems" / benchmark)
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
    tags = run_tags(study, "evaluation", run) | {
        "benchmark": benchmark,
        "train_fingerprint": training.fingerprint,
        f"sha256/problems/{benchmark}": problems.sha256,
    }
    now = _ended(training)
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


def _ended(manifest: Manifest) -> int:
    """Milliseconds since the epoch."""
    return round(1000 * datetime.fromisoformat(manifest.created).timestamp())


def _single_points(values: dict[str, float | None], now: int) -> tuple[Point, ...]:
    return tuple(Point(key, float(value), 0, now) for key, value in values.items() if value is not None)
