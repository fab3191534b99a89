"""Trainings that the projection of their study does not show yet, as MLflow runs that grow while they train.

A study is projected when it is finished, which at paper scale takes days. Until then each of its trainings is a run of
a group of its own in the study's experiment, with the metrics of the steps done so far; the projection of the study
removes this group, because it shows the same trainings as finished runs.
"""

import sys
import time
from pathlib import Path

from mlflow.entities import Run as MlflowRun
from mlflow.exceptions import MlflowException
from sqlalchemy.exc import SQLAlchemyError

from evals.core.errors import UserError
from evals.core.files import read_parquet
from evals.core.manifest import Manifest, read_manifest
from evals.core.records import BASE, Run, read_runs
from evals.core.single_writer import is_held
from rlvr.report.mlflow.database import Store
from rlvr.report.mlflow.experiment import GROUP_TAG, Experiment
from rlvr.report.mlflow.planned_run import PlannedRun, content_hash, flatten, metrics_of_steps
from rlvr.report.mlflow.study import run_tags
from rlvr.report.provenance import StudyName
from rlvr.runs.progress import METRICS_SO_FAR, PARAMETERS

IN_PROGRESS = "under way"  # the group of these runs; a part of their names

_COMPLETE_TAG = "rlvr.whole"  # the hash of a finished training's metrics, which are not read again


def show_in_progress(results: Path, store: Store) -> int:
    """Bring MLflow into line with the trainings in progress of every study in ``results``.

    A training whose files cannot be read does not keep others from being shown; the error is raised at the end. Returns
    how many trainings are shown that no projection of a study shows.
    """
    sheets = [results / "runs.json", *sorted(results.glob("studies/*/runs.json"))]
    started = [sheet for sheet in sheets if sheet.exists() and sheet.with_name("study.json").exists()]
    studies = [(StudyName.read(sheet.with_name("study.json")).study, read_runs(sheet)) for sheet in started]
    if not studies:
        return 0
    if not store.exists and any([*results.glob("*tracking.json"), *results.glob("studies/*/tracking.json")]):
        raise UserError(f"{store.database}: is missing; `make ui` makes it again from the results")
    number, problems = 0, list[Exception]()
    with store.writing() as client:
        for study, runs in studies:
            experiment = Experiment.of(client, study, store)
            shown = experiment.runs()
            finished = {run.data.tags.get("fingerprint") for run in shown.values() if GROUP_TAG not in run.data.tags}
            planned, untouched = list[PlannedRun](), set[str]()
            for run in (run for run in runs if run.method != BASE):
                directory = results / "runs" / run.run
                path, plan = directory / "manifest.json", None
                try:
                    manifest = read_manifest(path, "run") if path.exists() else None
                    if manifest and manifest.fingerprint in finished:
                        continue
                    plan = _plan(study, run, directory, manifest, shown.get(_result(run)))
                except (UserError, OSError) as error:
                    problems.append(error)
                if plan:
                    planned.append(plan)
                else:
                    untouched.add(_result(run))
            experiment.bring_into_line(planned, IN_PROGRESS, untouched)
            number += len(planned) + len(untouched & shown.keys())
    if problems:
        raise UserError(str(problems[0]))
    return number


def watch(results: Path, store: Store, seconds: float = 20.0) -> None:
    """Show trainings in progress every so many ``seconds``.

    An error is printed once, and the next look tries again. It ends when somebody deletes the database, because MLflow
    keeps the deleted file open.
    """
    printed, known = "", None
    while True:
        if known is not None and _file_number(store.database) != known:
            warning = f"warning: {store.database}: was deleted; trainings are watched no longer"
            print(warning, file=sys.stderr, flush=True)
            return
        try:
            show_in_progress(results, store)
            printed = ""
        except (UserError, MlflowException, SQLAlchemyError, OSError) as error:
            reason = str(error).partition("\n")[0]
            if reason != printed:
                print(f"warning: {reason}", file=sys.stderr, flush=True)
            printed = reason
        known = _file_number(store.database)
        time.sleep(seconds)


def _file_number(path: Path) -> int | None:
    """The number that differs between a file and another one that took its name."""
    return path.stat().st_ino if path.exists() else None


def _result(run: Run) -> str:
    return f"{IN_PROGRESS} {run.run}"


def _plan(study: str, run: Run, directory: Path, manifest: Manifest | None, old: MlflowRun | None) -> PlannedRun | None:
    """Plan the MLflow run of a training, finished if it has a manifest; None if ``old`` shows all there is to show."""
    path = directory / ("metrics.parquet" if manifest else METRICS_SO_FAR)
    is_complete = manifest and old and old.data.tags.get(_COMPLETE_TAG) == manifest.outputs[path.name]
    if is_complete or not (manifest or path.exists()):
        return None
    frame = read_parquet(path, ["step"])
    params = flatten(manifest.parameters if manifest else frame.attrs.get(PARAMETERS, {}))
    metrics = metrics_of_steps(frame, path.stat().st_mtime_ns // 1_000_000)
    times = [metric.timestamp for metric in metrics]
    return PlannedRun(
        _result(run),
        f"{run.run} ({IN_PROGRESS})",
        content_hash(params),
        run_tags(study, "train, under way", run),
        min(times, default=None),
        max(times, default=None) if manifest else None,
        params=params,
        metrics=metrics,
        status="FINISHED" if manifest else "RUNNING" if is_held(path.with_name("state")) else "KILLED",
        growing=True,
        final_tags={_COMPLETE_TAG: manifest.outputs[path.name]} if manifest else {},
    )
