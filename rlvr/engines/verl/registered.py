"""The run that a process of verl works for, its grader, and what driver and workers exchange.

Nothing here imports verl.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from evals.core.run_spec import VERIFIER_FILE, Cluster, VerlRun, parts_in_files
from evals.generation.checkpoint import Checkpoint
from evals.generation.thinking import case_of
from evals.grading import GradingPool, Verdict
from rlvr.engines.verl.launch import CLUSTER_VARIABLE, RUN_VARIABLE, STUDY_VARIABLE
from rlvr.methods.method import Method, compose


class Field:
    """The names under which the driver and the workers exchange values that verl has no name for."""

    REWARD = "rlvr_reward"  # [B] of each rollout
    ADVANTAGE = "rlvr_advantage"  # [B], of whole groups
    COUNTED = "rlvr_counted"  # [B] bool, whether a rollout counts in the training
    GROUP = "rlvr_group"  # [B] int64, the prompt of each rollout
    MINI_BATCH = "rlvr_mini_batch"  # [B] int64
    ROW = "rlvr_row"  # [B] int64, the rollout's place in what was sampled, by which reordering is undone
    STEP = "rlvr_step"  # the rollout step, from 1
    ENTROPY_COEFFICIENT = "rlvr_entropy_coefficient"  # of the method's entropy bonus in this step
    FIRST_METRICS = "rlvr_first_metrics"  # the metrics of the token weights on the run's first batch
    TOKEN_WEIGHTS = "token_weights"  # [length] of each rollout, computed by workers
    WEIGHT_METRICS = "token_weight_metrics"  # of the whole batch, with each rollout as packed_metrics


def group_ids(names: Any) -> Tensor:
    """[B] int64: prompts numbered in the order in which their names first appear."""
    numbers: dict[str, int] = {}
    return torch.tensor([numbers.setdefault(str(name), len(numbers)) for name in names])


def prompt_of(key: str) -> str:
    """The prompt in verl's name of a rollout, ``{prompt}_{number}_{part}``."""
    return key.rsplit("_", 2)[0]


def rollout_number(key: str) -> int:
    """The number of the rollout in its prompt's group, from verl's name of it."""
    return int(key.rsplit("_", 2)[1])


@dataclass(frozen=True)
class CurrentRun:
    """The run that this process works for, with its method."""

    run: VerlRun
    cluster: Cluster
    method: Method

    @classmethod
    def of(cls, run: VerlRun, cluster: Cluster) -> CurrentRun:
        return cls(run, cluster, compose(run.method, f"method {run.method_name}", run.training.max_new_tokens))


@cache
def current_run() -> CurrentRun:
    """The run that the environment names."""
    run, cluster = VerlRun.read(Path(os.environ[RUN_VARIABLE])), Cluster.read(Path(os.environ[CLUSTER_VARIABLE]))
    for part in parts_in_files(run.method):  # a worker may have another working directory than the study
        part["file"] = str(Path(os.environ[STUDY_VARIABLE]) / part["file"])
    return CurrentRun.of(run, cluster)


_GRADING = threading.Lock()


@cache
def _pool() -> GradingPool:
    """The grader of this process, or the user's reward function in a sandbox that this process keeps."""
    copy = Path(os.environ[RUN_VARIABLE]).parent / "verl" / VERIFIER_FILE
    return GradingPool(workers=1, verifier=copy if current_run().run.verifier else None)


def grade(
    checkpoint: Checkpoint, prompt: Sequence[int], response: Sequence[int], finished: bool, truth: str
) -> Verdict:
    """Grade the tokens of a response to those of a prompt, as evaluation does.

    ``truth`` is the gold answer, or for a verifier the JSON of the problem's row.
    """
    with _GRADING:
        problem = json.loads(truth) if _pool().verifier else None
        gold = problem["answer"] if problem else truth
        return _pool().grade([case_of(checkpoint.tokenizer, prompt, response, finished, gold, problem)])[0]


def nested(rows: Sequence[Any]) -> Tensor:
    """A tensor of rows of unequal lengths, as verl passes them on."""
    return torch.nested.as_nested_tensor([torch.as_tensor(row) for row in rows], layout=torch.jagged)


def packed_metrics(metrics: Mapping[str, float]) -> Tensor:
    """[n] uint8, names and values as JSON: a tensor is all that workers can send with each rollout."""
    return torch.tensor(list(json.dumps(dict(metrics)).encode("utf-8")), dtype=torch.uint8)


def unpacked_metrics(packed: Tensor) -> dict[str, float]:
    """The metrics of :func:`packed_metrics`."""
    metrics: dict[str, float] = json.loads(bytes(packed.tolist()))
    return metrics
