"""``python -m evals.decoding sample``: sample a benchmark with a base and a trained model together.

Both models read the same tokens, in step; one drives, and where the criterion fires its token is drawn again: from the
other model (replacement), or from the trained model pushed along the direction of its training (extrapolation). See
docs/decoding.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from evals.command_line import run_command
from evals.generation.options import add_sampling_options, evaluation_settings
from evals.single_writer import single_writer

_BACKENDS = ("local", "transformers")


def _sample(arguments: argparse.Namespace) -> None:
    from evals.decoding.checkpoints import read_pair
    from evals.decoding.criteria import Criterion
    from evals.decoding.evaluate import PairSampler
    from evals.decoding.settings import Decoding, Driver, Mode

    decoding = Decoding(
        Mode(arguments.mode),
        Driver(arguments.driver),
        Criterion(arguments.criterion),
        arguments.tau,
        arguments.gamma,
    )
    settings = evaluation_settings(arguments)
    pair = read_pair(arguments.base, arguments.trained, arguments.dtype)
    with single_writer(arguments.out / ".writer", "samples into this directory"):
        PairSampler(pair, arguments.problems, settings).sample(decoding, arguments.out, arguments.mode)


def _add_pair_options(parser: argparse.ArgumentParser) -> None:
    checkpoint = "directory in Hugging Face format, or of a base model or run of a study"
    parser.add_argument("--base", type=Path, required=True, help=f"the model before training: {checkpoint}")
    parser.add_argument("--trained", type=Path, required=True, help="the model after it; prompts are as for this one")
    add_sampling_options(parser, _BACKENDS)


def _add_decoding_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mode", choices=("replacement", "extrapolation"), required=True)
    parser.add_argument("--driver", choices=("base", "trained"), default="base", help="whose tokens are kept otherwise")
    parser.add_argument(
        "--criterion",
        choices=("log_prob_difference", "kl_trained_base", "kl_base_trained", "js", "jeffreys", "entropy", "random"),
        default="log_prob_difference",
        help="log_prob_difference fires at or below tau, random with probability tau, the others at or above tau",
    )
    parser.add_argument("--tau", type=float, required=True, help="threshold in nats; write --tau=-0.3, --tau=-inf")
    parser.add_argument("--gamma", type=float, default=0.0, help="how far extrapolation goes beyond the trained model")


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; 0, or 2 after a one-line error."""
    parser = argparse.ArgumentParser(
        prog="python -m evals.decoding", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    sample = commands.add_parser("sample", help="one way of decoding: write samples.jsonl and its manifest")
    _add_pair_options(sample)
    _add_decoding_options(sample)
    sample.add_argument("--out", type=Path, required=True, help="directory for samples.jsonl and manifest.json")
    sample.set_defaults(run=_sample)
    return run_command(parser, argv)


if __name__ == "__main__":
    sys.exit(main())
