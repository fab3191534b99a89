"""``python -m evals.tables main|by_seed|audit|paper|paper_vs_ours``: write a study's tables, each with its manifest."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from evals.core.errors import UserError
from evals.core.files import write_text
from evals.core.records import read_runs
from evals.results import Results, read_results
from evals.tables.audit import audit_frame, audit_tables, read_audits
from evals.tables.by_seed import by_seed_frame, by_seed_tables
from evals.tables.costs import cost_files
from evals.tables.layout import Table, latex, markdown
from evals.tables.main import main_frame, main_tables, read_costs
from evals.tables.manifests import write_output_manifest
from evals.tables.paper import paper_frame, paper_tables
from evals.tables.paper_vs_ours import confront, paper_vs_ours_frame, paper_vs_ours_table, parse_own_settings
from evals.tables.published import read_published, read_settings


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m evals.tables", description=__doc__)
    commands = parser.add_subparsers(dest="table", required=True)
    main = commands.add_parser("main", help="one row per method: scores, comparisons, cost; .md, .csv, .tex")
    by_seed = commands.add_parser("by_seed", help="one row per run and benchmark; .md, .csv")
    paper = commands.add_parser("paper", help="a named study's own table, with what papers report beside it; .md, .csv")
    versus = commands.add_parser("paper_vs_ours", help="published numbers, ours, and whether they compare; .md, .csv")
    audit = commands.add_parser("audit", help="how much was not judged, and where a second grader differs; .md, .csv")
    audit.add_argument("--audits", type=Path, nargs="+", required=True, help="results/audits/*.json")
    for command in (main, by_seed, paper, versus):
        command.add_argument("--scores", type=Path, nargs="+", required=True, help="results/scores/*.json")
        command.add_argument("--comparisons", type=Path, required=True, help="results/comparisons.json")
    for command in (main, by_seed, audit, paper, versus):
        command.add_argument("--runs", type=Path, required=True, help="list of run, model, method, seed, title")
        command.add_argument("--out", type=Path, required=True, help="path of the table without its ending")
    main.add_argument("--costs", type=Path, required=True, help="results/costs")
    main.add_argument("--training", type=Path, required=True, help="results/runs")
    for command in (paper, versus):
        command.add_argument("--reference", type=Path, required=True, help="config/reference")
    paper.add_argument("--title", required=True, help="of the study")
    paper.add_argument("--note", nargs="+", required=True, help="what it asks and what the numbers are evidence of")
    versus.add_argument("--own", required=True, help='JSON: {"models": {name: what it is}, setting: value, ...}')
    main.add_argument("--note", nargs="+", required=True, help="sentences on what the numbers are evidence of")
    return parser


def run(arguments: argparse.Namespace) -> None:
    """Write the table that ``arguments.table`` names.

    Raises:
        UserError: an input is missing or malformed, or the output cannot be written.
    """
    if arguments.table == "audit":
        made, read = _audit(arguments), [arguments.runs, *arguments.audits]
    else:
        results = read_results(arguments.runs, arguments.scores, arguments.comparisons)
        make = {"main": _main, "by_seed": _by_seed, "paper": _paper, "paper_vs_ours": _paper_vs_ours}[arguments.table]
        made, read = make(arguments, results), [arguments.runs, *arguments.scores, arguments.comparisons]
    out: Path = arguments.out
    _write_frame(out.with_name(out.name + ".csv"), made.frame)
    write_text(out.with_name(out.name + ".md"), markdown(made.tables))
    if made.latex:
        write_text(out.with_name(out.name + ".tex"), latex(made.tables))
    endings = (".md", ".csv", ".tex") if made.latex else (".md", ".csv")
    write_output_manifest("table", out, endings, [*read, *made.inputs], made.parameters)


@dataclass(frozen=True)
class _Made:
    """A table as words and as numbers, and what went into it beside the results."""

    tables: Sequence[Table]
    frame: pd.DataFrame
    inputs: Sequence[Path] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    latex: bool = False


def _main(arguments: argparse.Namespace, results: Results) -> _Made:
    costs = read_costs(results, arguments.costs, arguments.training)
    inputs: list[Path] = []
    for measured in results.runs:
        inputs += cost_files(measured, results.benchmarks, arguments.costs, arguments.training)
    tables = main_tables(results, costs, arguments.note)
    return _Made(tables, main_frame(results, costs), inputs, {"notes": arguments.note}, latex=True)


def _by_seed(arguments: argparse.Namespace, results: Results) -> _Made:
    return _Made(by_seed_tables(results), by_seed_frame(results))


def _audit(arguments: argparse.Namespace) -> _Made:
    audits = read_audits(arguments.audits, read_runs(arguments.runs))
    return _Made(audit_tables(audits), audit_frame(audits))


def _paper(arguments: argparse.Namespace, results: Results) -> _Made:
    numbers = arguments.reference / "published.csv"
    tables = paper_tables(results, read_published(numbers), arguments.title, arguments.note)
    return _Made(tables, paper_frame(results), [numbers], {"title": arguments.title, "notes": arguments.note})


def _paper_vs_ours(arguments: argparse.Namespace, results: Results) -> _Made:
    numbers, made = arguments.reference / "published.csv", arguments.reference / "settings.yaml"
    published = read_published(numbers)
    settings = read_settings(made, published)
    own = parse_own_settings(arguments.own)
    confrontations = confront(results, published, settings, own)
    table = paper_vs_ours_table(confrontations, settings)
    return _Made([table], paper_vs_ours_frame(confrontations), [numbers, made], {"own": arguments.own})


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
