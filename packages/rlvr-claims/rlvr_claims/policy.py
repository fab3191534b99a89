"""The policy before one rollout step of a run, with the rollouts of that step and their rows of the token table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from safetensors.torch import load_file
from torch import Tensor

from evals.core.errors import UserError
from evals.core.manifest import verify_outputs
from evals.core.record import Record, read_rows
from evals.core.run_spec import LocalRun
from evals.generation.checkpoint import Checkpoint
from rlvr.engines.local.policy import Policy, TokenBatch, load_policy
from rlvr.tokens.table import DISPLACEMENT, read_token_table


class Rollout(Record):
    """A line of ``rollouts.jsonl``: the problem's id and number in the step, and the tokens."""

    problem: str
    group: int
    prompt: list[int]
    response: list[int]


def snapshot_directory(out: Path, step: int) -> Path:
    """Return the directory of a step's snapshot, under the directory of a token table."""
    return out / "moments" / f"step-{step:08d}"


def numbers_within_groups(group_ids: Tensor) -> Tensor:
    """Return 0, 1, 2 ... [B] within each group, in the order of the rollouts."""
    same = group_ids[:, None] == group_ids[None]
    return torch.tril(same, diagonal=-1).sum(dim=1)


@dataclass(frozen=True)
class PolicySnapshot:
    """N response tokens of B rollouts, in the row order of the table and of the packed tensors of a forward pass."""

    run: LocalRun
    step: int  # 1 for the run's first
    model: Policy  # the policy before the step; a probe may change its parameters and put them back
    tokens: TokenBatch
    groups: Tensor  # [B] int64, the prompt that each rollout answers
    rows: pd.DataFrame  # the token table's N rows of this step

    @property
    def unit(self) -> str:
        """The name of the update that starts from this policy."""
        return f"{self.run.run}/{self.step}"

    @property
    def identity(self) -> dict[str, str | int]:
        """The first columns of every row that a claim measures on this update."""
        return {"unit": self.unit, "step": self.step}

    @property
    def temperature(self) -> float:
        return self.run.training.temperature

    def column(self, name: str) -> Tensor:
        """Return a numeric column as [N] float64."""
        return torch.from_numpy(np.array(self.rows[name], dtype=np.float64))

    def of_rollouts(self, name: str) -> Tensor:
        """Return a numeric column that is one number for each rollout, [B] float64."""
        firsts = self.rows.groupby(["group", "sample"], sort=False)[name].first()
        return torch.tensor(firsts.to_numpy(), dtype=torch.float64)

    def of_class(self, name: str) -> Tensor:
        """Return a mask [N]."""
        return torch.from_numpy((self.rows["token_class"] == name).to_numpy())

    @cached_property
    def token_ids(self) -> Tensor:
        """[N] int64."""
        return torch.from_numpy(self.rows["token"].to_numpy().astype(np.int64))

    @cached_property
    def lengths(self) -> Tensor:
        """[B] int64, tokens of each response."""
        return torch.tensor([len(response) for response in self.tokens.responses])

    @cached_property
    def rollout_of(self) -> Tensor:
        """[N] int64, the rollout of each token."""
        return torch.arange(len(self.lengths)).repeat_interleave(self.lengths)

    @cached_property
    def own_displacement(self) -> Tensor:
        """[N] float64, the change of each token's log-probability by the run's own updates of this step.

        It is a difference of passes in float32, whatever the run computed in. UserError if the table of a run in
        bfloat16 has none.
        """
        if DISPLACEMENT in self.rows:
            return self.column(DISPLACEMENT)
        if self.run.dtype != "float32":
            raise UserError(
                f"{self.unit}: its token table has no column {DISPLACEMENT}, which runs in {self.run.dtype} need; "
                "accepted: the table of a new `rlvr-bench claims replay`"
            )
        return self.column("new_log_prob") - self.column("old_log_prob")

    @cached_property
    def weighted_advantages(self) -> Tensor:
        """[N] float64 advantage times weight: the factor of a token's score in the gradient at ratio 1."""
        return self.column("advantage") * self.column("weight")

    @cached_property
    def coefficients(self) -> Tensor:
        """[N] float64, the weighted advantages over N: the gradient coefficients of one step on all tokens."""
        return self.weighted_advantages / len(self.rows)


@torch.no_grad()
def policy_of(run: LocalRun, weights: Mapping[str, Tensor], device: str) -> Policy:
    """Load the run's model with other ``weights``; it computes in float32."""
    model = load_policy(Checkpoint(run.base / "checkpoint"), device)
    for name, parameter in model.named_parameters():
        parameter.copy_(weights[name])
    return model


def read_snapshots(directory: Path, steps: Sequence[int] | None = None) -> list[PolicySnapshot]:
    """Read the snapshots of ``steps``, or of all that were kept, from the directory of a token table.

    Paths in the run's files are relative to the working directory, as everywhere. UserError if a file is missing or
    changed, or a step was not kept.
    """
    manifest = verify_outputs(directory / "manifest.json", "token_table")
    table = read_token_table(directory)
    run = LocalRun.read(Path(next(iter(manifest.inputs))).parent / "run.json")
    kept = manifest.parameters["steps"]
    if missing := [step for step in steps or () if step not in kept]:
        raise UserError(f"{directory}: step {missing[0]} was not kept; accepted: {', '.join(map(str, kept))}")
    snapshots = []
    for step in steps or kept:
        moment = snapshot_directory(directory, step)
        model = policy_of(run, load_file(moment / "weights.safetensors"), "cpu")
        rollouts = read_rows(moment / "rollouts.jsonl", Rollout)
        tokens = TokenBatch([row.prompt for row in rollouts], [row.response for row in rollouts])
        groups = torch.tensor([row.group for row in rollouts])
        rows = table[table["step"] == step].reset_index(drop=True)
        snapshots.append(PolicySnapshot(run, step, model, tokens, groups, rows))
    return snapshots
