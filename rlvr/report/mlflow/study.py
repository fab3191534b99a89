"""The MLflow runs of a finished study: the study, each method on a model, each training and, of that, each benchmark.

Trainings stand at the top level, with their scores beside their settings, so that MLflow sorts and plots them together.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import islice
from pathlib import Path
from types import MappingProxyType

import pandas as pd
from mlflow.entities import Metric

from evals.core.errors import InvalidInput, UserError
from evals.core.files import parse_json, read_lines, read_parquet, sha256_file
from evals.core.manifest import Manifest
from evals.core.record import scan_rows
from evals.core.records import ALL_BENCHMARKS, BASE, Chosen, Condition, Grade, ProblemFile, Run, Sample
from evals.results import Results
from evals.statistics.weighting import weighted_mean
from evals.tables.layout import interval_columns
from rlvr.report.mlflow import planned_run
from rlvr.report.mlflow.models import PlannedModel
from rlvr.report.mlflow.planned_run import NOTE_TAG, UNJUDGED, PlannedRun, content_hash, metrics_of_steps
from rlvr.report.provenance import read_run_manifest, run_directory

_SHOWN_ENDINGS = (".md", ".csv", ".tex", ".png", ".svg")
COMMIT_TAG = "mlflow.source.git.commit"
_PROBLEMS_IN_TABLE = 10  # of each benchmark
_LONGEST_TEXT = 4000  # characters of a response in a table
_RATES = ("truncation_rate", "no_answer_rate", "timeout_rate", "unparsable_rate")


def study_runs(
    study: str, results: Results, directory: Path, own: Path, choices: Mapping[str, Chosen] = MappingProxyType({})
) -> Iterator[PlannedRun]:
    """Plan every MLflow run of a study, parents before children.

    Args:
        directory: results/, with the manifests and metrics.
        own: the directory of the study's tables and figures.
        choices: of the best policy of a training, by the training's name.
    """
    manifests = {run.run: read_run_manifest(run, directory) for run in results.runs}
    latest = max(map(_ended, manifests.values()))
    # MLflow lists the newest runs first: the study, then its methods.
    yield _overview(study, results, own, latest + len(results.conditions))
    for place, condition in enumerate(reversed(results.conditions)):
        yield _condition(study, results, condition, latest + place)
        for run in condition.runs:
            yield _training(study, results, run, manifests[run.run], directory, own, choices.get(run.run))
            for benchmark in results.benchmarks:
                yield _evaluation(study, results, run, benchmark, manifests[run.run], directory)


def tables_and_figures(own: Path) -> dict[Path, str]:
    """The study's tables and figures and the folders that they are shown in."""
    files = {path: folder for folder in ("tables", "figures") for path in sorted((own / folder).glob("*"))}
    return {path: folder for path, folder in files.items() if path.suffix in _SHOWN_ENDINGS}


def run_tags(study: str, stage: str, run: Run) -> dict[str, str]:
    """The tags that runs are grouped and filtered by."""
    seed = "none" if run.seed is None else str(run.seed)
    return {"study": study, "stage": stage, "model": run.model, "method": run.method, "seed": seed}


def _overview(study: str, results: Results, own: Path, now: int) -> PlannedRun:
    """The tables and figures; the main table is also the description that MLflow renders."""
    files, table = tables_and_figures(own), own / "tables" / "main.md"
    if table not in files:
        raise UserError(f"{table}: no such file")
    tags = {"study": study, "stage": "overview", "reference_method": results.reference_method}
    tags |= {NOTE_TAG: planned_run.note(table, 1)}
    hashes = {path.name: sha256_file(path) for path in files}
    return PlannedRun.at_once(f"study {study}", f"{study}: tables and figures", tags, now, hashes, artifacts=files)


