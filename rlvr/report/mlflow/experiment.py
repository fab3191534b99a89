"""The MLflow experiment of a study: it is made to show exactly the planned runs, and what is right stays untouched.

Runs are recognised by the tag ``rlvr.result`` and held to be right by the tag ``rlvr.content``. A run whose content
changed is replaced: the old one is deleted as in MLflow's own interface (hidden, restorable under "Deleted"), because
two active runs of one result would be averaged by whoever groups them. Runs of results that the study no longer has
are deleted in the same way; runs without the tag are the user's own and stay.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlparse
from urllib.request import url2pathname

from mlflow.entities import Dataset, DatasetInput, InputTag, LoggedModelInput, Param, Run, RunTag, ViewType
from mlflow.entities import Experiment as MlflowExperiment
from mlflow.tracking import MlflowClient

from evals.core.errors import InvalidInput
from rlvr.report.mlflow.database import SERVER_VARIABLE, Store, user_name
from rlvr.report.mlflow.models import MODEL_TAG, create_model, of_model, remove_model
from rlvr.report.mlflow.planned_run import PlannedRun

RESULT_TAG, CONTENT_TAG, GROUP_TAG = "rlvr.result", "rlvr.content", "rlvr.part"
_LAST_STEP_TAG, _HISTORY_TAG = "rlvr.last_step", "rlvr.history"
_NAME_TAG, _PARENT_TAG = "mlflow.runName", "mlflow.parentRunId"
_KIND_TAG = "mlflow.experimentKind"  # opens the interface on runs and charts instead of on chat traces
OWNER_TAG = "rlvr.results"  # of an experiment: whose results it shows
_PAGE = 1000  # runs per answer, MLflow's limit
_TABLE = "responses.json"
_SOURCE_TAGS = {"mlflow.source.name": "rlvr-bench", "mlflow.source.type": "LOCAL"}


@dataclass(frozen=True)
class Experiment:
    """The experiment of a study in a locked store; files of replaced runs are removed only under ``artifacts``."""

    client: MlflowClient
    identity: str
    artifacts: Path

    @classmethod
    def of(cls, client: MlflowClient, name: str, store: Store) -> Experiment:
        """Open an experiment; it is made or restored if need be.

        One whose artifacts lie elsewhere is that of the study that this one was copied from. It keeps its runs under
        another name, with what the user added to them. On a server, which others may use, it is left alone.

        Raises:
            InvalidInput: the server has an experiment of that name which is not of these results.
        """
        found = client.get_experiment_by_name(name)
        if found and not is_of(found, store):
            if store.server:
                reason = f"has an experiment {name} of {found.tags.get(OWNER_TAG) or 'others'}, not of {store.owner}"
                raise InvalidInput(SERVER_VARIABLE, store.address, reason, "another name of the study or experiment")
            if found.lifecycle_stage == "deleted":
                client.restore_experiment(found.experiment_id)
            client.rename_experiment(found.experiment_id, f"{name}, copied, experiment {found.experiment_id}")
            found = None
        if found is None:
            tags = {_KIND_TAG: "custom_model_development", OWNER_TAG: store.owner}
            location = None if store.server else store.artifacts.resolve().as_uri()  # a server chooses its own
            return cls(client, client.create_experiment(name, location, tags), store.artifacts)
        if found.lifecycle_stage == "deleted":
            client.restore_experiment(found.experiment_id)
        return cls(client, found.experiment_id, store.artifacts)

    @classmethod
    def shows(cls, contents: Mapping[str, str], client: MlflowClient, name: str, store: Store) -> bool:
        """Return whether the experiment of these results has whole runs of these contents, by result."""
        found = client.get_experiment_by_name(name)
        if found is None or found.lifecycle_stage == "deleted" or not is_of(found, store):
            return False
        runs = cls(client, found.experiment_id, store.artifacts).runs().items()
        whole = {result: run.data.tags.get(CONTENT_TAG) for result, run in runs if run.info.status == "FINISHED"}
        return contents.items() <= whole.items()

    def runs(self) -> dict[str, Run]:
        """Every run that this package made, of all groups, by its result."""
        found: dict[str, Run] = {}
        token: str | None = None
        while token != "":
            page = self.client.search_runs([self.identity], "", ViewType.ACTIVE_ONLY, _PAGE, page_token=token)
            found |= {run.data.tags[RESULT_TAG]: run for run in page if RESULT_TAG in run.data.tags}
            token = page.token or ""
        return found

    def bring_into_line(
        self, planned: Iterable[PlannedRun], group: str = "", untouched: Container[str] = ()
    ) -> dict[str, int]:
        """Make, extend, replace and delete runs until a group consists of the planned and the ``untouched`` ones.

        The study's own results are the group without a name. Returns how many runs were created, kept and so on.
        """
        existing = {name: run for name, run in self.runs().items() if run.data.tags.get(GROUP_TAG, "") == group}
        run_ids: dict[str, str] = {}
        models: dict[str, str] = {}  # result of a run -> the model that it made
        counts = Counter(created=0, kept=0, replaced=0, removed=0)
        for plan in planned:
            parent = run_ids[plan.parent] if plan.parent is not None else None
            old = existing.pop(plan.result, None)
            if old is not None and _is_right(old, plan, parent):
                run_ids[plan.result] = old.info.run_id
                models |= {plan.result: old.data.tags[MODEL_TAG]} if plan.model else {}
                if plan.growing:
                    self._extend(old, plan)
                counts["kept"] += 1
                continue
            if old is not None:
                self._remove(old)
            run_ids[plan.result] = run_id = self._create(plan, parent, group, models.get(plan.parent or ""))
            if plan.model:
                step = plan.metrics[-1].step if plan.metrics else 0
                models[plan.result] = create_model(self.client, self.identity, run_id, plan.model, step)
            if not plan.growing:
                self.client.set_terminated(run_id, plan.status, plan.ended)
            counts["created" if old is None else "replaced"] += 1
        for result, old in existing.items():
            if result not in untouched:
                self._remove(old)
                counts["removed"] += 1
        return dict(counts)

    def _remove(self, run: Run) -> None:
        """Delete a run, its model, and its copies of files if they lie under ``artifacts``."""
        if run.data.tags.get(_PARENT_TAG) is None:  # nested ones make no models
            remove_model(self.client, self.identity, run.info.run_id)
        self.client.delete_run(run.info.run_id)
        folder = Path(url2pathname(urlparse(run.info.artifact_uri).path))
        if folder.is_relative_to(self.artifacts.resolve()):
            shutil.rmtree(folder.parent, ignore_errors=True)

    def _create(self, plan: PlannedRun, parent: str | None, group: str, model: str | None) -> str:
        """Make a run; its metrics are those of ``model``, if it measures one."""
        own = {GROUP_TAG: group or None, _PARENT_TAG: parent, CONTENT_TAG: None if plan.growing else plan.content}
        own |= {RESULT_TAG: plan.result, _NAME_TAG: plan.name, "mlflow.user": user_name() or None, **_SOURCE_TAGS}
        tags = {**plan.tags, **{key: value for key, value in own.items() if value is not None}}
        run = self.client.create_run(self.identity, start_time=plan.started, tags=tags)
        run_id: str = run.info.run_id
        params = [Param(key, value) for key, value in plan.params.items()]
        problems, digest = plan.problems, plan.problems.sha256[:16] if plan.problems else ""  # up to 36 characters
        metrics = [of_model(each, model, problems, digest) for each in plan.metrics] if model else plan.metrics
        self.client.log_batch(run_id, () if plan.growing else metrics, params)
        if problems:
            dataset = Dataset(problems.name, digest, "local", json.dumps({"uri": problems.path}))
            role = InputTag("mlflow.data.context", problems.role)
            measured = [LoggedModelInput(model)] if model else None
            self.client.log_inputs(run_id, [DatasetInput(dataset, [role])], measured)
        for path, folder in plan.artifacts.items():
            self.client.log_artifact(run_id, str(path), folder or None)
        if plan.table and len(table := plan.table()):
            self.client.log_table(run_id, table, _TABLE)
        if plan.growing:
            self.client.set_tag(run_id, CONTENT_TAG, plan.content)  # last: without it the run is half-written
            self._extend(run, plan)
        return run_id

    def _extend(self, run: Run, plan: PlannedRun) -> None:
        """Add the steps that a growing run does not show yet, and its end."""
        run_id = run.info.run_id
        for batch in plan.batches(_last_step(run)):
            step = batch[-1].step
            tags = [RunTag(_LAST_STEP_TAG, str(step)), RunTag(_HISTORY_TAG, plan.history_hashes[step])]
            self.client.log_batch(run_id, batch, tags=tags)
        if plan.ended is not None:
            self.client.set_terminated(run_id, plan.status, plan.ended)
        elif plan.status != run.info.status:  # a killed one may go on, and MLflow takes no end back
            self.client.update_run(run_id, plan.status)
        for key, value in plan.final_tags.items():
            self.client.set_tag(run_id, key, value)


def is_of(experiment: MlflowExperiment, store: Store) -> bool:
    """Return whether an experiment shows the results of ``store``; those of a copied database lie elsewhere."""
    if store.server:
        return bool(experiment.tags.get(OWNER_TAG) == store.owner)
    return bool(experiment.artifact_location == store.artifacts.resolve().as_uri())


def _is_right(run: Run, plan: PlannedRun, parent: str | None) -> bool:
    """Return whether ``run`` shows the plan or, if that grows, its first steps.

    Under another parent it does not: what it measured is then shown of a model that was replaced.
    """
    tags, last = run.data.tags, _last_step(run)
    if tags.get(CONTENT_TAG) != plan.content or tags.get(_PARENT_TAG) != parent:
        return False
    if plan.model and MODEL_TAG not in tags:
        return False
    if not plan.growing:  # a killed projection leaves a run half-written and RUNNING
        return bool(run.info.status == "FINISHED")
    # A step that it shows may have been lost since and done again.
    return last == 0 or tags.get(_HISTORY_TAG) == plan.history_hashes.get(last)


def _last_step(run: Run) -> int:
    return int(run.data.tags.get(_LAST_STEP_TAG, 0))
