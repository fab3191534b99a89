"""Saved views of an experiment's trainings: their curves by method, and their final scores as a table.

MLflow's pages keep a view as a tag of the experiment, list it below *Views*, and open it by an address that ends in
``viewStateShareKey=KEY`` (MLflow 3.17). An older server opens the same address without the view.
"""

import json

from mlflow.entities import Experiment, Run
from mlflow.tracking import MlflowClient

from rlvr.report.mlflow.planned_run import UNJUDGED

_TAG = "mlflow.sharedViewState."
CURVES, SCORES = "rlvr-curves", "rlvr-scores"
_TRAININGS = "tags.stage LIKE 'train%'"
_RUNS = 1000  # that are asked for their metrics and models, MLflow's limit
_MOST_COLUMNS = 20  # a tag holds 5,000 characters


def save_views(client: MlflowClient, experiment: Experiment) -> None:
    """Keep both views with an experiment, for the metrics that its trainings have by now.

    A view that the user has changed in MLflow stays as it is.
    """
    runs = client.search_runs([experiment.experiment_id], _TRAININGS, max_results=_RUNS)
    for key, name, state in ((CURVES, "Curves by method", _curves(runs)), (SCORES, "Final scores", _scores(runs))):
        made = experiment.creation_time  # MLflow dates a view that somebody changes
        view = {"name": name, "createdAt": made, "updatedAt": made, "state": json.dumps(state)}
        old = experiment.tags.get(_TAG + key)
        if old is None or json.loads(old)["updatedAt"] == made:
            client.set_experiment_tag(experiment.experiment_id, _TAG + key, json.dumps(view))


def _curves(runs: list[Run]) -> dict[str, object]:
    """All trainings, as the mean and the range over the seeds of a method; its score first, then its training."""
    sections = [{"uuid": name, "name": name, "display": True, "isReordered": True} for name in ("eval/all", "train")]
    grouped = ["model", "method"] if len({run.data.tags.get("model") for run in runs}) > 1 else ["method"]
    by = [{"mode": "tag", "groupByData": tag} for tag in grouped]
    return {
        **_sought("attributes.start_time"),
        "runsHiddenMode": "SHOW_ALL",  # otherwise the ten newest
        "groupBy": {"aggregateFunction": "average", "groupByKeys": by},
        "compareRunCharts": [],  # MLflow adds one for every metric, and the other sections
        "compareRunSections": sections,
        "isAccordionReordered": True,
    }


def _scores(runs: list[Run]) -> dict[str, object]:
    """A row for each training with its scores, the highest first, and the responses that nobody could judge."""
    keys = {key for run in runs for key in run.data.metrics if key.startswith("eval/") and "/avg_at_" in key}
    columns = [f"metrics.`{key}`" for key in sorted(keys)[:_MOST_COLUMNS]]
    columns += [f"metrics.`{UNJUDGED}`"] if any(UNJUDGED in run.data.metrics for run in runs) else []
    overall = next((column for column in columns if column.startswith("metrics.`eval/all/")), "attributes.start_time")
    return _sought(overall) | {"selectedColumns": [*columns, "attributes.`Duration`", "attributes.`Models`"]}


def _sought(order: str) -> dict[str, object]:
    """Return the filter and the order of a view; without any of these keys MLflow takes what the user had last."""
    kept = {"lifecycleFilter": "Active", "startTime": "ALL", "modelVersionFilter": "All Runs", "datasetsFilter": []}
    return {"searchFilter": _TRAININGS, "orderByKey": order, "orderByAsc": False, **kept}
