"""Adapters (LoRA) and the policy in bfloat16 that is made of them: vLLM draws from it, and evaluation scores it.

W + alpha / rank B A on the grid of bfloat16 loses what is below half a step of W. The trainer computes both parts for
themselves and loses nothing, so with small updates the sampled policy stays behind the trained one.
"""

from __future__ import annotations

from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import safe_open

from evals.core.errors import InvalidInput, UserError
from evals.core.random import generator_for
from evals.core.run_spec import VerlRun
from evals.core.training_settings import Lora, VerlTraining

if TYPE_CHECKING:
    from torch import Tensor

ADAPTERS = "adapters.safetensors"
"""A and B of every adapted weight, in float32."""
LEAST_KEPT = 0.5
"""The part of the adapters' update that has to be left in bfloat16."""
_TRIED = 4
"""Weights of a model that the part is computed for before a run."""


def kept(weight: Tensor, update: Tensor) -> tuple[float, float]:
    """The inner product of what rounding to bfloat16 leaves of an update [n, m] with it, and with itself."""
    import torch

    weight, update = weight.float(), update.float()
    left = (weight + update).to(torch.bfloat16).float() - weight
    return float((left * update).sum(dtype=torch.float64)), float(update.square().sum(dtype=torch.float64))


def add_adapters(base: Path, adapters: Path, lora: Lora, checkpoint: Path) -> float:
    """Write a checkpoint with W + alpha / rank B A for the adapted weights W of ``base``, rounded to bfloat16.

    Returns the part of the update that is left.
    """
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    factors, sums = load_file(adapters), torch.zeros(2, dtype=torch.float64)
    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype="auto", local_files_only=True)
    for name, weight in model.named_parameters():
        first, second = (factors.pop(f"{name.removesuffix('weight')}lora_{part}.weight", None) for part in "AB")
        if first is not None and second is not None:
            update = lora.alpha / lora.rank * second @ first
            sums += torch.tensor(kept(weight.data, update), dtype=torch.float64)
            weight.data = weight.data.float() + update
    if factors:
        raise UserError(f"{adapters}: {', '.join(sorted(factors)[:3])}: of no weight of {base}")
    model.to(torch.bfloat16).save_pretrained(checkpoint)
    AutoTokenizer.from_pretrained(base, local_files_only=True).save_pretrained(checkpoint)
    return float(sums[0] / sums[1]) if sums[1] else 1.0


def adapted_weights(lora: Lora, checkpoint: Path) -> list[tuple[Path, str]]:
    """The files and names of the weights that are to be adapted; UserError if a target is the name of none."""
    weights = []
    for file in sorted(checkpoint.glob("*.safetensors")):
        with safe_open(file, framework="np") as tensors:
            all_names = list(tensors.keys())
        is_linear = (".layers." in name and "norm" not in name and name.endswith(".weight") for name in all_names)
        weights += [(file, name) for name in compress(all_names, is_linear)]
    names = {name.split(".")[-2] for _, name in weights}
    if isinstance(lora.target_modules, str):
        return weights
    for target in lora.target_modules:
        if target not in names:
            accepted = f"all-linear, or some of {', '.join(sorted(names))}"
            raise InvalidInput(str(checkpoint), "training.lora.target_modules", f"has {target!r}", accepted)
    return [(file, name) for file, name in weights if name.split(".")[-2] in lora.target_modules]


def reach(training: VerlTraining) -> float:
    """How far Adam can move a number of B at most: the sum of the learning rates of all updates."""
    updates = range(training.steps * training.updates_per_step)
    return sum(training.learning_rate_of(number // training.updates_per_step, number) for number in updates)


def require_followed(run: VerlRun, checkpoint: Path) -> None:
    """Check that the policy in bfloat16 can follow the adapters, whose B every update moves as far as Adam can.

    It is tried on some weights, with A as it is drawn and signs at random in B.
    """
    import torch

    if (lora := run.training.lora) is None:
        return
    weights, sums, far = adapted_weights(lora, checkpoint), torch.zeros(2, dtype=torch.float64), reach(run.training)
    generator = generator_for("reach", 0)
    for file, name in weights[:: max(1, len(weights) // _TRIED)][:_TRIED]:
        with safe_open(file, framework="pt") as tensors:
            weight = tensors.get_tensor(name)
        rows, columns = weight.shape
        first = (2 * torch.rand(lora.rank, columns, generator=generator) - 1) / columns**0.5
        second = far * torch.randn(rows, lora.rank, generator=generator).sign()
        sums += torch.tensor(kept(weight, lora.alpha / lora.rank * second @ first), dtype=torch.float64)
    share = float(sums[0] / sums[1]) if sums[1] else 0.0
    if share < LEAST_KEPT:
        raise InvalidInput(
            run.run,
            "training.lora",
            f"moves weights by so little in all updates (numbers of B by {far:.2g} at most) that {share:.0%} of it is "
            "left in bfloat16, in which vLLM samples and the checkpoint is evaluated",
            f"at least {LEAST_KEPT:.0%}: a higher learning_rate, more steps, or a higher alpha / rank",
        )
