"""``python -m evals.statistics coverage``: how often the reported intervals cover the truth, measured by simulation."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence

from evals.command_line import run_command
from evals.core.errors import UserError
from evals.statistics.coverage import INTERVALS, Population, measure_coverage, populations
from evals.statistics.interval import MINIMUM_INFORMATIVE_PROBLEMS

_BAND = (0.93, 0.97)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m evals.statistics", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    coverage = commands.add_parser(
        "coverage",
        help="simulate benchmarks of known accuracy and count",
        description="Prints a Markdown table: how often a score gets an interval, and how often 95 % intervals cover "
        "the true accuracy, in per cent, over populations of problems from all or nothing to equally hard.",
    )
    coverage.add_argument("--problems", type=int, default=30, help="problems of a benchmark (default: 30)")
    coverage.add_argument("--samples", type=int, default=32, help="samples of a problem (default: 32)")
    coverage.add_argument("--benchmarks", type=int, default=10_000, help="simulated ones each (default: 10000)")
    coverage.add_argument("--seed", type=int, default=0, help="of the simulation (default: 0)")
    coverage.add_argument(
        "--least-given", type=float, default=0.1, metavar="SHARE",
        help="leave out populations in which fewer of the scores than this get an interval (default: 0.1)",
    )  # fmt: skip
    coverage.set_defaults(run=_coverage)
    return parser


def _coverage(arguments: argparse.Namespace) -> None:
    for name, least in (("problems", MINIMUM_INFORMATIVE_PROBLEMS), ("samples", 1), ("benchmarks", 100), ("seed", 0)):
        if getattr(arguments, name) < least:
            raise UserError(f"--{name}: is {getattr(arguments, name)}; accepted: {least} or more")
    print(f"| population | accuracy | given | {' | '.join(INTERVALS)} |")
    print("|---|---|---|" + "---|" * len(INTERVALS))
    ours = []
    for population in populations():
        measured = {
            name: measure_coverage(
                population,
                intervals,
                problems=arguments.problems,
                samples=arguments.samples,
                benchmarks=arguments.benchmarks,
                seed=arguments.seed,
            )
            for name, intervals in INTERVALS.items()
        }
        if measured["ours"].given < arguments.least_given:
            continue
        ours.append(measured["ours"].covered)
        cells = [_cell(coverage.covered, bold=name == "ours") for name, coverage in measured.items()]
        print(f"| {_title(population)} | {population.accuracy:g} | {100 * measured['ours'].given:.0f} % | "
              f"{' | '.join(cells)} |")  # fmt: skip
    if not ours:
        raise UserError("--least-given: no population has so many intervals")
    inside = sum(_BAND[0] <= covered <= _BAND[1] for covered in ours)
    print(f"\n{len(ours)} populations: ours covers {100 * min(ours):.1f} to {100 * max(ours):.1f} %, "
          f"{inside} of them within 93 to 97 %")  # fmt: skip


def _title(population: Population) -> str:
    spread = "∞" if population.spread >= 1e6 else f"{population.spread:g}"
    return f"{population.family} {spread}"


def _cell(covered: float, bold: bool) -> str:
    if math.isnan(covered):
        return "–"
    outside = bold and not _BAND[0] <= covered <= _BAND[1]
    return f"**{100 * covered:.1f}**" if outside else f"{100 * covered:.1f}"


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; 0, or 2 after a one-line error."""
    return run_command(_parser(), argv)


if __name__ == "__main__":
    sys.exit(main())
