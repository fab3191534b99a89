"""The run that this process of verl works for, found by its environment."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from evals.core.run_spec import Cluster, VerlRun
from rlvr.engines.verl.launch import CLUSTER_VARIABLE, RUN_VARIABLE
from rlvr.engines.verl.registered import RegisteredAdvantage, RegisteredLoss
from rlvr.methods.method import Method, compose


@dataclass(frozen=True)
class ThisRun:
    """What a worker needs of its run.

    Attributes:
        run: run.json.
        cluster: cluster.json.
        method: the run's method.
        loss: as registered.
        advantage: as registered.
    """

    run: VerlRun
    cluster: Cluster
    method: Method
    loss: RegisteredLoss
    advantage: RegisteredAdvantage


@cache
def this_run() -> ThisRun:
    """The run that the environment names.

    Raises:
        KeyError: it names none.
        UserError: a file is missing or not accepted.
    """
    run = VerlRun.read(Path(os.environ[RUN_VARIABLE]))
    method = compose(run.method, f"method {run.method_name}")
    return ThisRun(
        run,
        Cluster.read(Path(os.environ[CLUSTER_VARIABLE])),
        method,
        RegisteredLoss(method.loss, method.aggregation),
        RegisteredAdvantage(method, run.training.max_new_tokens),
    )
