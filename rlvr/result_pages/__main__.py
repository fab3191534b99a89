"""``python -m rlvr.result_pages phenomena|decoding``: pages beside the report, in its look."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from evals.command_line import run_command


def _write_phenomena(arguments: argparse.Namespace) -> None:
    from rlvr.result_pages.phenomena import write_phenomena_page

    write_phenomena_page(arguments.findings, arguments.figures, arguments.rollouts, arguments.note, arguments.out)


def _write_decoding(arguments: argparse.Namespace) -> None:
    from rlvr.result_pages.decoding import write_decoding_page

    write_decoding_page(
        arguments.runs,
        arguments.scores,
        arguments.comparisons,
        arguments.chosen,
        arguments.samples,
        arguments.figure,
        arguments.note,
        arguments.out,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; 0, or 2 after a one-line error."""
    parser = argparse.ArgumentParser(prog="python -m rlvr.result_pages", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    phenomena = commands.add_parser("phenomena", help="the papers' claims, one self-contained page")
    phenomena.add_argument("--findings", type=Path, nargs="+", required=True, help="results/phenomena/*.json, in order")
    phenomena.add_argument("--figures", type=Path, required=True, help="directory whose SVG files are embedded")
    phenomena.add_argument("--rollouts", type=Path, nargs="*", default=[], help="pages of rollouts that are linked to")
    phenomena.add_argument("--note", nargs="+", required=True, help="sentences on what the numbers are evidence of")
    phenomena.add_argument("--out", type=Path, required=True, help="results/phenomena.html")
    phenomena.set_defaults(run=_write_phenomena)
    decoding = commands.add_parser("decoding", help="decoding with two models, one self-contained page")
    decoding.add_argument("--runs", type=Path, required=True, help="results/decoding/runs.json")
    decoding.add_argument("--scores", type=Path, nargs="+", required=True, help="results/decoding/scores/*.json")
    decoding.add_argument("--comparisons", type=Path, required=True, help="results/decoding/comparisons.json")
    decoding.add_argument("--chosen", type=Path, required=True, help="results/decoding/chosen.json")
    decoding.add_argument("--samples", type=Path, required=True, help="results/decoding/samples")
    decoding.add_argument("--figure", type=Path, required=True, help="the SVG file that is embedded")
    decoding.add_argument("--note", nargs="+", required=True, help="sentences on what the numbers are evidence of")
    decoding.add_argument("--out", type=Path, required=True, help="results/decoding.html")
    decoding.set_defaults(run=_write_decoding)
    return run_command(parser, argv)


if __name__ == "__main__":
    sys.exit(main())
