"""The rollouts that a run keeps: of every so many steps a table with a row for each response token.

    results/runs/{run}/rollouts/step-{N}/tokens.parquet, manifest.json

A step's table is written after its update and before any state that has it, so a run that is killed and continued has
the same tables as one that was not. They are no part of a run's identity. Each has a manifest of its own, as the
checkpoints along a run have, and the run's manifest does not list them: they can be deleted, or come from steps that
are done later, without a change to the run. The manifest names the training, for a run's directory may still hold
tables of an earlier configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from evals.core.files import fingerprint, write_parquet
from evals.core.manifest import Manifest, hash_files, read_manifest, verify_outputs

if TYPE_CHECKING:
    from torch import Tensor

    from rlvr.methods.rollout_batch import RolloutBatch

ROLLOUT_COLUMNS = {
    **dict.fromkeys(("run", "problem", "text"), "string"),
    **dict.fromkeys(("step", "group", "sample", "position", "token", "mini_batch"), "int32"),
    **dict.fromkeys(("reward", "advantage", "weight", "old_log_prob", "entropy"), "float32"),
}
"""The columns of a step's rollouts and their types; docs/tokens.md describes each."""
MOST_TOKENS = 1_000_000
"""Response tokens of a step that are kept, about 14 MB; of a larger batch whole groups are left out."""
KIND = "kept_rollouts"  # the manifest's
_FOLDER, _PREFIX = "rollouts", "step-"


@dataclass(frozen=True)
class StepRollouts:
    """The B rollouts that a step of a run learns from, as they are before its update."""

    run: str  # name of the training
    step: int  # from 1
    problems: Sequence[str]  # id of each rollout's problem
    rewards: Tensor  # [B]
    batch: RolloutBatch  # what the weights were computed from
    weights: Tensor  # [B, T], of the tokens; anything at padding


def is_kept(step: int, every: int | None) -> bool:
    """Return whether the rollouts of ``step``, from 1, are kept: the first step and every ``every``-th one."""
    return every is not None and (step == 1 or step % every == 0)


def rollout_directory(run_directory: Path, step: int) -> Path:
    """Name the directory of a step's rollouts under a run's directory."""
    return run_directory / _FOLDER / f"{_PREFIX}{step}"


def kept_steps(run_directory: Path) -> Iterator[tuple[int, Path]]:
    """Yield the steps, ascending, and directories of the rollouts that the present training of a run has kept.

    Raises:
        UserError: the run has no manifest, or a table has other bytes than were written.
    """
    manifest = read_manifest(run_directory / "manifest.json", "run")
    directories = (path.parent for path in (run_directory / _FOLDER).glob(f"{_PREFIX}*/manifest.json"))
    steps = {int(number): path for path in directories if (number := path.name.removeprefix(_PREFIX)).isdecimal()}
    for step, directory in sorted(steps.items()):
        # An attempt that was killed may have kept some of steps after that with which a later one stopped early.
        if step > manifest.details.get("steps", step):
            continue
        kept = verify_outputs(directory / "manifest.json", KIND)
        if kept.parameters.get("training") == manifest.fingerprint[:16]:
            yield step, directory


def chosen_rollouts(batch: RolloutBatch, most_tokens: int) -> list[int]:
    """Choose the rollouts of whole groups with at most so many tokens together, but of one group at least.

    Groups with raised and lowered rollouts come before the others.
    """
    frame = pd.DataFrame(
        {
            "group": batch.group_ids.cpu().numpy(),
            "tokens": batch.response_mask.sum(dim=1).cpu().numpy(),
            "advantage": batch.advantages.cpu().numpy(),
        }
    )
    of_groups = frame.groupby("group")
    sides, tokens = of_groups["advantage"].agg(["min", "max"]), of_groups["tokens"].sum()
    mixed = (sides["min"] < 0) & (sides["max"] > 0)
    tokens = pd.concat([tokens[mixed], tokens[~mixed]])
    fitting = tokens.index[tokens.cumsum() <= most_tokens].union(tokens.index[:1])
    return np.flatnonzero(frame["group"].isin(fitting)).tolist()


def token_rows(step: StepRollouts, text: Callable[[int], str], chosen: Sequence[int] | None = None) -> pd.DataFrame:
    """Make the rows of a step's rollouts, or of the ``chosen`` ones, in their order; ``text`` is that of a token."""
    batch = step.batch
    mask, groups = batch.response_mask.cpu(), batch.group_ids.cpu().numpy()
    if chosen is not None:
        is_chosen = mask.new_zeros(len(mask))
        is_chosen[chosen] = True
        mask = mask & is_chosen[:, None]
    row, position = (index.numpy() for index in mask.nonzero(as_tuple=True))

    def packed(values: Tensor) -> Any:
        return values.detach().cpu()[mask].numpy()

    tokens = packed(batch.token_ids)
    texts = {token: text(token) for token in np.unique(tokens).tolist()}
    columns = {
        "run": step.run,
        "step": step.step,
        "problem": np.array(step.problems, dtype=object)[row],
        "group": groups[row],
        "sample": pd.Series(groups).groupby(groups).cumcount().to_numpy()[row],
        "position": position,
        "token": tokens,
        "text": [texts[token] for token in tokens.tolist()],
        "reward": step.rewards.cpu().numpy()[row],
        "advantage": batch.advantages.cpu().numpy()[row],
        "weight": packed(step.weights),
        "mini_batch": batch.mini_batch_ids.cpu().numpy()[row],
        "old_log_prob": packed(batch.old_log_probs),
        "entropy": packed(batch.entropies),
    }
    return pd.DataFrame(columns)[list(ROLLOUT_COLUMNS)].astype(ROLLOUT_COLUMNS)


def keep_rollouts(run_directory: Path, training: str, step: StepRollouts, text: Callable[[int], str]) -> None:
    """Write a step's rollouts, at most ``MOST_TOKENS``; ``training`` is its fingerprint, or the beginning of it."""
    chosen = chosen_rollouts(step.batch, MOST_TOKENS)
    rows = token_rows(step, text, chosen)
    directory = rollout_directory(run_directory, step.step)
    file, manifest = directory / "tokens.parquet", directory / "manifest.json"
    manifest.unlink(missing_ok=True)  # of an earlier configuration
    write_parquet(file, rows)
    parameters = {"run": step.run, "training": training[:16], "steps": [step.step]}
    details = {"rows": len(rows), "rollouts": len(chosen), "rollouts_of_step": len(step.problems)}
    Manifest(KIND, {}, hash_files(directory, file), parameters, fingerprint(parameters), details).write(manifest)
