"""verl's saved states and the Hugging Face checkpoints that are merged from their shards.

A manifest beside the shards tells a damaged or half-written state. verl names its newest state in a tracker file that
it writes last and not atomically: after a kill the file may be empty, or name a state whose shards are not all there.
The manifest is written after everything else of a state, with every file's size. A merged checkpoint counts once its
weights are those of the shards.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from evals.core.errors import UserError
from evals.core.files import read_json, write_json, write_jsonl, write_text
from evals.core.run_spec import VerlRun
from rlvr.engines.verl.adapters import ADAPTERS, LEAST_KEPT, add_adapters
from rlvr.engines.verl.launch import RUN_VARIABLE, Places
from rlvr.engines.verl.metrics import MEASURED, read_steps
from rlvr.engines.verl.processes import error_in
from rlvr.runs.state import saved_steps

MANIFEST = "shards.json"
TRACKER = "latest_checkpointed_iteration.txt"
OPTIMIZER = "optimizer.json"
"""What the worker's optimizer is, with its constants, beside the actor's shards."""
_OPTIMIZER = "optim_"
"""The beginning of the names of an optimizer's shards, two thirds of a state."""


def record(state: Path, step: int) -> None:
    """Write the manifest of a state that verl has just saved, in a directory that names the training's fingerprint."""
    files = sorted(path for path in state.rglob("*") if path.is_file() and path.name != MANIFEST)
    sizes = {path.relative_to(state).as_posix(): path.stat().st_size for path in files}
    write_json(state / MANIFEST, {"step": step, "training": state.parent.name, "sizes": sizes})


def is_intact(state: Path, to_continue: bool = True) -> bool:
    """Return whether a state is of the training that it lies with, and has all its files in the sizes that it says.

    Without ``to_continue`` its weights are enough.
    """
    try:
        content = read_json(state / MANIFEST)
        sizes, is_ours = content["sizes"], content["training"] == state.parent.name
        files = [name for name in sizes if to_continue or not Path(name).name.startswith(_OPTIMIZER)]
        is_whole = f"actor/{OPTIMIZER}" in sizes  # the last file of a worker's
        return is_ours and is_whole and all((state / name).stat().st_size == sizes[name] for name in files)
    except (UserError, OSError, TypeError, AttributeError, KeyError):  # no manifest, or another one's content
        return False


def prepare_resume(directory: Path) -> int:
    """Make verl continue from the newest intact state under ``directory``; its step, 0 if there is none.

    Damaged states after it are removed, as is what was measured of later steps, and the tracker names it.
    """
    newest = 0
    for step in reversed(steps(directory)):
        state = directory / f"global_step_{step}"
        if is_intact(state):
            newest = step
            break
        print(f"{state}: damaged or not saved to its end; going back to the state before it", flush=True)
        shutil.rmtree(state)
    if (directory / MEASURED).exists():
        write_jsonl(directory / MEASURED, read_steps(directory, newest))
    if newest:
        write_text(directory / TRACKER, str(newest))
    else:
        (directory / TRACKER).unlink(missing_ok=True)
    return newest


def remove_old(directory: Path, kept: int, wanted: Collection[int] = ()) -> None:
    """Remove all states but the newest ``kept``; of those after ``wanted`` steps the weights stay, a third of each."""
    for step in steps(directory)[:-kept]:
        state = directory / f"global_step_{step}"
        if step not in wanted:
            shutil.rmtree(state)
            continue
        for shard in state.rglob(f"{_OPTIMIZER}*"):
            shard.unlink()


def steps(directory: Path) -> list[int]:
    """Steps that a state of verl lies there for, intact or not, ascending."""
    return saved_steps(directory, "global_step_")


def merge(run: VerlRun, state: Path, checkpoint: Path, places: Places, python: str) -> dict[str, Any]:
    """Merge the shards of ``state`` into ``checkpoint``; returns what trained it, and what is left of adapters."""
    details: dict[str, Any] = {"optimizer": read_json(state / "actor" / OPTIMIZER)}
    temporary = checkpoint.with_name(".merging")
    shutil.rmtree(temporary, ignore_errors=True)
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    if run.training.lora is None:
        _merge_shards(state / "actor", temporary, places, python)
    else:
        base = places.study / run.base / "checkpoint"
        share = add_adapters(base, state / "actor" / ADAPTERS, run.training.lora, temporary)
        details["adapter_update_kept"] = share
        if share < LEAST_KEPT:
            print(f"{checkpoint}: {share:.0%} of what the adapters add is left in bfloat16", flush=True)
    shutil.rmtree(checkpoint, ignore_errors=True)
    temporary.rename(checkpoint)
    return details


def _merge_shards(actor: Path, checkpoint: Path, places: Places, python: str) -> None:
    """Let verl's merger write a checkpoint, and compare it with the shards; what both say is added to the run's log."""
    command = ["verl.model_merger", "merge", "--backend", "fsdp"]
    command += ["--local_dir", str(actor), "--target_dir", str(checkpoint)]
    _run_module(command, f"{actor}: verl's merger failed", places, python)
    if not any(checkpoint.glob("*.safetensors")):
        raise UserError(f"{actor}: verl's merger failed: it saved nothing ({places.log})")
    command = [__name__, str(actor), str(checkpoint)]
    _run_module(command, f"{actor}: the comparison of the merged checkpoint with its shards failed", places, python)


def _run_module(command: list[str], failure: str, places: Places, python: str) -> None:
    done = subprocess.run(
        [python, "-m", *command],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(places.repository), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "PYTHONSAFEPATH": "1",
            # By the run's name in its environment the next attempt finds and ends a merger that outlived this one.
            RUN_VARIABLE: str(places.run / "run.json"),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    places.log.parent.mkdir(parents=True, exist_ok=True)
    with places.log.open("a", encoding="utf-8") as log:
        log.write(done.stdout)
    if done.returncode != 0:
        raise UserError(f"{failure}: {error_in(done.stdout, done.returncode)} ({places.log})")


def first_difference(actor: Path, checkpoint: Path) -> str:
    """Say which parameter of a checkpoint has not the bits of its shards in ``actor``, in bfloat16; empty if all have.

    The shards stay on disk: in memory is the model in bfloat16.
    """
    import torch
    import torch.distributed.tensor  # shards are its tensors, which torch reads without unpickling
    from transformers import AutoModelForCausalLM

    files = sorted(actor.glob("model_world_size_*.pt"), key=lambda file: int(file.stem.rpartition("_")[2]))
    shards = [torch.load(file, map_location="cpu", weights_only=True, mmap=True) for file in files]
    # By the model and not by its file, which may name parameters otherwise and divide them otherwise.
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.bfloat16, local_files_only=True)
    with torch.no_grad():
        for name, merged in model.named_parameters():
            parts = [shard[name] for shard in shards if name in shard]
            rows = [part.to_local() if hasattr(part, "to_local") else part for part in parts]
            # Where groups of devices have the whole model each, the first group's shards are enough.
            if not rows or not torch.equal(torch.cat(rows)[: len(merged)].bfloat16(), merged.bfloat16()):
                return f"{checkpoint}: {name} is not that of the shards in {actor}"
    return ""


if __name__ == "__main__":
    if difference := first_difference(*map(Path, sys.argv[1:])):
        sys.exit(f"ValueError: {difference}")
