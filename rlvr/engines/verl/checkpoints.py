"""verl's saved states and the Hugging Face checkpoints that are merged from their shards.

A manifest beside the shards tells a damaged or half-written state. verl names its newest state in a tracker file that
it writes last and not atomically: after a kill the file may be empty, or name a state whose shards are not all there.
The manifest is written after everything else of a state, with every file's size; hashes are added while verl trains on.
A merged checkpoint counts once its weights are those of the trainer, tensor by tensor.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from evals.core.errors import UserError
from evals.core.files import read_json, sha256_file, write_json, write_text
from evals.core.run_spec import VerlRun
from evals.core.training_settings import Lora
from rlvr.engines.verl.launch import RUN_VARIABLE, Places
from rlvr.engines.verl.processes import ended, last_words
from rlvr.runs.state import saved_steps

if TYPE_CHECKING:
    from torch import Tensor

MANIFEST = "shards.json"
TRACKER = "latest_checkpointed_iteration.txt"
_READERS = 8
"""Shards that are hashed at a time: a state of 8 billion parameters has 98 GB of them."""
PROBE = "probe.json"
ADAPTERS = "adapters.safetensors"
"""A and B of every adapted weight, in float32."""
LARGEST_DIFFERENCE = 1.0
"""Largest mean difference of log-probabilities, of random tokens: those of another model differ by more.

It finds a configuration that is not the trainer's; weights are compared one by one. Rounding to bfloat16 makes 0.03 to
0.11 of 36 layers and 151,936 tokens, and depends on the model.
"""
ROLLOUTS = "transfer_queue"
"""verl's name of the directory of rollouts in a state of a run with partial rollouts."""
REWARDS = "rewards.json"
"""The mean reward of every step, beside the states of a run that may stop early."""
_ROUNDING = 1e-12
"""Of a sum in float64, as a part of the sum of its absolute terms."""


def record(state: Path, step: int) -> Thread:
    """Write the manifest of a state that verl has just saved; hashes are added by the thread, which is returned.

    Devices would wait for them for a minute for 8 billion parameters. Until they are there, and if the process dies
    before, sizes tell a state that is not whole.
    """
    files = sorted(path for path in state.rglob("*") if path.is_file() and path.name != MANIFEST)
    names = [path.relative_to(state).as_posix() for path in files]
    manifest = {"step": step, "sizes": dict(zip(names, _sizes(files), strict=True))}
    write_json(state / MANIFEST, manifest)

    def add_hashes() -> None:
        with suppress(UserError, OSError):  # verl has removed the state meanwhile
            write_json(state / MANIFEST, {**manifest, "files": dict(zip(names, _digests(files), strict=True))})

    thread = Thread(target=add_hashes, daemon=True)
    thread.start()
    return thread


def is_intact(state: Path) -> bool:
    """Return whether every file of a state has the size, and if hashes are there the bytes, that its manifest says."""
    try:
        manifest = read_json(state / MANIFEST)
        sizes, digests = manifest["sizes"], manifest.get("files", {})
        whole = bool(sizes) and _sizes(state / name for name in sizes) == list(sizes.values())
        return whole and _digests(state / name for name in digests) == list(digests.values())
    except (UserError, OSError, TypeError, AttributeError, KeyError):  # no manifest, or another one's content
        return False


def _sizes(files: Iterable[Path]) -> list[int]:
    """Bytes of each file."""
    return [file.stat().st_size for file in files]


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


def read_rewards(directory: Path, steps: int) -> list[float]:
    """The mean rewards of the first ``steps`` steps; none where the run keeps none."""
    path = directory / REWARDS
    return [float(reward) for reward in read_json(path)[:steps]] if path.is_file() else []


def remove_old(directory: Path, kept: int) -> None:
    """Remove all states but the newest ``kept``: verl counts those alone that it saved since it was started."""
    for step in steps(directory)[:-kept]:
        shutil.rmtree(directory / f"global_step_{step}")


def remove_rollouts(directory: Path) -> None:
    """Remove the rollouts of states whose shards verl has removed: it leaves them, gigabytes at paper scale."""
    for rollouts in directory.glob(f"global_step_*/{ROLLOUTS}"):
        if not (rollouts.parent / "actor").exists():
            shutil.rmtree(rollouts)


def steps(directory: Path) -> list[int]:
    """Steps that a state of verl lies there for, intact or not, ascending."""
    return saved_steps(directory, "global_step_")


def keep(state: Path, step: int) -> None:
    """Keep the weights of a saved state, a third of it, however many verl saves after it.

    Its files are linked and take no room while verl has them.
    """
    kept = kept_state(state.parent, step)
    if is_intact(kept):
        return
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(state, kept, copy_function=os.link, ignore=shutil.ignore_patterns("optim_*", ROLLOUTS, MANIFEST))
    manifest = read_json(state / MANIFEST)
    of_kept = {
        key: {name: value for name, value in manifest[key].items() if (kept / name).exists()}
        for key in ("sizes", "files")
        if key in manifest
    }
    write_json(kept / MANIFEST, {**manifest, **of_kept})


def kept_state(directory: Path, step: int) -> Path:
    """The copy, by links, of a state under ``directory``; verl does not count it among its own."""
    return directory / f"kept_step_{step}"


