"""``python -m evals.figures scores|differences``: draw a figure as PNG and SVG with a manifest beside them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from evals.core.errors import UserError
from evals.figures.differences import draw_differences
from evals.figures.scores import draw_scores
from evals.figures.style import ENDINGS, house_style, save
from evals.results import read_results
from evals.tables.manifests import write_output_manifest

_FIGURES = {"scores": draw_scores, "differences": draw_differences}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m evals.figures", description=__doc__)
    parser.add_argument("figure", choices=sorted(_FIGURES))
    parser.add_argument("--scores", type=Path, nargs="+", required=True, help="results/scores/*.json")
    parser.add_argument("--comparisons", type=Path, required=True, help="results/comparisons.json")
    parser.add_argument("--runs", type=Path, required=True, help="list of run, model, method, seed, title")
    parser.add_argument("--out", type=Path, required=True, help="path of the figure without its ending")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; 0, or 2 after a one-line error."""
    arguments = _parser().parse_args(argv)
    try:
        results = read_results(arguments.runs, arguments.scores, arguments.comparisons)
        with house_style():
            save(_FIGURES[arguments.figure](results), arguments.out)
        inputs = [arguments.runs, *arguments.scores, arguments.comparisons]
        write_output_manifest("figure", arguments.out, ENDINGS, inputs, {"figure": arguments.figure})
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
