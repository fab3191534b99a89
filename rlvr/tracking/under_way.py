"""Trainings that the study's projection does not show yet, as MLflow runs that grow while they train.

A study is projected when it is finished, which at paper scale takes days. Until then each of its trainings is a run of
the part UNDER_WAY in the study's experiment, with the metrics of the steps done so far; the projection of the study
removes these runs, for it shows the same trainings whole.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mlflow.entities import Metric, Param, RunStatus
from mlflow.entities import Run as MlflowRun
from mlflow.utils.mlflow_tags import MLFLOW_RUN_NAME

from evals.artifacts import read_json
from evals.errors import UserError
from evals.manifest import read_manifest
from evals.single_writer import is_held
from evals.tables.records import BASE, Run, read_runs
from rlvr.metrics_so_far import METRICS_SO_FAR
from rlvr.tracking.database import Database, open_experiment, writing
from rlvr.tracking.entries import run_tags
from rlvr.tracking.entry import Point, content_hash, flatten
from rlvr.tracking.history import read_history
from rlvr.tracking.projection import CONTENT_TAG, FINGERPRINT_TAG, PART_TAG, RESULT_TAG, remove, shown_runs

UNDER_WAY = "under way"
_LAST_STEP_TAG = "rlvr.last_step"
_POINTS_A_CALL, _PARAMS_A_CALL = 1000, 100  # MLflow's limits


@dataclass(frozen=True)
class Training:
    """A training that has begun.

    Attributes:
        run: of the study's run sheet.
        metrics: its steps so far, or all of them.
        settings: run.json.
        fingerprint: of a finished training.
        status: MLflow's word for how it is.
    """

    run: Run
    metrics: Path
    settings: dict[str, str]
    fingerprint: str | None
    status: str


def show_under_way(results: Path, database: Path, artifacts: Path) -> int:
    """Bring MLflow into line with the trainings under way of every study in ``results``.

    Returns:
        How many trainings are shown that no projection shows.

    Raises:
        UserError: a run sheet or a training's file is malformed, or the database cannot be written.
    """
    begun = {study: list(_begun(results, runs)) for study, runs in _run_sheets(results)}
    if not begun:
        return 0
    shown = 0
    with writing(database) as opened:
        for study, trainings in begun.items():
            experiment = open_experiment(opened.client, study, artifacts)
            shown += _show(opened, study, experiment.experiment_id, artifacts, trainings)
    return shown


def watch(results: Path, database: Path, artifacts: Path, seconds: float) -> None:
    """Show trainings under way every so many ``seconds``, until the process that started this one is gone.

    What goes wrong is said once, and tried again.
    """
    parent, said = os.getppid(), ""
    while os.getppid() == parent:
        try:
            show_under_way(results, database, artifacts)
            said = ""
        except UserError as error:
            if str(error) != said:
                print(f"warning: {error}", file=sys.stderr, flush=True)
            said = str(error)
        time.sleep(seconds)


def _run_sheets(results: Path) -> Iterator[tuple[str, list[Run]]]:
    """Name and runs of every study that was started."""
    for sheet in [results / "runs.json", *sorted(results.glob("studies/*/runs.json"))]:
        study = sheet.with_name("study.json")
        if sheet.exists() and study.exists():
            yield str(read_json(study)["study"]), list(read_runs(sheet))


def _begun(results: Path, runs: list[Run]) -> Iterator[Training]:
    """Those of the ``runs`` that have left metrics."""
    for run in runs:
        directory = results / "runs" / run.run
        settings, manifest = directory / "run.json", directory / "manifest.json"
        if run.method == BASE or not settings.exists():
            continue
        if manifest.exists():
            fingerprint = read_manifest(manifest, "run").fingerprint
            metrics, status = directory / "metrics.parquet", RunStatus.to_string(RunStatus.FINISHED)
        else:
            fingerprint, metrics = None, directory / METRICS_SO_FAR
            alive = is_held(directory / "state")
            status = RunStatus.to_string(RunStatus.RUNNING if alive else RunStatus.KILLED)
        # Settings that are newer than the metrics are those of a training that has just been started anew.
        if metrics.exists() and metrics.stat().st_mtime_ns >= settings.stat().st_mtime_ns:
            yield Training(run, metrics, flatten(read_json(settings)), fingerprint, status)


def _show(database: Database, study: str, experiment: str, artifacts: Path, trainings: list[Training]) -> int:
    """Make, extend and remove the runs of one study; how many there are then."""
    client = database.client
    shown = shown_runs(client, experiment)
    projected = {run.data.tags.get(FINGERPRINT_TAG) for run in shown.values() if PART_TAG not in run.data.tags}
    old = {result: run for result, run in shown.items() if run.data.tags.get(PART_TAG) == UNDER_WAY}
    number = 0
    for training in trainings:
        if training.fingerprint in projected:
            continue
        result = f"{UNDER_WAY} {training.run.run}"
        points = read_history(training.metrics, training.metrics.stat().st_mtime_ns // 1_000_000)
        found = old.pop(result, None)
        if found is not None and not _goes_on(found, training, points):
            remove(client, found, artifacts)
            found = None
        _extend(database, found or _create(database, study, experiment, result, training, points), training, points)
        number += 1
    for run in old.values():
        remove(client, run, artifacts)
    return number


def _goes_on(run: MlflowRun, training: Training, points: Sequence[Point]) -> bool:
    """Whether ``run`` shows this very training, and no step that was lost since and is done again."""
    same = run.data.tags.get(CONTENT_TAG) == content_hash(training.settings)
    return same and _last_step(run) <= max((point.step for point in points), default=0)


def _create(
    database: Database, study: str, experiment: str, result: str, training: Training, points: Sequence[Point]
) -> MlflowRun:
    tags = {
        **run_tags(study, "train, under way", training.run),
        RESULT_TAG: result,
        CONTENT_TAG: content_hash(training.settings),
        PART_TAG: UNDER_WAY,
        MLFLOW_RUN_NAME: f"{training.run.run} ({UNDER_WAY})",
    }
    started = min((point.milliseconds for point in points), default=None)
    run = database.client.create_run(experiment, started, tags)
    params = [Param(key, value) for key, value in training.settings.items()]
    for first in range(0, len(params), _PARAMS_A_CALL):
        database.client.log_batch(run.info.run_id, params=params[first : first + _PARAMS_A_CALL])
    return run


def _extend(database: Database, run: MlflowRun, training: Training, points: Sequence[Point]) -> None:
    """Add the steps that are new, and say whether it still goes on."""
    client, run_id, last = database.client, run.info.run_id, _last_step(run)
    metrics = [Metric(point.key, point.value, point.milliseconds, point.step) for point in points if point.step > last]
    for first in range(0, len(metrics), _POINTS_A_CALL):
        client.log_batch(run_id, metrics[first : first + _POINTS_A_CALL])
    if metrics:
        client.set_tag(run_id, _LAST_STEP_TAG, max(metric.step for metric in metrics))
    if training.status == RunStatus.to_string(RunStatus.RUNNING):
        client.update_run(run_id, training.status)
    elif training.status != run.info.status:
        client.set_terminated(run_id, training.status, max((point.milliseconds for point in points), default=None))


def _last_step(run: MlflowRun) -> int:
    return int(run.data.tags.get(_LAST_STEP_TAG, 0))
