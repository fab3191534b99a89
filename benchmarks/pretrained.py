"""Tokens per second of a checkpoint in the local engine: sampling, and a pass with gradients, prompts shared or not.

    python benchmarks/pretrained.py --checkpoint results/base/smollm2/checkpoint \
        --problems results/problems/train --out pretrained.json

A rollout batch is sampled and its log-probabilities are scored with gradients, in turns with each prompt computed once
for all its rollouts and with a copy of it for each (``training.share_prompts``). Processor time is counted, which other
work on the machine disturbs less than wall time; on a GPU, seconds that wait for it. ``gradient_difference`` is the
largest between the two ways, over the largest gradient.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from evals.core.files import read_jsonl
from evals.core.run_spec import LOCAL_DTYPES
from evals.core.sampling import SamplingParameters
from evals.generation.checkpoint import Checkpoint
from evals.generation.sampler import sample
from rlvr.engines.local.policy import TokenBatch, token_log_probs
from rlvr.engines.local.run import peak_memory, time_on


def measure(arguments: argparse.Namespace) -> dict[str, object]:
    """Sample once a round, then make both passes."""
    torch.set_num_threads(arguments.threads)
    checkpoint = Checkpoint(arguments.checkpoint)
    models = {
        share: checkpoint.model(arguments.device, arguments.dtype, share_prompts=share) for share in (False, True)
    }
    device = torch.device(arguments.device)
    clock = time.process_time if device.type == "cpu" else partial(time_on, device)
    texts = [f"{row['problem']}\n" for row in read_jsonl(arguments.problems / "problems.jsonl")[: arguments.prompts]]
    prompts = [each.ids for each in checkpoint.tokenizer.encode_batch(texts, add_special_tokens=False)]
    rollouts = arguments.prompts * arguments.samples_per_prompt
    parameters = SamplingParameters(
        max_new_tokens=arguments.max_new_tokens, temperature=1.0, top_p=1.0, sampling_batch_size=rollouts
    )
    sampled, seconds = [], dict[bool, list[float]]({False: [], True: []})
    for number in range(arguments.rounds):
        names = [
            [f"{number}/{row}/{each}" for each in range(arguments.samples_per_prompt)] for row in range(len(prompts))
        ]
        started = clock()
        groups = sample(models[False].decoder(), prompts, names, parameters, checkpoint.end_tokens)
        sampled.append(sum(len(each.tokens) for group in groups for each in group) / (clock() - started))
        batch = TokenBatch(
            [prompt for prompt in prompts for _ in range(arguments.samples_per_prompt)],
            [each.tokens for group in groups for each in group],
        )
        gradients: list[list[Tensor]] = []
        for share, model in models.items():
            started = clock()
            token_log_probs(model, batch, 1.0).sum().backward()
            seconds[share].append(clock() - started)
            gradients.append([weight.grad for weight in model.parameters() if weight.grad is not None])
            for weight in model.parameters():
                weight.grad = None
    largest = max(float(each.abs().max()) for each in gradients[0])
    apart = max(float((one - other).abs().max()) for one, other in zip(*gradients, strict=True))
    tokens = sum(map(len, batch.prompts)) + sum(map(len, batch.responses))
    once = sum(map(len, prompts)) + sum(map(len, batch.responses))
    return {
        "checkpoint": str(arguments.checkpoint),
        "dtype": arguments.dtype,
        "threads": arguments.threads,
        "device": arguments.device,
        "processor": platform.processor() or platform.machine(),
        "rollouts": rollouts,
        "tokens_of_last_round": {"copies of prompts": tokens, "prompts once": once},
        "sampled_tokens_per_second": statistics.median(sampled),
        "seconds_of_a_pass": {"copies of prompts": seconds[False], "prompts once": seconds[True]},
        "times_as_fast": statistics.median(a / b for a, b in zip(seconds[False], seconds[True], strict=True)),
        "gradient_difference": apart / largest,
        "peak_mib": peak_memory(device) / 2**20,
    }


def main() -> None:
    """Measure and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True, help="a checkpoint that the batched decoder computes")
    parser.add_argument("--problems", type=Path, required=True, help="directory with problems.jsonl")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--samples-per-prompt", type=int, default=8)
    parser.add_argument("--max-new-tokens", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", default="float32", choices=LOCAL_DTYPES, help="of passes and rollouts")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    text = json.dumps(measure(arguments), indent=2)
    if arguments.out:
        arguments.out.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
