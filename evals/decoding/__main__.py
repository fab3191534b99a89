"""``python -m evals.decoding sample|sweep|choose|table|figure``: decode with a base and a trained model together.

Both models read the same tokens, in step; one drives, and where the criterion fires its token is drawn again: from the
other model (replacement), or from the trained model pushed along the direction of its training (extrapolation). See
docs/decoding.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from evals.command_line import run_command
from evals.core.errors import UserError
from evals.core.single_writer import single_writer
from evals.generation.options import add_sampling_options, evaluation_settings

if TYPE_CHECKING:
    from evals.decoding.settings import Decoding

_BACKENDS = ("local", "transformers")
_CRITERIA = ("log_prob_difference", "kl_trained_base", "kl_base_trained", "js", "jeffreys", "entropy", "random")


def _decoding(arguments: argparse.Namespace) -> Decoding:
    """What the options say, or what was chosen."""
    from evals.decoding.choose import chosen_decoding
    from evals.decoding.criteria import Criterion
    from evals.decoding.settings import Decoding, Driver, Mode

    if arguments.chosen is not None:
        if arguments.scheme is None or arguments.mode is not None:
            raise UserError("--chosen: takes --scheme, and neither --mode nor what belongs to it")
        return chosen_decoding(arguments.chosen, arguments.scheme, arguments.trained.name)
    if arguments.mode is None or arguments.tau is None:
        raise UserError("--mode, --tau: are needed; accepted: both of them, or --chosen and --scheme")
    mode, driver, criterion = Mode(arguments.mode), Driver(arguments.driver), Criterion(arguments.criterion)
    return Decoding(mode, driver, criterion, arguments.tau, arguments.gamma)


def _sample(arguments: argparse.Namespace) -> None:
    from evals.decoding.checkpoints import read_pair
    from evals.decoding.evaluate import PairSampler

    decoding, settings = _decoding(arguments), evaluation_settings(arguments)
    pair = read_pair(arguments.base, arguments.trained, arguments.dtype)
    with single_writer(arguments.out / ".writer", "samples into this directory"):
        PairSampler(pair, arguments.problems, settings).sample(decoding, arguments.out, decoding.mode.value)


def _sweep(arguments: argparse.Namespace) -> None:
    from evals.decoding.checkpoints import read_pair
    from evals.decoding.criteria import Criterion
    from evals.decoding.sweep import Grid, sweep
    from evals.grading.pool import GradingPool
    from evals.grading.verdict import Kind

    grid = Grid(
        tuple(map(Criterion, arguments.criteria)),
        tuple(arguments.fractions),
        tuple(arguments.extrapolation_fractions),
        tuple(arguments.gammas),
    )
    settings = evaluation_settings(arguments)
    pair = read_pair(arguments.base, arguments.trained, arguments.dtype)
    with (
        single_writer(arguments.out / ".writer", "sweeps into this directory"),
        GradingPool(arguments.grading_workers) as pool,
    ):
        sweep(pair, arguments.problems, settings, grid, Kind(arguments.kind), pool, arguments.out)


def _choose(arguments: argparse.Namespace) -> None:
    from evals.decoding.choose import write_choice

    write_choice(arguments.sweeps, arguments.out)


def _table(arguments: argparse.Namespace) -> None:
    from evals.decoding.table import write_table

    write_table(
        arguments.runs,
        arguments.scores,
        arguments.comparisons,
        arguments.chosen,
        arguments.samples,
        arguments.note,
        arguments.out,
    )


def _figure(arguments: argparse.Namespace) -> None:
    from evals.decoding.figure import write_figure

    write_figure(arguments.sweeps, arguments.out)


def _add_pair_options(parser: argparse.ArgumentParser) -> None:
    checkpoint = "directory in Hugging Face format, or of a base model or run of a study"
    parser.add_argument("--base", type=Path, required=True, help=f"the model before training: {checkpoint}")
    parser.add_argument("--trained", type=Path, required=True, help="the model after it; prompts are as for this one")
    add_sampling_options(parser, _BACKENDS)


def _add_decoding_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mode", choices=("replacement", "extrapolation"))
    parser.add_argument("--driver", choices=("base", "trained"), default="base", help="whose tokens are kept otherwise")
    parser.add_argument(
        "--criterion",
        choices=_CRITERIA,
        default="log_prob_difference",
        help="log_prob_difference fires at or below tau, random with probability tau, the others at or above tau",
    )
    parser.add_argument("--tau", type=float, help="threshold in nats; write --tau=-0.3, --tau=-inf")
    parser.add_argument("--gamma", type=float, default=0.0, help="how far extrapolation goes beyond the trained model")
    parser.add_argument("--chosen", type=Path, metavar="JSON", help="instead of all these: what `choose` wrote")
    parser.add_argument("--scheme", choices=("replacement", "extrapolation_base", "extrapolation_trained"))


def _add_grid_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--criteria", nargs="+", choices=_CRITERIA, required=True, help="of replacement")
    parser.add_argument("--fractions", nargs="+", type=float, required=True, help="of tokens beyond the thresholds")
    parser.add_argument(
        "--extrapolation-fractions", nargs="*", type=float, default=[], help="the same in extrapolation"
    )
    parser.add_argument("--gammas", nargs="*", type=float, default=[], help="of extrapolation")
    parser.add_argument("--kind", choices=("completion", "choice"), default="completion", help="how answers are read")
    parser.add_argument("--grading-workers", type=int, default=1)


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
    sweep = commands.add_parser(
        "sweep", help="many ways of decoding, sampled and graded: sweep.json; goes on if killed"
    )
    _add_pair_options(sweep)
    _add_grid_options(sweep)
    sweep.add_argument("--out", type=Path, required=True, help="directory; its name is the run's in what follows")
    sweep.set_defaults(run=_sweep)
    choose = commands.add_parser("choose", help="the best thresholds and gammas of sweeps")
    choose.add_argument("--sweeps", type=Path, nargs="+", required=True, metavar="JSON")
    choose.add_argument("--out", type=Path, required=True, metavar="JSON")
    choose.set_defaults(run=_choose)
    table = commands.add_parser("table", help="base, trained and both together, compared; .md, .csv")
    table.add_argument("--scores", type=Path, nargs="+", required=True, metavar="JSON")
    table.add_argument("--comparisons", type=Path, required=True, metavar="JSON")
    table.add_argument("--runs", type=Path, required=True, help="list of run, model, method, seed, title")
    table.add_argument("--chosen", type=Path, required=True, metavar="JSON")
    table.add_argument("--samples", type=Path, required=True, help="directory with {run}/{benchmark}/samples.jsonl")
    table.add_argument("--note", nargs="+", required=True, help="sentences on what the numbers are evidence of")
    table.add_argument("--out", type=Path, required=True, help="path of the table without its ending")
    table.set_defaults(run=_table)
    figure = commands.add_parser("figure", help="accuracy against the fraction replaced; .png, .svg")
    figure.add_argument("--sweeps", type=Path, nargs="+", required=True, metavar="JSON")
    figure.add_argument("--out", type=Path, required=True, help="path of the figure without its ending")
    figure.set_defaults(run=_figure)
    return run_command(parser, argv)


if __name__ == "__main__":
    sys.exit(main())
