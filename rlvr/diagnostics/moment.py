"""A moment of a run: the policy before one rollout step, that step's rollouts and its rows of the token table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from evals.core.errors import UserError
from evals.core.files import read_jsonl
from evals.core.manifest import verify_outputs
from evals.core.run_spec import LocalRun
from rlvr.diagnostics.token_columns import read_token_table
from rlvr.engines.local.policy import TokenBatch


def moment_directory(out: Path, step: int) -> Path:
    """Where the moment of ``step`` lies under the directory of a token table."""
    return out / "moments" / f"step-{step:08d}"


@dataclass(frozen=True)
class Moment:
    """N response tokens of B rollouts, in the row order of the table and of the packed tensors of a forward pass.

    Attributes:
        run: the resolved run.
        step: 1 for the run's first.
        model: the policy before the step, with parameters of its own that a probe may change and put back.
        tokens: prompts and responses.
        groups: [B] int64, the prompt that each rollout answers.
        rows: the token table's N rows of this step.
    """

    run: LocalRun
    step: int
    model: PreTrainedModel
    tokens: TokenBatch
    groups: Tensor
    rows: pd.DataFrame

    @property
    def unit(self) -> str:
        """Name of the update that this moment is of."""
        return f"{self.run.run}/{self.step}"

    def column(self, name: str) -> Tensor:
        """[N] float64 of a numeric column."""
        return torch.from_numpy(np.array(self.rows[name], dtype=np.float64))

    @cached_property
    def token_ids(self) -> Tensor:
        """[N] int64."""
        return torch.from_numpy(self.rows["token"].to_numpy().astype(np.int64))

    @cached_property
    def rollout_of(self) -> Tensor:
        """[N] int64, the rollout of each token."""
        return torch.arange(len(self.tokens.responses)).repeat_interleave(
            torch.tensor([len(response) for response in self.tokens.responses])
        )

    @cached_property
    def group_of(self) -> Tensor:
        """[N] int64, the group of each token."""
        return self.groups[self.rollout_of]

    @cached_property
    def trained(self) -> Tensor:
        """[N] float64, how far the run's own updates of this step moved each token's log-probability."""
        return self.column("new_log_prob") - self.column("old_log_prob")

    @cached_property
    def signal(self) -> Tensor:
        """[N] float64 advantage times weight: what multiplies a token's score in the gradient at ratio 1."""
        return self.column("advantage") * self.column("weight")


def read_moments(directory: Path, steps: Sequence[int] | None = None) -> list[Moment]:
    """The moments of a token table's directory, in the order of their steps.

    Paths in the run's files are relative to the working directory, as everywhere.

    Args:
        directory: of :func:`rlvr.diagnostics.replay.write_token_table`.
        steps: of those kept, the ones that are wanted; None for all.

    Raises:
        UserError: a file is missing or changed, or a step was not kept.
    """
    manifest = verify_outputs(directory / "manifest.json", "token_table")
    table = read_token_table(directory / "tokens.parquet")
    run_file = Path(next(iter(manifest.inputs))).parent / "run.json"
    run = LocalRun.read(run_file)
    kept = manifest.parameters["steps"]
    for step in steps or ():
        if step not in kept:
            raise UserError(f"{directory}: step {step} was not kept; accepted: {', '.join(map(str, kept))}")
    moments = []
    for step in steps or kept:
        place = moment_directory(directory, step)
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(run.base / "checkpoint", dtype=torch.float32)
        weights = load_file(place / "weights.safetensors")
        for name, parameter in model.named_parameters():
            parameter.data.copy_(weights[name])
        rollouts = read_jsonl(place / "rollouts.jsonl", required=("problem", "group", "prompt", "response"))
        moments.append(
            Moment(
                run,
                step,
                model,
                TokenBatch([row["prompt"] for row in rollouts], [row["response"] for row in rollouts]),
                torch.tensor([row["group"] for row in rollouts]),
                table[table["step"] == step].reset_index(drop=True),
            )
        )
    return moments
