"""Tokens per second of the local sampler against transformers' ``generate``: same weights, prompts, batch, one run.

    python benchmarks/sampler.py --out sampler.json      (after make reproduce)

The default is a rollout batch of the default study: 32 training problems of mixed lengths, 8 samples each. With
--problems results/problems/chain_5 --prompts 30 --samples-per-problem 32 it is an evaluation batch, whose responses are
all about equally long, which suits ``generate`` best: it computes every sequence until the longest has ended.

The two take turns, so that whatever else the machine does falls on both. Tokens counted are those of the responses, the
end token included; what is generated after it is nobody's.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from evals.core.files import read_jsonl
from evals.core.sampling import SamplingParameters
from evals.generation.checkpoint import Checkpoint
from evals.generation.sampler import sample
from rlvr.engines.local.run import time_on


def measure(arguments: argparse.Namespace) -> dict[str, object]:
    """Alternate the two samplers and compare the pairs."""
    torch.set_num_threads(arguments.threads)
    checkpoint = Checkpoint(arguments.checkpoint)
    tokenizer, (end,), decoder = checkpoint.tokenizer, checkpoint.end_tokens, checkpoint.decoder(arguments.device)
    model = AutoModelForCausalLM.from_pretrained(arguments.checkpoint, dtype=torch.float32).to(arguments.device)
    rows = read_jsonl(arguments.problems / "problems.jsonl")[: arguments.prompts]
    encoded = [encoding.ids for encoding in tokenizer.encode_batch([f"{row['problem']}\n" for row in rows])]
    width = max(map(len, encoded))
    repeated = [ids for ids in encoded for _ in range(arguments.samples_per_problem)]
    tokens = torch.tensor([[0] * (width - len(ids)) + ids for ids in repeated], device=arguments.device)
    mask = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids in repeated], device=arguments.device)
    parameters = SamplingParameters(max_new_tokens=arguments.max_new_tokens, sampling_batch_size=len(repeated))

    def with_transformers(repetition: int) -> int:
        torch.manual_seed(repetition)
        output = model.generate(
            tokens,
            attention_mask=mask,
            do_sample=True,
            temperature=1.0,
            top_p=1.0,
            top_k=0,
            max_new_tokens=arguments.max_new_tokens,
        )
        responses = output[:, width:]
        ended = (responses == end).cumsum(dim=1)
        return int(((ended == 0) | ((ended == 1) & (responses == end))).sum())

    def with_ours(repetition: int) -> int:
        names = [
            [f"{repetition}/{row}/{number}" for number in range(arguments.samples_per_problem)]
            for row in range(len(encoded))
        ]
        groups = sample(decoder, encoded, names, parameters, [end])
        return sum(len(response.tokens) for group in groups for response in group)

    speeds: dict[str, list[float]] = {"local": [], "transformers": []}
    for repetition in range(-1, arguments.repetitions):  # the first pair warms up and is not counted
        for name, run in (("local", with_ours), ("transformers", with_transformers)):
            started = time_on(decoder.device)
            count = run(repetition)
            if repetition >= 0:
                speeds[name].append(count / (time_on(decoder.device) - started))
    ratios = [ours / theirs for ours, theirs in zip(speeds["local"], speeds["transformers"], strict=True)]
    return {
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads",
        "sequences": len(repeated),
        "max_new_tokens": arguments.max_new_tokens,
        "tokens_per_second": {name: round(statistics.median(values)) for name, values in speeds.items()},
        "ratio_median": round(statistics.median(ratios), 2),
        "ratio_range": [round(min(ratios), 2), round(max(ratios), 2)],
        "repetitions": arguments.repetitions,
    }


def main() -> None:
    """Measure, write JSON and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, default=Path("results/base/tiny/checkpoint"))
    parser.add_argument("--problems", type=Path, default=Path("results/problems/train"))
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--samples-per-problem", type=int, default=8)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path("sampler.json"))
    arguments = parser.parse_args()
    result = measure(arguments)
    arguments.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
