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
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from pathlib import Path

import pandas as pd
from mlflow.entities import Metric, RunTag
from mlflow.entities import Run as MlflowRun
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from mlflow.utils.mlflow_tags import MLFLOW_RUN_NAME
from sqlalchemy.exc import SQLAlchemyError

from evals.core.errors import UserError
from evals.core.files import fingerprint, read_json
from evals.core.manifest import Manifest, read_manifest
from evals.core.single_writer import is_held
from evals.tables.records import BASE, Run, read_runs
from rlvr.metrics_so_far import METRICS_SO_FAR, PARAMETERS
from rlvr.tracking.database import open_experiment, writing
from rlvr.tracking.entries import run_tags
from rlvr.tracking.entry import Point, content_hash, flatten
from rlvr.tracking.history import history_of, read_table
from rlvr.tracking.projection import CONTENT_TAG, FINGERPRINT_TAG, PART_TAG, RESULT_TAG, log_params, remove, shown_runs

UNDER_WAY = "under way"
_LAST_STEP_TAG, _HISTORY_TAG = "rlvr.last_step", "rlvr.history"
_WHOLE_TAG = "rlvr.whole"  # the hash of a finished training's metrics, which need not be read again


@dataclass(frozen=True)
class Training:
    """A training that has begun.

    Attributes:
        run: of the study's run sheet.
        metrics: file of its steps so far, or of all of them.
        manifest: of a finished training.
        status: RUNNING, KILLED or FINISHED, as MLflow has them.
    """

    run: Run
    metrics: Path
    manifest: Manifest | None
    status: str

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row a step."""
        return read_table(self.metrics)

    @cached_property
    def parameters(self) -> dict[str, str]:
        """That determine it."""
        return flatten(dict(self.manifest.parameters) if self.manifest else self.table.attrs.get(PARAMETERS, {}))

    @cached_property
    def points(self) -> dict[int, list[Point]]:
        """By step, ascending."""
        points = history_of(self.table, self.metrics.stat().st_mtime_ns // 1_000_000)
        by_step = sorted(points, key=attrgetter("step"))
        return {step: list(of_step) for step, of_step in groupby(by_step, key=attrgetter("step"))}

    @cached_property
    def history(self) -> dict[int, str]:
        """By step, a hash of everything up to it; when it was measured is no part of that."""
        hashes, before = {}, ""
        for step, points in self.points.items():
            hashes[step] = before = fingerprint([before, [(point.key, point.value) for point in points]])
        return hashes


def show_under_way(results: Path, database: Path, artifacts: Path) -> int:
    """Bring MLflow into line with the trainings under way of every study in ``results``.

    Returns:
        How many trainings are shown that no projection shows.

    Raises:
        UserError: a file is malformed, the database cannot be written, or it is missing and has to be made again from
            what was projected. A training whose files are not readable keeps no other one from being shown.
    """
    sheets = list(_run_sheets(results))
    if not sheets:
        return 0
    if not database.exists() and any([*results.glob("*tracking.json"), *results.glob("studies/*/tracking.json")]):
        raise UserError(f"{database}: is missing; `make ui` makes it again from the results")
    shown = [_Shown(results, artifacts, study, runs) for study, runs in sheets]
    with writing(database) as opened:
        for study in shown:
            study.bring_into_line(opened.client)
    if problems := [problem for study in shown for problem in study.problems]:
        raise UserError(problems[0])
    return sum(study.trainings for study in shown)


def watch(results: Path, database: Path, artifacts: Path, seconds: float, parent: int) -> None:
    """Show trainings under way every so many ``seconds``, until ``parent`` is no longer this process's parent.

    What goes wrong is said once, and tried again; a database that somebody deleted ends it, for MLflow keeps it open.
    """
    said, known = "", None
    while os.getppid() == parent:
        if known is not None and _identity(database) != known:
            print(f"warning: {database}: was deleted; trainings are watched no longer", file=sys.stderr, flush=True)
            return
        try:
            show_under_way(results, database, artifacts)
            said = ""
        except (UserError, MlflowException, SQLAlchemyError, OSError) as error:
            reason = str(error).partition("\n")[0]
            if reason != said:
                print(f"warning: {reason}", file=sys.stderr, flush=True)
            said = reason
        known = _identity(database)
        time.sleep(seconds)


def _identity(database: Path) -> int | None:
    """What tells a file from another one that took its name."""
    return database.stat().st_ino if database.exists() else None


def _run_sheets(results: Path) -> Iterator[tuple[str, list[Run]]]:
    """Name and runs of every study that was started."""
    for sheet in [results / "runs.json", *sorted(results.glob("studies/*/runs.json"))]:
        settings = sheet.with_name("study.json")
        if sheet.exists() and settings.exists():
            content = read_json(settings)
            if not isinstance(content, dict) or "study" not in content:
                raise UserError(f"{settings}: lacks study")
            yield str(content["study"]), list(read_runs(sheet))


def _begun(run: Run, directory: Path) -> Training | None:
    """The training of a run, or None if it has left nothing to show.

    Raises:
        UserError: a file is malformed.
    """
    if run.method == BASE:
        return None
    if (directory / "manifest.json").exists():
        manifest = read_manifest(directory / "manifest.json", "run")
        return Training(run, directory / "metrics.parquet", manifest, "FINISHED")
    metrics = directory / METRICS_SO_FAR
    if not metrics.exists():
        return None
    return Training(run, metrics, None, "RUNNING" if is_held(directory / "state") else "KILLED")


@dataclass
class _Shown:
    """A study's trainings in MLflow.

    Attributes:
        trainings: how many there are that no projection shows.
        problems: with files of single trainings.
    """

    results: Path
    artifacts: Path
    study: str
    runs: Sequence[Run]
    trainings: int = 0
    problems: list[str] = field(default_factory=list)

    def bring_into_line(self, client: MlflowClient) -> None:
        """Make, extend and remove MLflow's runs; one whose training cannot be read stays as it is."""
        experiment = open_experiment(client, self.study, self.artifacts).experiment_id
        shown = shown_runs(client, experiment)
        projected = {run.data.tags.get(FINGERPRINT_TAG) for run in shown.values() if PART_TAG not in run.data.tags}
        old = {result: run for result, run in shown.items() if run.data.tags.get(PART_TAG) == UNDER_WAY}
        for run in self.runs:
            found = old.pop(_result(run), None)
            try:
                training = _begun(run, self.results / "runs" / run.run)
                if training is not None and training.manifest and training.manifest.fingerprint in projected:
                    self._remove(client, found)
                    continue
                if training is not None:
                    found = self._show(client, experiment, training, found)
            except (UserError, OSError) as error:
                self.problems.append(str(error))
            self.trainings += found is not None
        for run_of_nothing in old.values():
            self._remove(client, run_of_nothing)

    def _show(self, client: MlflowClient, experiment: str, training: Training, found: MlflowRun | None) -> MlflowRun:
        """Make ``found``, the training's run if there is one, show exactly its points; the run that shows them."""
        whole = training.manifest.outputs.get(training.metrics.name) if training.manifest else None
        if found is not None and whole is not None and found.data.tags.get(_WHOLE_TAG) == whole:
            return found
        if found is not None and not _is_beginning(found, training):
            self._remove(client, found)
            found = None
        run = found or self._create(client, experiment, training)
        last = _last_step(run)
        for step, points in training.points.items():
            if step > last:
                metrics = [Metric(point.key, point.value, point.milliseconds, step) for point in points]
                tags = [RunTag(_LAST_STEP_TAG, str(step)), RunTag(_HISTORY_TAG, training.history[step])]
                client.log_batch(run.info.run_id, metrics, tags=tags)
        if whole is not None:
            ended = max((points[0].milliseconds for points in training.points.values()), default=None)
            client.set_terminated(run.info.run_id, training.status, ended)
            client.set_tag(run.info.run_id, _WHOLE_TAG, whole)
        elif training.status != run.info.status:  # a killed one may go on, and MLflow takes no end back
            client.update_run(run.info.run_id, training.status)
        return run

    def _create(self, client: MlflowClient, experiment: str, training: Training) -> MlflowRun:
        tags = {
            **run_tags(self.study, "train, under way", training.run),
            RESULT_TAG: _result(training.run),
            PART_TAG: UNDER_WAY,
            MLFLOW_RUN_NAME: f"{training.run.run} ({UNDER_WAY})",
        }
        started = min((points[0].milliseconds for points in training.points.values()), default=None)
        run = client.create_run(experiment, started, tags)
        log_params(client, run.info.run_id, training.parameters)
        client.set_tag(run.info.run_id, CONTENT_TAG, content_hash(training.parameters))  # last: it is whole now
        return run

    def _remove(self, client: MlflowClient, run: MlflowRun | None) -> None:
        if run is not None:
            remove(client, run, self.artifacts)


def _result(run: Run) -> str:
    """By which the MLflow run of a training under way is recognised."""
    return f"{UNDER_WAY} {run.run}"


def _is_beginning(run: MlflowRun, training: Training) -> bool:
    """Whether ``run`` shows this very training, and no step that was lost since and has been done again."""
    tags, last = run.data.tags, _last_step(run)
    same = tags.get(CONTENT_TAG) == content_hash(training.parameters)
    return same and (last == 0 or tags.get(_HISTORY_TAG) == training.history.get(last))


def _last_step(run: MlflowRun) -> int:
    return int(run.data.tags.get(_LAST_STEP_TAG, 0))