def merge(run: VerlRun, state: Path, checkpoint: Path, places: Places, python: str) -> float:
    """Merge the shards of ``state`` into ``checkpoint``; returns the mean difference to the trainer's own log-probs.

    These lie beside the shards, computed in the run's dtype.
    """
    actor, temporary = state / "actor", checkpoint.with_name(".merging")
    shutil.rmtree(temporary, ignore_errors=True)
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    if run.training.lora is None:
        _merge_shards(actor, temporary, places, python)
    else:
        add_adapters(places.study / run.base / "checkpoint", actor / ADAPTERS, run.training.lora, temporary)
    probe = read_json(actor / PROBE)
    expected = {name: WeightSums(*sums) for name, sums in probe["weights"].items()}
    if differing := differing_weights(temporary, expected):
        found = f"weights of {', '.join(differing[:3])} are not the trainer's ({len(differing)} differ)"
        raise UserError(f"{temporary}: {found}; accepted: the trainer's, rounded to bfloat16")
    difference = probe_difference(temporary, probe["tokens"], probe["log_probs"], run.dtype)
    if not difference <= LARGEST_DIFFERENCE:
        found = f"its log-probs differ by {difference:.3g} from the trainer's"
        raise UserError(f"{temporary}: {found}; accepted: {LARGEST_DIFFERENCE} at most")
    shutil.rmtree(checkpoint, ignore_errors=True)
    temporary.rename(checkpoint)
    return difference


def _merge_shards(actor: Path, checkpoint: Path, places: Places, python: str) -> None:
    """Let verl's merger write a checkpoint; what it says is added to the run's log."""
    command = [python, "-m", "verl.model_merger", "merge", "--backend", "fsdp"]
    done = subprocess.run(
        [*command, "--local_dir", str(actor), "--target_dir", str(checkpoint)],
        # By the run's name in its environment the next attempt finds and ends a merger that outlived this one.
        env={**os.environ, RUN_VARIABLE: str(places.run / "run.json")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    places.log.parent.mkdir(parents=True, exist_ok=True)
    with places.log.open("a", encoding="utf-8") as kept:
        kept.write(done.stdout)
    if done.returncode != 0 or not any(checkpoint.glob("*.safetensors")):
        said = last_words(done.stdout) or (ended(done.returncode) if done.returncode else "it saved nothing")
        raise UserError(f"{actor}: verl's merger failed: {said} ({places.log})")


def add_adapters(base: Path, adapters: Path, lora: Lora, checkpoint: Path) -> None:
    """Write a checkpoint with W + alpha / rank B A for the adapted weights W of ``base``, rounded to bfloat16."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    factors, scale = load_file(adapters), lora.alpha / lora.rank
    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype="auto", local_files_only=True)
    for name, weight in model.named_parameters():
        first, second = (factors.pop(f"{name.removesuffix('weight')}lora_{part}.weight", None) for part in "AB")
        if first is not None and second is not None:
            weight.data = weight.data.float() + scale * second @ first
    if factors:
        raise UserError(f"{adapters}: {', '.join(sorted(factors)[:3])}: of no weight of {base}")
    model.to(torch.bfloat16).save_pretrained(checkpoint)
    AutoTokenizer.from_pretrained(base, local_files_only=True).save_pretrained(checkpoint)


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


@dataclass(frozen=True)
class WeightSums:
    """Sums over a weight's numbers, rounded to bfloat16; ``places`` multiply each row by its place, from 1.

    They tell weights whose rows stand in another order.
    """

    rows: int
    plain: float
    places: float
    absolute: float
    absolute_places: float

    @classmethod
    def of(cls, weights: Tensor) -> WeightSums:
        """The sums of weights [rows, ...]; there may be no row."""
        import torch

        numbers = weights.detach().to(torch.bfloat16)
        numbers = numbers.flatten(1) if numbers.dim() > 1 else numbers[:, None]
        places = torch.arange(1, len(numbers) + 1, dtype=torch.float64, device=numbers.device)
        plain, absolute = (each.sum(dim=1, dtype=torch.float64) for each in (numbers, numbers.abs()))
        sums = torch.stack([plain.sum(), (plain * places).sum(), absolute.sum(), (absolute * places).sum()])
        return cls(len(numbers), *sums.tolist())

    def __add__(self, other: WeightSums) -> WeightSums:
        """The sums of these rows and, after them, the other's."""
        return WeightSums(
            self.rows + other.rows,
            self.plain + other.plain,
            self.places + other.places + self.rows * other.plain,
            self.absolute + other.absolute,
            self.absolute_places + other.absolute_places + self.rows * other.absolute,
        )

    def agrees(self, other: WeightSums) -> bool:
        """Whether both are of the same weights, as far as sums can tell."""
        return (
            self.rows == other.rows
            and abs(self.plain - other.plain) <= _ROUNDING * self.absolute
            and abs(self.places - other.places) <= _ROUNDING * self.absolute_places
        )


def differing_weights(checkpoint: Path, expected: Mapping[str, WeightSums]) -> list[str]:
    """The names of weights that are missing in a merged checkpoint, or have other sums than ``expected``."""
    from safetensors import safe_open

    found: dict[str, WeightSums] = {}
    for file in checkpoint.glob("*.safetensors"):
        with safe_open(file, framework="pt") as weights:
            found |= {name: WeightSums.of(weights.get_tensor(name)) for name in weights.keys()}  # noqa: SIM118 (no mapping)
    return [name for name, sums in expected.items() if name not in found or not sums.agrees(found[name])]
