"""The files that a run leaves, at its end and after earlier steps that are asked for.

    results/runs/{run}/checkpoint/                       the policy after the last step, a Hugging Face checkpoint
    results/runs/{run}/metrics.parquet, manifest.json
    results/runs/{run}/checkpoints/step-{N}/             the same three after step N, and run.json

Nothing in a run depends on its number of steps, so the checkpoint after N steps of it is the checkpoint of a run that
is N steps long. A decay of the learning rate is no exception: run.json gives it in steps, and those N steps are the
beginning of a longer schedule. ``checkpoints/step-{N}`` says so: its run.json and its manifest are those of that
shorter training, under the longer one's name, so that the directory serves wherever a run's directory does. The steps
that are asked for are no part of a run's fingerprint. If a run stops early, its last checkpoint stands for all
later steps.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from evals.core.errors import InvalidInput, UserError
from evals.core.files import fingerprint, write_json, write_parquet
from evals.core.manifest import Manifest, hash_files, read_manifest, verify_outputs, write_output_manifest
from evals.core.records import Chosen
from evals.core.run_spec import RunSpec

_READERS = 8
"""Checkpoints that are hashed at a time: of 8 billion parameters each has 16 GB, and there may be 54 of them."""


@dataclass(frozen=True)
class Training:
    """Everything that determines the outcome of a run."""

    run: RunSpec
    inputs: Mapping[str, str]  # path of every file that was read -> SHA-256 of its bytes
    versions: Mapping[str, Any]  # of the engine, the sampler and the grader

    @property
    def parameters(self) -> dict[str, Any]:
        return {**self.run.parameters(), "versions": dict(self.versions)}

    @property
    def fingerprint(self) -> str:
        """The identity: the same parameters and the same bytes, wherever they lie."""
        return fingerprint({"parameters": self.parameters, "inputs": list(self.inputs.values())})

    def after(self, steps: int) -> Training:
        """The training that ends after ``steps`` steps."""
        return replace(self, run=self.run.model_copy(update={"training": self.run.training.after(steps)}))


def copied_inputs(run: RunSpec, study: Path = Path()) -> dict[str, str]:
    """The user's reward function, and components in the methods of a run and its contrast: path of a copy -> SHA-256.

    Raises:
        UserError: a copy is missing, or has other bytes than were copied.
    """
    kinds = {} if run.verifier_file is None else {run.verifier_file: "verifier"}
    kinds |= dict.fromkeys(run.component_files, "component")
    copies = {file: verify_outputs(study / file.with_name("manifest.json"), kind) for file, kind in kinds.items()}
    return {str(file): copy.outputs[file.name] for file, copy in copies.items()}


def checkpoint_directory(directory: Path, step: int) -> Path:
    """The directory of the policy after ``step`` steps under a run's ``directory``."""
    return directory / "checkpoints" / f"step-{step}"


def is_finished(directory: Path, training: Training) -> bool:
    """Return whether the intact result of ``training`` lies in ``directory``; it is not written again."""
    try:
        return verify_outputs(directory / "manifest.json", "run").fingerprint == training.fingerprint
    except UserError:  # not made yet, or damaged
        return False


def lacking_checkpoints(directory: Path, training: Training, steps: Sequence[int]) -> list[int]:
    """Return the ``steps`` after which no intact checkpoint of this training lies under ``directory``, ascending."""
    for step in steps:
        if not 0 < step < training.run.training.steps:
            accepted = f"1 to {training.run.training.steps - 1}, the steps before the last one"
            raise InvalidInput(training.run.run, "checkpoints_at", f"is {step}", accepted)

    def is_lacking(step: int) -> bool:
        return not is_finished(checkpoint_directory(directory, step), training.after(step))

    with ThreadPoolExecutor(_READERS) as readers:
        wanted = sorted(set(steps))
        return [step for step, lacking in zip(wanted, readers.map(is_lacking, wanted), strict=True) if lacking]


