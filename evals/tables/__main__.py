"""``python -m evals.tables main|by_seed``: write a study's tables with a manifest beside them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from evals.artifacts import write_text
from evals.errors import UserError
from evals.tables.by_seed import by_seed_frame, by_seed_tables
from evals.tables.costs import cost_files
from evals.tables.layout import latex, markdown
from evals.tables.main import main_frame, main_tables, read_costs
from evals.tables.manifests import write_output_manifest
from evals.tables.records import read_results


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m evals.tables", description=__doc__)
    commands = parser.add_subparsers(dest="table", required=True)
    main = commands.add_parser("main", help="one row per method: scores, comparisons, cost; .md, .csv, .tex")
    by_seed = commands.add_parser("by_seed", help="one row per run and benchmark; .md, .csv")
    for command in (main, by_seed):
        command.add_argument("--scores", type=Path, nargs="+", required=True, help="results/scores/*.json")
        command.add_argument("--comparisons", type=Path, required=True, help="results/comparisons.json")
        command.add_argument("--runs", type=Path, required=True, help="list of run, model, method, seed, title")
        command.add_argument("--out", type=Path, required=True, help="path of the table without its ending")
    main.add_argument("--costs", type=Path, required=True, help="results/costs")
    main.add_argument("--training", type=Path, required=True, help="results/runs")
    main.add_argument("--note", nargs="+", required=True, help="sentences on what the numbers are evidence of")
    return parser


def run(arguments: argparse.Namespace) -> None:
    """Write the table that ``arguments.table`` names.

    Raises:
        UserError: an input is missing or malformed, or the output cannot be written.
    """
    endings: tuple[str, ...] = (".md", ".csv")
    parameters: dict[str, list[str]] = {}
    results = read_results(arguments.runs, arguments.scores, arguments.comparisons)
    out: Path = arguments.out
    inputs = [arguments.runs, *arguments.scores, arguments.comparisons]
    if arguments.table == "main":
        costs = read_costs(results, arguments.costs, arguments.training)
        tables = main_tables(results, costs, arguments.note)
        _write_frame(out.with_name(out.name + ".csv"), main_frame(results, costs))
        write_text(out.with_name(out.name + ".tex"), latex(tables))
        for measured in results.runs:
            inputs += cost_files(measured, results.benchmarks, arguments.costs, arguments.training)
        endings, parameters = (*endings, ".tex"), {"notes": arguments.note}
    else:
        tables = by_seed_tables(results)
        _write_frame(out.with_name(out.name + ".csv"), by_seed_frame(results))
    write_text(out.with_name(out.name + ".md"), markdown(tables))
    write_output_manifest("table", out, endings, inputs, parameters)


def _write_frame(path: Path, frame: pd.DataFrame) -> None:
    write_text(path, frame.to_csv(index=False, lineterminator="\n"))


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; 0, or 2 after a one-line error."""
    try:
        run(_parser().parse_args(argv))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
