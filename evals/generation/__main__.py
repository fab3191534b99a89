"""``python -m evals.generation sample|import``: sample responses to a benchmark; take in a checkpoint."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

from evals.command_line import run_command
from evals.core.errors import UserError
from evals.core.single_writer import single_writer
from evals.generation.options import add_sampling_options, evaluation_settings


def _sample(arguments: argparse.Namespace) -> None:
    from evals.generation.evaluate import sample_benchmark

    settings = dataclasses.replace(
        evaluation_settings(arguments),
        tensor_parallel_size=arguments.tensor_parallel_size,
        gpu_memory_utilization=arguments.gpu_memory_utilization,
    )
    if arguments.split is not None:
        if not 1 <= arguments.split <= arguments.splits:
            raise UserError(f"--split: is {arguments.split}; accepted: 1 to {arguments.splits}")
        sample_benchmark(
            arguments.source, arguments.problems, settings, arguments.out, arguments.split - 1, arguments.splits
        )
        return
    with single_writer(arguments.out / ".writer", "samples into this directory"):
        sample_benchmark(arguments.source, arguments.problems, settings, arguments.out, None, arguments.splits)


def _import(arguments: argparse.Namespace) -> None:
    from evals.generation.import_model import import_model

    import_model(arguments.model, arguments.revision, arguments.out)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; 0, or 2 after a one-line error."""
    parser = argparse.ArgumentParser(prog="python -m evals.generation", description=__doc__)
    commands = parser.add_subparsers(required=True)
    sample = commands.add_parser("sample", help="write samples.jsonl and its manifest")
    sample.add_argument("--source", type=Path, required=True, help="directory of a run or base model")
    add_sampling_options(sample, ("local", "transformers", "vllm"))
    sample.add_argument("--tensor-parallel-size", type=int, default=1, help="GPUs that vllm spreads the model over")
    sample.add_argument("--gpu-memory-utilization", type=float, default=0.9, help="share that vllm takes")
    sample.add_argument("--splits", type=int, default=1, help="jobs that the benchmark is divided into")
    sample.add_argument("--split", type=int, help="make only this part, from 1; without it: what is missing, and merge")
    sample.add_argument("--out", type=Path, required=True, help="directory for samples.jsonl and manifest.json")
    sample.set_defaults(run=_sample)
    model = commands.add_parser("import", help="link or fetch a Hugging Face checkpoint, and hash it")
    model.add_argument("--model", required=True, help="directory, or id on the Hugging Face Hub")
    model.add_argument("--revision", help="commit on the Hub, 40 hexadecimal digits; none with a directory")
    model.add_argument("--out", type=Path, required=True, help="directory of the base model")
    model.set_defaults(run=_import)
    return run_command(parser, argv)


if __name__ == "__main__":
    sys.exit(main())