def copy_result(source: Path, manifest: Manifest, out: Path) -> None:
    """Lay out the files of a result, of this ``manifest``, under ``out``, but for manifest and run.json.

    Weights are hard links where the file system has them.
    """
    for file in (path for directory in ("checkpoint", ".") for path in (out / directory).glob("*") if path.is_file()):
        file.unlink()
    (out / "checkpoint").mkdir(parents=True, exist_ok=True)
    for name in manifest.outputs:
        # Other files are outputs that Snakemake knows: a link has the time of its file, and would pass for out of date.
        if name.startswith("checkpoint/"):
            with suppress(OSError):  # another file system, or one without links
                os.link(source / name, out / name)
                continue
        shutil.copyfile(source / name, out / name)


def repeat_result(directory: Path, training: Training, step: int) -> None:
    """Lay out the result of a run that stopped early as its policy after a later ``step``."""
    manifest, shorter = read_manifest(directory / "manifest.json", "run"), training.after(step)
    out = checkpoint_directory(directory, step)
    copy_result(directory, manifest, out)
    write_json(out / "run.json", shorter.run.to_json())
    replace(manifest, parameters=shorter.parameters, fingerprint=shorter.fingerprint).write(out / "manifest.json")


def write_result(
    directory: Path, training: Training, checkpoint: Sequence[Path], metrics: pd.DataFrame, steps: int, **details: Any
) -> None:
    """Write metrics, a row a step, and manifest beside the files of a checkpoint under ``directory``.

    ``steps`` were done: fewer than the training's where it stopped early.
    """
    write_parquet(directory / "metrics.parquet", metrics)
    Manifest(
        kind="run",
        inputs=training.inputs,
        outputs=hash_files(directory, *checkpoint, directory / "metrics.parquet"),
        parameters=training.parameters,
        fingerprint=training.fingerprint,
        details={
            "steps": steps,
            "optimizer_steps": int(metrics["optimizer_steps"].sum()),
            "tokens_generated": int(metrics["tokens_generated"].sum()),
            "seconds_steps": float(metrics["seconds_step"].sum()),
            **details,
        },
    ).write(directory / "manifest.json")


def choose_best(trained: Path, candidates: Mapping[str, str], out: Path) -> None:
    """Lay the policy with the highest average out as a run; of equals the earliest.

    Args:
        trained: directory of the run that passes through the policies, the last of which is its own.
        candidates: JSON: step -> directory of the grades of the policy after it.
        out: directory of the run that is made; the files of its checkpoint are hard links.
    """
    from evals.scores.score import read_graded_run  # which loads scipy, as no training does

    graded = {int(step): read_graded_run(Path(directory)) for step, directory in candidates.items()}
    if len({(each.benchmark, each.samples, frozenset(each.grades)) for each in graded.values()}) != 1:
        raise UserError("candidates: are graded on other problems, or with other numbers of samples")
    averages = {step: sum(each.counts) / (len(each.grades) * each.samples) for step, each in sorted(graded.items())}
    done = read_manifest(trained / "manifest.json", "run").details["steps"]
    if done < max(averages):  # it stopped early, and its last policy stands under each of the later steps
        first = min(step for step in averages if step >= done)
        averages = {step: average for step, average in averages.items() if step < done} | {done: averages[first]}
    step = max(averages, key=lambda one: (averages[one], -one))
    source = trained if step == done else checkpoint_directory(trained, step)
    manifest = verify_outputs(source / "manifest.json", "run")
    copy_result(source, manifest, out)
    shutil.copyfile(source / "run.json", out / "run.json")
    choice = Chosen(
        run=trained.name,
        benchmark=next(iter(graded.values())).benchmark,
        samples_per_problem=next(iter(graded.values())).samples,
        step=step,
        averages={str(one): average for one, average in averages.items()},
    )
    write_json(out / "chosen.json", choice.to_json())
    read = [Path(path) for each in graded.values() for path in each.hashes]
    write_output_manifest("choice", out / "chosen", [".json"], read, {"of_equals": "earliest"})
    shutil.copyfile(source / "manifest.json", out / "manifest.json")
