"""The contrast of methods: the angle between the update directions that two of them give the same policy.

A direction is the gradient of a method's loss over all parameters, on one mini-batch. Methods whose directions hardly
differ cannot be told apart by any number of seeds; random token weights show how large an angle means nothing.
"""

import math
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from torch import Tensor

from evals.core.files import fingerprint, sha256_file, write_parquet
from evals.core.manifest import Manifest, hash_files, verify_outputs
from evals.core.run_spec import LocalRun
from evals.generation.checkpoint import checkpoint_files
from evals.grading import GradingPool
from rlvr.engines.local.contrast import OWN, Meter, Viewed, degrees_between
from rlvr.engines.local.learner import Learner, PreparedStep
from rlvr.methods.method import Method, compose
from rlvr_claims import CONTRAST_VERSION
from rlvr_claims.checkpoint_contrast import Rollouts, checkpoint_run
from rlvr_claims.replay import steps_of


@dataclass(frozen=True)
class Direction:
    """An update direction against the run's own.

    Attributes:
        degrees: the angle between the two; NaN if one of them is 0.
        norm_ratio: length over the own direction's length.
    """

    degrees: float
    norm_ratio: float


Entries = Mapping[str, Mapping[str, Any]]
"""Resolved entries of the catalogue, by name."""


def write_contrast(
    run_file: Path, methods: Entries, steps: Sequence[int], out: Path, device: str, grading_workers: int
) -> pd.DataFrame:
    """Write ``contrast.parquet`` and ``manifest.json`` to ``out``; returns a row for each step and method.

    The training of ``run_file`` is carried out in memory, whether the run is finished or not, beyond a step with which
    it stopped early too, and its own method is the reference. Of a method with another batching the advantage, the
    token weights and the loss are compared, on the run's own mini-batch. If the run's selection leaves rollouts of a
    group out, an advantage other than the run's is that of the rest of the group.

    Raises:
        UserError: the run has no such step, or an input is missing, damaged or not accepted.
    """
    run = LocalRun.read(run_file)
    kinds = {run.base / "manifest.json": "base_model", run.problems / "manifest.json": "problems"}
    for path, kind in kinds.items():
        verify_outputs(path, kind)
    return _write(run, methods, steps, kinds, {"run": run.parameters()}, out, device, grading_workers)


def write_checkpoint_contrast(
    model: Path,
    problems: Path,
    reference: str,
    methods: Entries,
    steps: Sequence[int],
    rollouts: Rollouts,
    out: Path,
    device: str,
    grading_workers: int,
) -> pd.DataFrame:
    """Write what :func:`write_contrast` does for any checkpoint directory ``model``, trained in memory on ``problems``.

    ``reference`` is one of ``methods``: it trains, and angles are those to its gradient.

    Raises:
        UserError: a file is missing or not accepted, or a number is out of range.
    """
    out.mkdir(parents=True, exist_ok=True)
    parameters = {"rollouts": asdict(rollouts), "reference": reference}
    with tempfile.TemporaryDirectory(dir=out) as scratch:
        longest = max(steps, default=1)
        run = checkpoint_run(model, problems, reference, methods[reference], longest, rollouts, Path(scratch))
        inputs = problems, *checkpoint_files(model)
        return _write(run, methods, steps, inputs, parameters, out, device, grading_workers)


def _write(
    run: LocalRun,
    methods: Entries,
    steps: Sequence[int],
    inputs: Iterable[Path],
    parameters: Mapping[str, Any],
    out: Path,
    device: str,
    grading_workers: int,
) -> pd.DataFrame:
    """Train, and write the angles: a row for each step and method, with the state of the policy then."""
    wanted, longest = steps_of(run, steps), run.training.max_new_tokens
    composed = {name: compose(entry, f"method {name}", longest) for name, entry in methods.items()}
    hashes = {str(path): sha256_file(path) for path in inputs}
    rows = []
    for step, prepared, directions in directions_along(Learner(run, device), composed, wanted, grading_workers):
        entropies = prepared.batch.entropies[prepared.batch.response_mask]
        state = {
            "reward": float(prepared.rewards.mean()),
            "response_length": float(prepared.rollouts.lengths.float().mean()),
            "entropy": float(entropies.mean()),
            "share_above_0_7_nats": float((entropies > 0.7).float().mean()),
        }
        rows += [{"step": step, "method": name, **vars(found), **state} for name, found in directions.items()]
    frame = pd.DataFrame(rows)
    write_parquet(out / "contrast.parquet", frame)
    parameters = {**parameters, "steps": wanted, "methods": dict(methods), "version": CONTRAST_VERSION}
    identity = fingerprint({"parameters": parameters, "inputs": sorted(hashes.values())})
    outputs = hash_files(out, out / "contrast.parquet")
    Manifest("contrast", hashes, outputs, parameters, identity).write(out / "manifest.json")
    return frame


def directions_along(
    learner: Learner, methods: Mapping[str, Method], steps: Sequence[int], grading_workers: int = 1
) -> Iterator[tuple[int, PreparedStep, dict[str, Direction]]]:
    """Train up to the last of ``steps`` and yield the directions before the last update of each of them.

    That is where the policy has moved away from the one that sampled, so that clipping acts. The training is that
    of the run: looking changes nothing.
    """
    if any(method.kl is not None for method in methods.values()):
        learner.load_reference()
    with GradingPool(grading_workers, verifier=learner.run.verifier_file) as pool:
        while learner.position.step < max(steps):
            prepared = learner.prepare(pool)
            meter = None
            if learner.position.step + 1 in steps:
                viewed = {name: Viewed.by(method, learner, prepared) for name, method in methods.items()}
                meter = learner.updater.observer = Meter(learner, prepared, viewed, with_gradients=True)
            learner.position.metrics.append(learner.update(prepared))
            learner.updater.observer = None
            if meter is not None:
                directions = {name: _compare(meter.gradients[name], meter.gradients[OWN]) for name in methods}
                yield learner.position.step, prepared, directions


def _compare(direction: Tensor, reference: Tensor) -> Direction:
    ratio = float(direction.norm() / reference.norm()) if float(reference.norm()) else math.nan
    return Direction(degrees_between(direction, reference), ratio)
