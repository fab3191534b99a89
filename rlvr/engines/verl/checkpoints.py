"""verl's saved states and the Hugging Face checkpoints that are merged from their shards.

A manifest beside the shards tells a damaged or half-written state. verl names its newest state in a tracker file that
it writes last and not atomically: after a kill the file may be empty, or name a state whose shards are not all there.
The manifest is written after everything else of a state. A merged checkpoint counts once its log-probs are those of
the trainer.
"""

import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from evals.core.errors import UserError
from evals.core.files import read_json, sha256_file, write_json, write_text
from rlvr.engines.verl.launch import RUN_VARIABLE, Places
from rlvr.engines.verl.processes import ended, last_words
from rlvr.runs.state import saved_steps

MANIFEST = "shards.json"
TRACKER = "latest_checkpointed_iteration.txt"
_READERS = 8
"""Shards that are hashed at a time: a state of 8 billion parameters has 98 GB of them."""
PROBE = "probe.json"
TOLERANCE = 0.05
"""Largest mean difference of log-probabilities; the merger rounds weights to bfloat16."""


def record(state: Path, step: int) -> None:
    """Write the manifest of a state that verl has just saved."""
    files = sorted(path for path in state.rglob("*") if path.is_file() and path.name != MANIFEST)
    names = [path.relative_to(state).as_posix() for path in files]
    write_json(state / MANIFEST, {"step": step, "files": dict(zip(names, _digests(files), strict=True))})


def is_intact(state: Path) -> bool:
    """Return whether every file of a state has the bytes that its manifest says."""
    try:
        files = read_json(state / MANIFEST)["files"]
        return bool(files) and _digests(state / name for name in files) == list(files.values())
    except (UserError, KeyError, TypeError, AttributeError):  # no such file, no manifest, or another one's content
        return False


def _digests(files: Iterable[Path]) -> list[str]:
    """SHA-256 of each file."""
    with ThreadPoolExecutor(_READERS) as readers:
        return list(readers.map(sha256_file, files))


def prepare_resume(directory: Path) -> int:
    """Make verl continue from the newest intact state under ``directory``; its step, 0 if there is none.

    Damaged states after it are removed, and the tracker names it.
    """
    for step in reversed(steps(directory)):
        state = directory / f"global_step_{step}"
        if is_intact(state):
            write_text(directory / TRACKER, str(step))
            return step
        print(f"{state}: damaged or not saved to its end; going back to the state before it", flush=True)
        shutil.rmtree(state)
    (directory / TRACKER).unlink(missing_ok=True)
    return 0


def remove_old(directory: Path, kept: int) -> None:
    """Remove all states but the newest ``kept``: verl counts those alone that it saved since it was started."""
    for step in steps(directory)[:-kept]:
        shutil.rmtree(directory / f"global_step_{step}")


def steps(directory: Path) -> list[int]:
    """Steps that a state of verl lies there for, intact or not, ascending."""
    return saved_steps(directory, "global_step_")


def keep(state: Path, step: int) -> None:
    """Keep a saved state, however many verl saves after it; its files are linked and take no room while it has it."""
    kept = kept_state(state.parent, step)
    if not is_intact(kept):
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(state, kept, copy_function=os.link)


def kept_state(directory: Path, step: int) -> Path:
    """The copy, by links, of a state under ``directory``; verl does not count it among its own."""
    return directory / f"kept_step_{step}"


def merge(state: Path, checkpoint: Path, places: Places, python: str, dtype: str) -> float:
    """Merge the shards of ``state`` into ``checkpoint``; returns the mean difference to the trainer's own log-probs.

    These lie beside the shards, computed in ``dtype``. What the merger says is added to the run's log.
    """
    actor, log = state / "actor", places.log
    temporary = checkpoint.with_name(".merging")
    shutil.rmtree(temporary, ignore_errors=True)
    command = [python, "-m", "verl.model_merger", "merge", "--backend", "fsdp"]
    done = subprocess.run(
        [*command, "--local_dir", str(actor), "--target_dir", str(temporary)],
        # By the run's name in its environment the next attempt finds and ends a merger that outlived this one.
        env={**os.environ, RUN_VARIABLE: str(places.run / "run.json")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    log.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as kept:
        kept.write(done.stdout)
    if done.returncode != 0 or not any(temporary.glob("*.safetensors")):
        said = last_words(done.stdout) or (ended(done.returncode) if done.returncode else "it saved nothing")
        raise UserError(f"{actor}: verl's merger failed: {said} ({log})")
    probe = read_json(actor / PROBE)
    difference = probe_difference(temporary, probe["tokens"], probe["log_probs"], dtype)
    if not difference <= TOLERANCE:
        found = f"its log-probs differ by {difference:.3g} from the trainer's"
        raise UserError(f"{temporary}: {found}; accepted: {TOLERANCE} at most")
    shutil.rmtree(checkpoint, ignore_errors=True)
    temporary.rename(checkpoint)
    return difference


def probe_difference(checkpoint: Path, tokens: Sequence[int], expected: Sequence[float], dtype: str) -> float:
    """Mean absolute difference of the log-probs of ``tokens``, the first aside, to ``expected``, computed in dtype."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=getattr(torch, dtype), local_files_only=True)
    model.eval()
    with torch.no_grad():
        logits = model(torch.tensor([list(tokens)])).logits[0, :-1].float()
    found = logits.log_softmax(dim=1).gather(1, torch.tensor(list(tokens))[1:, None])[:, 0]
    return float((found - torch.tensor(list(expected))).abs().mean())
