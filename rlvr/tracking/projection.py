"""Making MLflow show exactly the entries that it is given, touching nothing that is right already.

Entries are recognised by the tag ``rlvr.result`` and held to be right by the tag ``rlvr.content``. One whose content
changed is replaced: the old run is deleted the way MLflow's own interface deletes (hidden, restorable under
"Deleted"), for two active runs of one result would be averaged by whoever groups them. Runs of results that the study
no longer has go the same way; runs without the tag are the user's own and are left alone.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import urlparse
from urllib.request import url2pathname

import sqlalchemy
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, Run, ViewType
from mlflow.tracking import MlflowClient
from mlflow.utils.mlflow_tags import MLFLOW_DATASET_CONTEXT, MLFLOW_PARENT_RUN_ID, MLFLOW_RUN_NAME

from evals.core.records import ProblemFile
from rlvr.tracking.database import Database
from rlvr.tracking.entry import Entry
from rlvr.tracking.history import write_history

RESULT_TAG, CONTENT_TAG, FINGERPRINT_TAG = "rlvr.result", "rlvr.content", "fingerprint"
PART_TAG = "rlvr.part"
_PARAMS_A_CALL, _PAGE = 100, 1000  # MLflow's limits
_DIGEST_LENGTH = 16  # MLflow takes up to 36 characters: the whole SHA-256 stands in a tag


def project(
    database: Database, experiment: str, artifacts: Path, entries: Iterable[Entry], part: str = ""
) -> dict[str, int]:
    """Bring a part of an experiment (by id) into line with the entries, parents before children.

    Args:
        database: locked by this process.
        experiment: its id.
        artifacts: the only directory under which files of replaced runs are removed.
        entries: what shall be there.
        part: the runs that are looked at: those of this part alone, which were projected under the same name.

    Returns:
        How many runs were ``created``, ``kept``, ``replaced`` and ``removed``.
    """
    client, engine = database.client, database.engine
    existing = {
        result: run for result, run in shown_runs(client, experiment).items() if run.data.tags.get(PART_TAG, "") == part
    }
    run_ids: dict[str, str] = {}
    counts = Counter(created=0, kept=0, replaced=0, removed=0)
    for entry in entries:
        parent = run_ids[entry.parent] if entry.parent is not None else None
        old = existing.pop(entry.result, None)
        if old is not None and _is_right(old, entry):
            if parent is not None and old.data.tags.get(MLFLOW_PARENT_RUN_ID) != parent:
                client.set_tag(old.info.run_id, MLFLOW_PARENT_RUN_ID, parent)
            run_ids[entry.result] = old.info.run_id
            counts["kept"] += 1
            continue
        if old is not None:
            remove(client, old, artifacts)
        run_ids[entry.result] = _create(client, engine, experiment, entry, parent, part)
        counts["created" if old is None else "replaced"] += 1
    for old in existing.values():
        remove(client, old, artifacts)
        counts["removed"] += 1
    return dict(counts)


def shown_runs(client: MlflowClient, experiment: str) -> dict[str, Run]:
    """Every run of ours in an experiment (by id), of whatever part, by its result."""
    found: dict[str, Run] = {}
    token = None
    while True:
        page = client.search_runs([experiment], "", ViewType.ACTIVE_ONLY, _PAGE, page_token=token)
        found |= {run.data.tags[RESULT_TAG]: run for run in page if RESULT_TAG in run.data.tags}
        token = page.token
        if not token:
            return found


def _is_right(run: Run, entry: Entry) -> bool:
    """A run that a killed projection left half-written is still RUNNING and so is written again."""
    return run.info.status == "FINISHED" and run.data.tags.get(CONTENT_TAG) == entry.content


def remove(client: MlflowClient, run: Run, artifacts: Path) -> None:
    """Delete a run as MLflow's interface does, and its copies of files if they lie under ``artifacts``."""
    client.delete_run(run.info.run_id)
    folder = Path(url2pathname(urlparse(run.info.artifact_uri).path))
    if folder.is_relative_to(artifacts.resolve()):
        shutil.rmtree(folder.parent, ignore_errors=True)


def _create(
    client: MlflowClient, engine: sqlalchemy.Engine, experiment: str, entry: Entry, parent: str | None, part: str
) -> str:
    tags = {
        **entry.tags,
        RESULT_TAG: entry.result,
        CONTENT_TAG: entry.content,
        FINGERPRINT_TAG: entry.fingerprint,
        MLFLOW_RUN_NAME: entry.name,
    }
    if part:
        tags[PART_TAG] = part
    if parent is not None:
        tags[MLFLOW_PARENT_RUN_ID] = parent
    run_id: str = client.create_run(experiment, start_time=entry.started, tags=tags).info.run_id
    metrics = [Metric(point.key, point.value, point.milliseconds, point.step) for point in entry.metrics]
    client.log_batch(run_id, metrics)
    log_params(client, run_id, entry.params)
    write_history(engine, run_id, entry.history)
    if entry.problem_sets:
        client.log_inputs(run_id, datasets=[_dataset(problem_set) for problem_set in entry.problem_sets])
    for path, folder in entry.artifacts.items():
        client.log_artifact(run_id, str(path), folder or None)
    client.set_terminated(run_id, "FINISHED", entry.ended)
    return run_id


def log_params(client: MlflowClient, run_id: str, params: Mapping[str, str]) -> None:
    """Log any number of parameters."""
    listed = [Param(key, value) for key, value in params.items()]
    for first in range(0, len(listed), _PARAMS_A_CALL):
        client.log_batch(run_id, params=listed[first : first + _PARAMS_A_CALL])


def _dataset(problem_set: ProblemFile) -> DatasetInput:
    source = json.dumps({"uri": problem_set.path})
    dataset = Dataset(problem_set.name, problem_set.sha256[:_DIGEST_LENGTH], "local", source)
    return DatasetInput(dataset, [InputTag(MLFLOW_DATASET_CONTEXT, problem_set.role)])
