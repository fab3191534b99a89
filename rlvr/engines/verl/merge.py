"""From FSDP shards to a Hugging Face checkpoint, by verl's merger; it counts once its log-probs are the trainer's."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from evals.core.errors import UserError
from evals.core.files import read_json
from rlvr.engines.verl.launch import RUN_VARIABLE, Places
from rlvr.engines.verl.worker_log import ended, last_words

PROBE = "probe.json"
TOLERANCE = 0.05
"""Largest mean difference of log-probabilities; the merger rounds weights to bfloat16."""


def merge(state: Path, places: Places, python: str, dtype: str) -> float:
    """Merge the shards of ``state`` into the run's checkpoint; the mean difference to the trainer's own log-probs.

    Args:
        state: a saved state of verl, with the probe that the engine wrote beside its shards.
        places: of the run; what the merger says is added to its log.
        python: of the environment that verl is installed in.
        dtype: in which the trainer computed them.

    Raises:
        UserError: the merger fails, saves nothing, or saves another model than the trainer had.
    """
    actor, checkpoint, log = state / "actor", places.run / "checkpoint", places.log
    temporary = checkpoint.with_name(".merging")
    shutil.rmtree(temporary, ignore_errors=True)
    command = [python, "-m", "verl.model_merger", "merge", "--backend", "fsdp"]
    words = [*command, "--local_dir", str(actor), "--target_dir", str(temporary)]
    # By the run's name in its environment the next attempt finds and ends a merger that outlived this one.
    environment = {**os.environ, RUN_VARIABLE: str(places.run / "run.json")}
    done = subprocess.run(
        words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as kept:
        kept.write(done.stdout)
    if done.returncode != 0 or not any(temporary.glob("*.safetensors")):
        said = last_words(done.stdout) or (ended(done.returncode) if done.returncode else "it saved nothing")
        raise UserError(f"{actor}: verl's merger failed: {said} ({log})")
    probe = read_json(actor / PROBE)
    difference = probe_difference(temporary, probe["tokens"], probe["log_probs"], dtype)
    if not difference <= TOLERANCE:
        raise UserError(
            f"{temporary}: its log-probs differ by {difference:.3g} from the trainer's; accepted: {TOLERANCE} at most"
        )
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
