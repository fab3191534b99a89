"""The memory of a training on a device that is not there: a sum of five products, from shapes and settings alone."""

from __future__ import annotations

import torch

from evals.core.errors import UserError
from evals.core.files import read_jsonl
from evals.core.run_spec import Execution, LocalRun
from evals.core.training_settings import Lora
from evals.generation.checkpoint import Checkpoint
from rlvr.engines.local.memory import numbers, pass_lengths
from rlvr.engines.local.policy import LOGITS_AT_ONCE
from rlvr.engines.local.rollout import encode_problems
from rlvr.engines.local.vllm_rollouts import bytes_of_token
from rlvr.methods.method import compose


def print_sum(run: LocalRun, execution: Execution, device_memory: int) -> None:
    """Print what the training holds, row by row; UserError if it is more than the ``device_memory`` bytes."""
    sizes = products(run, execution)
    total, device = sum(sizes.values()), execution.device
    print(f"{run.run}: memory, a sum and not measured, MiB")
    for name, size in {**sizes, f"all, of {device_memory >> 20} on {device}": total}.items():
        print(f"  {name:<40}{size >> 20:>8}")
    if total > device_memory:
        raise UserError(f"{run.run}: needs about {total >> 20} MiB on {device}, which has {device_memory >> 20}")


def products(run: LocalRun, execution: Execution) -> dict[str, int]:
    """The bytes of what the training holds, by name. Activations are those of Llama's layers."""
    checkpoint, training = Checkpoint(run.base / "checkpoint"), run.training
    config = {**checkpoint.config, **checkpoint.config.get("text_config", {})}
    problems = read_jsonl(run.problems / "problems.jsonl", required=("id", "problem"))
    longest = max(map(len, encode_problems(checkpoint, run, problems).values())) + training.max_new_tokens
    itemsize, of_token = getattr(torch, run.dtype).itemsize, bytes_of_token(config, run.dtype)
    weights = trained = numbers(checkpoint.shapes)
    copies = itemsize * (2 if training.sampling_backend == "vllm" else 1)  # as passes take them, and vLLM's
    if training.lora is not None:
        trained = _of_adapters(training.lora, checkpoint.shapes)
    method = compose(run.method, f"method {run.method_name}", run.training.max_new_tokens)
    lengths = pass_lengths(run, method, longest, padded=False)
    tokens, layers, width = sum(lengths), config["num_hidden_layers"], config["hidden_size"]
    heads, inner = config["num_attention_heads"], config.get("intermediate_size", 4 * width)
    head = config.get("head_dim") or width // heads
    # Inputs of products and of what is not linear; norms and rotations are float32, half as much again in bfloat16.
    of_layer = 3 * width + 3 * head * (heads + config.get("num_key_value_heads", heads)) + 4 * inner
    of_layer *= itemsize if itemsize == 4 else itemsize + 1
    if execution.device == "cpu" and longest <= 8 * head:
        of_layer += 4 * heads * longest  # the shares of attention
    kept = layers * itemsize * width + of_layer if execution.gradient_checkpointing else layers * of_layer
    logits = 3 * 4 * min(LOGITS_AT_ONCE, config["vocab_size"] * len(lengths) * training.max_new_tokens)
    rows = min(training.sampling_batch_size, training.rollouts_per_step)
    return {
        "weights": (copies + (4 if training.lora is None else itemsize)) * weights,
        "gradients": 4 * trained + (itemsize * weights if training.lora is None else 0),
        "two moments": 8 * trained,
        "keys and values": rows * longest * of_token,
        f"activations of {tokens} tokens, logits": tokens * kept + logits,
    }


def _of_adapters(lora: Lora, shapes: dict[str, list[int]]) -> int:
    """Count the trained numbers of adapters: in every layer, rank times what each adapted product takes and gives."""
    names = None if lora.target_modules == "all-linear" else tuple(f"{name}.weight" for name in lora.target_modules)
    products = {name: shape for name, shape in shapes.items() if len(shape) == 2 and ".layers." in name}
    adapted = [shape for name, shape in products.items() if names is None or name.endswith(names)]
    return lora.rank * sum(map(sum, adapted))
