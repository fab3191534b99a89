"""Writing a training run's whole metric history in one transaction.

``MlflowClient.log_batch`` builds an ORM object per point: 85 ms per 1,000 points, so that a study of 160 runs of 60
steps and 25 metrics spends 20 s there and the history inserted here takes 2 s. The rows go through MLflow's own table
definitions; the tests read them back through MLflow's public client, which is what would notice a changed schema.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import sqlalchemy
from mlflow.store.tracking.dbmodels.models import SqlLatestMetric, SqlMetric

from rlvr.tracking.entry import Point


def write_history(engine: sqlalchemy.Engine, run_id: str, points: Sequence[Point]) -> None:
    """Add points to a run that has no metric of these keys yet; of each key the last step is its latest value."""
    if not points:
        return
    rows = [_row(run_id, point) for point in points]
    latest = {row["key"]: row for row in sorted(rows, key=lambda row: row["step"])}
    with engine.begin() as connection:
        connection.execute(sqlalchemy.insert(SqlMetric), rows)
        connection.execute(sqlalchemy.insert(SqlLatestMetric), list(latest.values()))


def _row(run_id: str, point: Point) -> dict[str, Any]:
    """A table row; MLflow stores infinity as the largest float."""
    value = math.copysign(sys.float_info.max, point.value) if math.isinf(point.value) else point.value
    return {
        "run_uuid": run_id,
        "key": point.key,
        "value": value,
        "timestamp": point.milliseconds,
        "step": point.step,
        "is_nan": False,
    }
