"""Time every token weighting over N tokens of width D against a copy of the same bytes and the published algorithm.

``python benchmarks/token_weights.py`` prints JSON. The copy is the memory floor: it reads and writes the hidden states
once. The published algorithm makes K + 2 passes in which every vector is formed and its two squared distances are
taken; its forward passes, which ours does not need, are not counted. Measurements alternate within each repetition, so
that ratios hold on a shared machine; the median ratio and its range are reported.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from rlvr.methods.rollout_batch import RolloutBatch
from rlvr.methods.token_weights.delta import DelTA, LambdaSelection, WithinSide
from rlvr.methods.token_weights.token_rules import (
    Dominate,
    ForkingTokens,
    LowProbability,
    Perplexity,
    RandomLambda,
    TokenWeights,
)

WEIGHTINGS: dict[str, TokenWeights] = {
    "delta": DelTA(),
    "delta, K = 0": DelTA(refinements=0),
    "delta, K = 3": DelTA(refinements=3),
    "delta, per rank": DelTA(scope="rank"),
    "within_side": WithinSide(),
    "lambda_selection": LambdaSelection(),
    "random_lambda": RandomLambda(),
    "forking_tokens": ForkingTokens(),
    "low_probability": LowProbability(),
    "dominate": Dominate(),
    "perplexity": Perplexity(),
}
HIDDEN_GRADIENT = "delta, hidden gradient"
"""DelTA on gradients with respect to hidden states, which take the logits of every token."""


def draw_batch(
    tokens: int, width: int, vocabulary: int, dtype: torch.dtype, device: str, response_length: int
) -> RolloutBatch:
    """Responses of one length, half of them on each side, in random order; the head has ``vocabulary`` rows."""
    generator = torch.Generator().manual_seed(0)
    rollouts = tokens // response_length
    shape = (rollouts, response_length)
    hidden_states = torch.empty(tokens, width, dtype=dtype, device=device)
    for rows in hidden_states.split(4096):
        rows.copy_(torch.randn(rows.shape, generator=generator))
    return RolloutBatch(
        advantages=torch.randn(rollouts, generator=generator).to(device),
        old_log_probs=-torch.rand(shape, generator=generator).to(device),
        entropies=torch.rand(shape, generator=generator).to(device),
        response_mask=torch.ones(shape, dtype=torch.bool, device=device),
        mini_batch_ids=torch.arange(rollouts, device=device) % 4,
        group_ids=torch.arange(rollouts, device=device) // 8,
        token_ids=torch.zeros(shape, dtype=torch.int64, device=device),
        temperature=1.0,
        generator=generator,
        head_weight=torch.randn(vocabulary, width, generator=generator).to(device, dtype) if vocabulary else None,
        hidden_states=hidden_states,
    )


def published_algorithm(batch: RolloutBatch, refinements: int = 1) -> Tensor:
    """DelTA's weights as the released code takes them, chunk by chunk: vectors, two distances, K + 2 passes."""
    assert batch.hidden_states is not None
    advantages = batch.token_advantages.float()
    probabilities = batch.old_log_probs[batch.response_mask].exp()
    sides = [advantages > 0, advantages < 0]
    chunks = torch.arange(advantages.numel(), device=advantages.device).split(4096)

    def centroids(soft: Tensor) -> Tensor:
        sums = torch.zeros(2, batch.hidden_states.shape[1], device=advantages.device)  # type: ignore[union-attr]
        masses = torch.stack([(advantages.abs() * soft * side).sum() for side in sides])
        for rows in chunks:
            vectors = (1 - probabilities[rows, None]) * batch.hidden_states[rows].float()  # type: ignore[index]
            for number, side in enumerate(sides):
                sums[number] += ((advantages.abs() * soft * side)[rows, None] * vectors).sum(dim=0)
        return sums / masses[:, None]

    def margins(positive: Tensor, negative: Tensor) -> Tensor:
        parts = []
        for rows in chunks:
            vectors = (1 - probabilities[rows, None]) * batch.hidden_states[rows].float()  # type: ignore[index]
            near = (vectors - negative).square().sum(dim=1) - (vectors - positive).square().sum(dim=1)
            parts.append(near)
        return torch.cat(parts) * advantages.sign()

    soft = torch.ones_like(advantages)
    margin = margins(*centroids(soft))
    for _ in range(refinements):
        scale = torch.where(sides[0], margin[sides[0]].std(), margin[sides[1]].std())
        margin = margins(*centroids(torch.sigmoid(margin / scale)))
    return torch.sigmoid(margin / scale)


def seconds(function: Callable[[], object], device: str) -> float:
    """Wall time of one call."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    function()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def measure(batch: RolloutBatch, device: str, repetitions: int) -> dict[str, dict[str, float]]:
    """Milliseconds and ratio to the copy of every weighting, the published algorithm and the copy itself."""
    assert batch.hidden_states is not None
    hidden_states, target = batch.hidden_states, torch.empty_like(batch.hidden_states)
    functions: dict[str, Callable[[], object]] = {"copy": lambda: target.copy_(hidden_states)}
    functions |= {name: partial(weighting, batch) for name, weighting in WEIGHTINGS.items()}
    if batch.head_weight is not None:
        functions[HIDDEN_GRADIENT] = partial(DelTA(proxy="top_k_hidden_gradient"), batch)
    functions["published algorithm, K = 1, without its forward passes"] = lambda: published_algorithm(batch)
    times: dict[str, list[float]] = {name: [] for name in functions}
    for repetition in range(repetitions + 1):
        for name, function in functions.items():
            took = seconds(function, device)
            if repetition:
                times[name].append(took)
    result = {}
    for name, values in times.items():
        ratios = sorted(value / copy for value, copy in zip(values, times["copy"], strict=True))
        result[name] = {
            "milliseconds": round(1000 * statistics.median(values), 2),
            "ratio_to_copy": round(statistics.median(ratios), 3),
            "ratio_lowest": round(ratios[0], 3),
            "ratio_highest": round(ratios[-1], 3),
        }
    return result


def main() -> None:
    """Measure and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=65536)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--vocabulary", type=int, default=0, help="of the head, for weights of hidden gradients")
    parser.add_argument("--response-length", type=int, default=512)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repetitions", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    dtype = getattr(torch, arguments.dtype)
    batch = draw_batch(
        arguments.tokens, arguments.width, arguments.vocabulary, dtype, arguments.device, arguments.response_length
    )
    result: dict[str, object] = {**vars(arguments), "machine": platform.processor() or platform.machine()}
    if arguments.device == "cuda":
        result["machine"] = torch.cuda.get_device_name()
        result["copied_gigabytes"] = 2 * batch.hidden_states.nbytes / 1e9  # type: ignore[union-attr]
    print(json.dumps(result | {"weightings": measure(batch, arguments.device, arguments.repetitions)}, indent=2))


if __name__ == "__main__":
    main()
