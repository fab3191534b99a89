"""MLflow's models: one for every policy, with its checkpoint named, and a version of its method's registered model.

A model names its checkpoint and copies nothing of it. No alias says which seed is best: the highest of several seeds is
no better policy by that. Aliases name the seeds.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from mlflow.entities import LoggedModelOutput, Metric
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from evals.core.records import ProblemFile

MODEL_TAG = "rlvr.model"  # of a run and of a version: the policy
_KIND = "policy"
_VERSIONS_TAG = "mlflow.modelVersions"  # of a policy: the versions that MLflow's page of it links; servers set it


@dataclass(frozen=True)
class PlannedModel:
    """The policy that a run makes."""

    name: str
    registered: str  # the model whose version it is: that of a method
    alias: str  # of the version
    checkpoint: str | None  # address of its directory
    tags: Mapping[str, str]  # hashes of its files among them


def create_model(client: MlflowClient, experiment: str, run_id: str, plan: PlannedModel, step: int) -> str:
    """Make the model of a run, made after so many steps, and its version; returns its identifier."""
    named = {"checkpoint": plan.checkpoint} if plan.checkpoint else {}
    model = client.create_logged_model(experiment, plan.name, run_id, {**plan.tags, **named}, model_type=_KIND)
    identifier: str = model.model_id
    client.finalize_logged_model(identifier, "READY")
    client.log_outputs(run_id, [LoggedModelOutput(identifier, step)])
    _register(client, plan.registered)
    # The source is its place, not its address: MLflow 3.17 looks up models:/ addresses in the default store, whichever
    # is meant. A server takes no other place.
    source, tags = model.artifact_location, {MODEL_TAG: identifier, **named}
    version = client.create_model_version(plan.registered, source, run_id, tags, None, None, 0, identifier)
    client.set_registered_model_alias(plan.registered, plan.alias, version.version)
    shown = json.dumps([{"name": plan.registered, "version": version.version}])
    client.set_logged_model_tags(identifier, {_VERSIONS_TAG: shown})
    client.set_tag(run_id, MODEL_TAG, identifier)
    return identifier


def _register(client: MlflowClient, name: str) -> None:
    """Make a registered model, if there is none of that name."""
    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


def remove_model(client: MlflowClient, experiment: str, run_id: str) -> None:
    """Delete what :func:`create_model` made for a run, as far as it came."""
    for version in client.search_model_versions(f"run_id = '{run_id}'"):
        client.delete_model_version(version.name, version.version)
    for model in client.search_logged_models([experiment], f"source_run_id = '{run_id}'"):
        client.delete_logged_model(model.model_id)


def of_model(metric: Metric, model: str, problems: ProblemFile | None, digest: str) -> Metric:
    """The metric as one of a model on a data set, which MLflow's pages of models show."""
    name = problems.name if problems else None
    return Metric(metric.key, metric.value, metric.timestamp, metric.step, model, name, digest if problems else None)
