"""``python -m evals.generation sample``: sample a checkpoint's responses to a benchmark."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from evals.command_line import run_command
from evals.single_writer import single_writer


def _sample(arguments: argparse.Namespace) -> None:
    import torch

    from evals.generation.evaluate import EvaluationSettings, sample_benchmark, source_kind
    from evals.generation.sampler import SamplingParameters

    torch.set_num_threads(arguments.threads)
    sampling = SamplingParameters(
        max_new_tokens=arguments.max_new_tokens,
        temperature=arguments.temperature,
        top_p=arguments.top_p,
        batch_size=arguments.batch_size,
    )
    settings = EvaluationSettings(arguments.samples_per_problem, arguments.seed, arguments.prompt, sampling)
    with single_writer(arguments.out / ".writer", "samples into this directory"):
        kind = source_kind(arguments.source)
        sample_benchmark(arguments.source, kind, arguments.problems, settings, arguments.out, arguments.device)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; 0, or 2 after a one-line error."""
    parser = argparse.ArgumentParser(prog="python -m evals.generation", description=__doc__)
    commands = parser.add_subparsers(required=True)
    sample = commands.add_parser("sample", help="write samples.jsonl and its manifest")
    sample.add_argument("--source", type=Path, required=True, help="directory of a run or base model")
    sample.add_argument("--problems", type=Path, required=True, help="directory of the benchmark's problems")
    sample.add_argument("--prompt", required=True, help="template with {problem} in it")
    sample.add_argument("--samples-per-problem", type=int, required=True)
    sample.add_argument("--max-new-tokens", type=int, required=True)
    sample.add_argument("--temperature", type=float, required=True)
    sample.add_argument("--top-p", type=float, required=True)
    sample.add_argument("--batch-size", type=int, required=True, help="samples decoded at a time")
    sample.add_argument("--seed", type=int, required=True)
    sample.add_argument("--threads", type=int, required=True)
    sample.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    sample.add_argument("--out", type=Path, required=True, help="directory for samples.jsonl and manifest.json")
    sample.set_defaults(run=_sample)
    return run_command(parser, argv)


if __name__ == "__main__":
    sys.exit(main())
