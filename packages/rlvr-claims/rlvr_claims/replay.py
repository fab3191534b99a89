"""Replay a run in memory, and write the token table of its steps.

A run is a function of its run.json, its base model and its problems, so it need not have recorded anything: it is
replayed, and every replayed step must have the metrics that the run wrote down. The run's files are not changed.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from evals.core.errors import InvalidInput
from evals.core.files import fingerprint, read_parquet, sha256_file, write_jsonl, write_parquet
from evals.core.manifest import Manifest, hash_files, verify_outputs
from evals.core.progress import Progress
from evals.core.run_spec import LocalRun
from evals.grading import GradingPool
from rlvr.engines.local.learner import Learner, PreparedStep
from rlvr.engines.local.policy import TokenBatch, score_in_chunks, unpack
from rlvr.engines.local.run import require_same_step
from rlvr.engines.rollouts import StepRollouts, token_rows
from rlvr.runs.state import save_tensors
from rlvr.tokens.table import DISPLACEMENT, completed
from rlvr_claims import TABLE_VERSIONS
from rlvr_claims.policy import Rollout, policy_of, snapshot_directory


def write_token_table(run_file: Path, out: Path, steps: Sequence[int], device: str, grading_workers: int) -> None:
    """Write ``tokens.parquet``, a snapshot for each of ``steps`` and ``manifest.json`` to ``out``.

    ``run_file`` is the run's run.json; the other files of the run lie beside it. The ``device`` has to be the run's.
    UserError if the run has no such step, an input is missing or damaged, or the replay differs from the run.
    """
    run = LocalRun.read(run_file)
    wanted, origin = steps_of(run, steps), run_file.parent / "manifest.json"
    recorded = verify_outputs(origin, "run")
    if wanted[-1] > (done := recorded.details["steps"]):
        raise InvalidInput("--steps", "", f"are {wanted}", f"1 to {done}, after which {run.run} stopped early")
    verify_outputs(run.base / "manifest.json", "base_model")
    verify_outputs(run.problems / "manifest.json", "problems")
    metrics: dict[Any, Any] = read_parquet(run_file.parent / "metrics.parquet").set_index("step").to_dict("index")
    tables, files = [], [out / "tokens.parquet"]
    progress = Progress(out, f"tokens of {run.run}", wanted[-1], 0)
    learner = Learner(run, device)
    with GradingPool(grading_workers, verifier=run.verifier_file) as pool:
        for step in range(1, wanted[-1] + 1):
            prepared, before = learner.prepare(pool), dict[str, Tensor]()
            if step in wanted:
                before = {name: value.detach().clone() for name, value in learner.model.weights().items()}
            learner.updater.observer = _look if step in wanted else None
            learner.position.metrics.append(learner.update(prepared))
            require_same_step(run.run, {**learner.position.metrics[-1], "step": step}, metrics[step])
            progress.report(step)
            if step in wanted:
                tables.append(_token_rows(learner, step, prepared, before))
                files += _write_snapshot(snapshot_directory(out, step), prepared, before)
    write_parquet(out / "tokens.parquet", pd.concat(tables, ignore_index=True))
    parameters = {"run": run.parameters(), "steps": wanted, "version": TABLE_VERSIONS[run.dtype]}
    identity = fingerprint({"parameters": parameters, "run": recorded.fingerprint})
    inputs, outputs = {str(origin): sha256_file(origin)}, hash_files(out, *files)
    details = {"rows": sum(map(len, tables)), "replayed_steps": wanted[-1]}
    Manifest("token_table", inputs, outputs, parameters, identity, details).write(out / "manifest.json")


def steps_of(run: LocalRun, steps: Sequence[int]) -> list[int]:
    """Return the different ``steps`` in order; UserError if there are none, or the run has no such step."""
    wanted = sorted(set(steps))
    if not wanted or wanted[0] < 1 or wanted[-1] > run.training.steps:
        raise InvalidInput("--steps", "", f"are {wanted}", f"1 to {run.training.steps}, the steps of {run.run}")
    return wanted


def _look(mini_batch: int) -> None:
    """Let the updater keep its slopes."""


def _displacements(learner: Learner, before: Mapping[str, Tensor], tokens: TokenBatch) -> Tensor:
    """The change [N] float64 of the tokens' log-probabilities from the weights ``before`` to the present ones.

    An update moves most tokens by less than passes in half precision round. Both passes here are in float32.
    """
    training, device = learner.run.training, str(learner.model.device)

    def log_probs(weights: Mapping[str, Tensor]) -> Tensor:
        model = policy_of(learner.run, weights, device)
        return score_in_chunks(model, tokens, training.temperature, training.micro_batch_size)[0].double()

    return log_probs(learner.model.weights()) - log_probs(before)


def _token_rows(learner: Learner, step: int, prepared: PreparedStep, before: Mapping[str, Tensor]) -> pd.DataFrame:
    """The table's rows of one step, rollout by rollout; the weights were ``before``, and the update is made."""
    training, batch, tokens = learner.run.training, prepared.batch, prepared.rollouts.tokens
    mask = batch.response_mask.cpu()
    rows = token_rows(
        StepRollouts(learner.run.run, step, prepared.problems, prepared.rewards, batch, prepared.weights),
        learner.token_text,
    )

    def packed(values: Tensor) -> np.ndarray:
        return np.asarray(values.detach().cpu()[mask])

    size, most_tokens = training.micro_batch_size, training.scored_tokens
    after = score_in_chunks(learner.model, tokens, training.temperature, size, most_tokens=most_tokens)[0]
    weighted = packed(batch.advantages[:, None] * prepared.weights)
    # [B, T] under the policy that the token's own optimizer step started from; the slopes are by these.
    old, update = packed(batch.old_log_probs), packed(learner.updater.log_probs)
    with np.errstate(divide="ignore", invalid="ignore"):
        # At ratio 1 every loss here has slope -A w: the gate is what is left of it, 0 for a token that is stopped.
        gate = np.where(weighted == 0, np.nan, -packed(learner.updater.slopes) / weighted)
    ratio = np.exp(np.clip(update - old, -20, 20))
    if learner.run.dtype != "float32":
        rows[DISPLACEMENT] = _displacements(learner, before, tokens).cpu().numpy()
    new = packed(unpack(after, batch.response_mask))
    return completed(rows.assign(new_log_prob=new, ratio=ratio, gate=gate))


def _write_snapshot(directory: Path, prepared: PreparedStep, before: Mapping[str, Tensor]) -> list[Path]:
    """Write the weights before the step and its rollouts; returns the files."""
    weights, rollouts = directory / "weights.safetensors", directory / "rollouts.jsonl"
    groups, tokens = prepared.batch.group_ids.tolist(), prepared.rollouts.tokens
    save_tensors(weights, before)
    values = zip(prepared.problems, groups, tokens.prompts, tokens.responses, strict=True)
    rows = [
        Rollout(problem=name, group=group, prompt=[*prompt], response=[*response])
        for name, group, prompt, response in values
    ]
    write_jsonl(rollouts, [row.to_json() for row in rows])
    return [weights, rollouts]