def _condition(study: str, results: Results, condition: Condition, now: int) -> PlannedRun:
    """A method on a model: its means over seeds and how it compares."""
    tags = {"study": study, "stage": "method", "model": condition.model, "method": condition.method}
    values: dict[str, float | None] = {}
    for name in (ALL_BENCHMARKS, *results.benchmarks):
        average = results.average(condition, name)
        values[f"{name}/avg_at_{results.samples_per_problem}"] = average.value
        values[f"{name}/standard_error"] = average.standard_error
        for against in (results.reference_method, BASE):
            if (comparison := results.comparison(condition, against, name)) is not None:
                values[f"{name}/difference_to_{against}"] = comparison.difference
                values[f"{name}/p_against_{against}"] = comparison.p_value
                values[f"{name}/p_holm_against_{against}"] = comparison.p_value_holm
                values[f"{name}/minimum_detectable_effect_against_{against}"] = comparison.minimum_detectable_effect
                if name == ALL_BENCHMARKS:
                    tags[f"verdict_against_{against}"] = comparison.verdict
    if contrast := results.contrast(condition):
        values |= {"contrast_degrees": contrast.degrees, "contrast_floor_degrees": contrast.floor_degrees}
        values["contrast_slope_degrees"] = contrast.slope_degrees
    result, metrics = f"method {condition.model} {condition.method}", planned_run.single_metrics(values, now)
    return PlannedRun.at_once(result, condition.title, tags, now, condition.title, values, metrics=metrics)


def _final_scores(results: Results, run: Run) -> dict[str, float | None]:
    """What a policy scored on every benchmark, and their mean."""
    k, scores = results.samples_per_problem, [results.scores[run.run, name] for name in results.benchmarks]
    averages = [score.average_at_k for score in scores]
    values: dict[str, float | None] = {f"eval/all/avg_at_{k}": float(weighted_mean(averages, results.weights))}
    for name, score in zip(results.benchmarks, scores, strict=True):
        values |= {f"eval/{name}/avg_at_{k}": score.average_at_k, f"eval/{name}/maj_at_{k}": score.majority_at_k}
        values |= {f"eval/{name}/{key}": getattr(score, key) for key in ("truncation_rate", "mean_tokens")}
    return values


def _training(
    study: str, results: Results, run: Run, manifest: Manifest, directory: Path, own: Path, choice: Chosen | None
) -> PlannedRun:
    """One seed: its metrics at every step, its final scores, its settings, its policy, and some of what that wrote.

    Where its best policy was chosen, the scores that decided are metrics of their steps.
    """
    folder, is_base, scores = run_directory(run, directory), run.method == BASE, _final_scores(results, run)
    tags = run_tags(study, "base_model" if is_base else "train", run)
    problems = None if is_base else ProblemFile.of(directory / "problems" / "train")
    tags |= {f"sha256/problems/{problems.name}": problems.sha256} if problems else {}
    ended, path = _ended(manifest), folder / "metrics.parquet"
    steps: list[Metric] = []
    if path.name in manifest.outputs:
        frame = read_parquet(path, ["step"])
        steps, unjudged = metrics_of_steps(frame, ended), frame.filter(like="unjudged_")
        scores |= {UNJUDGED: float(unjudged.to_numpy().sum())} if len(unjudged.columns) else {}
    along = {int(step): value for step, value in choice.averages.items()} if choice else {}
    name = f"validation/{choice.benchmark}_avg_at_{choice.samples_per_problem}" if choice else ""
    validated = [Metric(name, value, ended, step) for step, value in along.items()]
    metrics = [*planned_run.single_metrics(scores, ended), *sorted([*steps, *validated], key=lambda one: one.step)]
    commit = manifest.environment.get("commit")
    weights = {f"sha256/{name}": sha256 for name, sha256 in manifest.outputs.items() if name.startswith("checkpoint/")}
    checkpoint = (folder / "checkpoint").resolve().as_uri() if weights else None  # a server's model has none
    registered, alias = f"{study}-{run.model}-{run.method}", BASE if is_base else f"s{run.seed}"
    pages = (own / "responses" / "BENCHMARK" / "index.html").as_posix()
    about = (
        f"`responses.json` has a response to {_PROBLEMS_IN_TABLE} problems of each benchmark, `{pages}` all of them."
    )
    return PlannedRun(
        f"run {run.run}",
        run.run,
        content_hash(tags, manifest.fingerprint, manifest.created, dict(manifest.parameters), scores, *along.items()),
        tags | {"fingerprint": manifest.fingerprint, NOTE_TAG: about} | ({COMMIT_TAG: commit} if commit else {}),
        min((metric.timestamp for metric in metrics), default=ended),
        ended,
        params=planned_run.flatten(manifest.parameters),
        metrics=metrics,
        problems=problems,
        artifacts={folder / "manifest.json": ""},
        model=PlannedModel(run.run, registered, alias, checkpoint, tags | weights),
        table=partial(_responses, directory, run, results.benchmarks),
    )


