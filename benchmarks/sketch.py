"""Measure the error of DelTA's weights from a random-projection sketch, by the sketch's dimensions.

``python benchmarks/sketch.py`` prints JSON. ``rollouts`` are graded samples of a finished study: the hidden states are
those of its model, the advantages those of its rewards. ``drawn`` are vectors of width 1,024 whose variances fall as
1/k, with sides that differ by a tenth of a standard deviation in every direction. The error is the root mean square of
the weights' differences over the standard deviation of the exact weights; mean, smallest and largest of the sketches.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from evals.core.files import read_jsonl
from evals.core.random import random_projection
from evals.core.records import rows_in
from evals.generation.checkpoint import load_tokenizer
from rlvr.methods.rollout_batch import RolloutBatch
from rlvr.methods.token_weights.delta import DelTA


def as_batch(hidden_states: Tensor, log_probs: Tensor, advantages: Tensor) -> RolloutBatch:
    """Tokens [N] as one rollout batch of responses of one token each: DelTA's statistics are over tokens."""
    tokens = len(hidden_states)
    return RolloutBatch(
        advantages=advantages,
        old_log_probs=log_probs[:, None],
        entropies=torch.zeros(tokens, 1),
        response_mask=torch.ones(tokens, 1, dtype=torch.bool),
        mini_batch_ids=torch.zeros(tokens, dtype=torch.int64),
        group_ids=torch.zeros(tokens, dtype=torch.int64),
        token_ids=torch.zeros(tokens, 1, dtype=torch.int64),
        temperature=1.0,
        generator=torch.Generator(),
        hidden_states=hidden_states,
    )


@torch.inference_mode()
def rollouts(results: Path, run: str, benchmark: str) -> RolloutBatch:
    """The samples of ``run`` on ``benchmark`` with group-normalised advantages."""
    checkpoint = results / "base" / run.removesuffix("-base") / "checkpoint"
    if not checkpoint.is_dir():
        checkpoint = results / "runs" / run / "checkpoint"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(checkpoint), load_tokenizer(checkpoint)
    problems = {row["id"]: row["problem"] for row in read_jsonl(results / "problems" / benchmark / "problems.jsonl")}
    samples = read_jsonl(rows_in(results / "samples" / run / benchmark, "samples"))
    grades = read_jsonl(rows_in(results / "grades" / run / benchmark, "grades"))
    rewards: dict[str, list[float]] = {}
    for grade in grades:
        rewards.setdefault(grade["problem_id"], []).append(float(grade["correct"]))
    hidden, log_probs, advantages = [], [], []
    for sample, grade in zip(samples, grades, strict=True):
        group = rewards[sample["problem_id"]]
        prompt = tokenizer.encode(problems[sample["problem_id"]] + "\n").ids
        ids = torch.tensor([prompt + tokenizer.encode(sample["text"]).ids])
        output = model(ids, output_hidden_states=True)
        chosen = output.logits[0, len(prompt) - 1 : -1].log_softmax(dim=1).gather(1, ids[0, len(prompt) :, None])
        hidden.append(output.hidden_states[-1][0, len(prompt) - 1 : -1])
        log_probs.append(chosen[:, 0])
        advantage = (float(grade["correct"]) - statistics.fmean(group)) / (statistics.pstdev(group) + 1e-6)
        advantages.append(torch.full((chosen.shape[0],), advantage))
    return as_batch(torch.cat(hidden), torch.cat(log_probs), torch.cat(advantages))


def drawn(tokens: int, width: int) -> RolloutBatch:
    """Made-up vectors, log-probs and advantages."""
    generator = torch.Generator().manual_seed(0)
    deviations = torch.arange(1, width + 1) ** -0.5
    advantages = torch.randn(tokens, generator=generator)
    hidden = torch.randn(tokens, width, generator=generator) + 0.1 * advantages.sign()[:, None]
    return as_batch(hidden * deviations, -torch.rand(tokens, generator=generator), advantages)


def errors(batch: RolloutBatch, dimensions: int, sketches: int) -> dict[str, float]:
    """Relative errors and correlations of ``sketches`` sketches."""
    assert batch.hidden_states is not None
    weigh = DelTA()
    exact = weigh(batch)[0].double().flatten()
    deviations, correlations = [], []
    for seed in range(sketches):
        matrix = random_projection(batch.hidden_states.shape[1], dimensions, torch.Generator().manual_seed(seed))
        columns = {name: getattr(batch, name) for name in batch.__dataclass_fields__}
        sketch = RolloutBatch(**(columns | {"hidden_states": batch.hidden_states @ matrix}))
        weights = weigh(sketch)[0].double().flatten()
        deviations.append(float((weights - exact).square().mean().sqrt() / exact.std()))
        correlations.append(float(torch.corrcoef(torch.stack((weights, exact)))[0, 1]))
    return {
        "error_mean": round(statistics.fmean(deviations), 3),
        "error_lowest": round(min(deviations), 3),
        "error_highest": round(max(deviations), 3),
        "correlation_mean": round(statistics.fmean(correlations), 3),
    }


def main() -> None:
    """Measure and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results"), help="of a finished study")
    parser.add_argument("--run", default="tiny-base")
    parser.add_argument("--benchmark", default="chain_5")
    parser.add_argument("--dimensions", type=int, nargs="+", default=[16, 32, 64, 128, 256, 512])
    parser.add_argument("--sketches", type=int, default=10)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    batches = {"rollouts": rollouts(arguments.results, arguments.run, arguments.benchmark), "drawn": drawn(16384, 1024)}
    measured = {}
    for name, batch in batches.items():
        assert batch.hidden_states is not None
        tokens, width = batch.hidden_states.shape
        by_dimensions = {size: errors(batch, size, arguments.sketches) for size in arguments.dimensions}
        measured[name] = {"tokens": tokens, "width": width, "by_dimensions": by_dimensions}
    print(json.dumps(measured, indent=2))


if __name__ == "__main__":
    main()