def _evaluation(
    study: str, results: Results, run: Run, benchmark: str, training: Manifest, directory: Path
) -> PlannedRun:
    """A run on a benchmark, nested under the run."""
    score, k = results.scores[run.run, benchmark], results.samples_per_problem
    problems = ProblemFile.of(directory / "problems" / benchmark)
    values = {
        f"avg_at_{k}": score.average_at_k,
        **interval_columns(score.confidence_interval),
        **{f"pass_at_{key}": value for key, value in score.pass_at_k.items()},
        f"maj_at_{k}": score.majority_at_k,
        **{name: getattr(score, name) for name in ("standard_error", *_RATES, "mean_tokens")},
    }
    tags = run_tags(study, "evaluation", run) | {f"sha256/problems/{benchmark}": problems.sha256}
    tags |= {"benchmark": benchmark, "train_fingerprint": training.fingerprint}
    now = _ended(training)
    return PlannedRun.at_once(
        f"score {run.run} {benchmark}",
        f"{run.run} on {benchmark}",
        tags,
        now,
        *(values, score.correct_counts),
        parent=f"run {run.run}",
        params={"benchmark": benchmark, "samples_per_problem": str(k), "problems": str(len(score.correct_counts))},
        metrics=planned_run.single_metrics(values, now),
        problems=problems,
    )


def _responses(directory: Path, run: Run, benchmarks: Sequence[str]) -> pd.DataFrame:
    """The first response to the first problems of every benchmark, with its verdict.

    Of files in the order of the problems no more than the beginning is read. A benchmark whose samples were deleted has
    no rows.
    """
    rows = []
    for benchmark in benchmarks:
        files = [directory / kind / run.run / benchmark / f"{kind}.jsonl" for kind in ("samples", "grades")]
        if not all(path.exists() for path in files):
            continue
        lines = islice(read_lines(directory / "problems" / benchmark / "problems.jsonl"), _PROBLEMS_IN_TABLE)
        problems = {str(row["id"]): row for row in (parse_json(line, where) for where, line in lines)}
        for sample, grade in zip(scan_rows(files[0], Sample), scan_rows(files[1], Grade), strict=False):
            if (sample.problem_id, sample.sample) != (grade.problem_id, grade.sample):
                raise InvalidInput(str(files[1]), "", "has not the samples in their order", "grades of these samples")
            if problem := problems.pop(str(sample.problem_id), None):
                # MLflow puts runs side by side by the first column, and shows the second.
                shown = {"problem": problem.get("problem", problem["id"]), "response": _shortened(sample.text)}
                verdict = {"correct": grade.correct, "answer": grade.answer, "expected": problem["answer"]}
                rows.append(
                    shown | verdict | {"reason": grade.reason, "benchmark": benchmark, "problem_id": problem["id"]}
                )
            if not problems:
                break
    return pd.DataFrame(rows, dtype=object)


def _shortened(text: str) -> str:
    """A text, or its beginning and how long it was."""
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]} [... of {len(text):,} characters]"


def _ended(manifest: Manifest) -> int:
    """Milliseconds since the epoch."""
    return round(1000 * datetime.fromisoformat(manifest.created).timestamp())
