"""Plan an evaluation: what difference could be detected, or how many problems or samples a given one needs.

Two of --effect, --problems and --samples decide what is worked out: problems and samples give the minimum detectable
effect; effect and samples the number of problems; effect and problems the number of samples. How strongly two policies
differ from problem to problem comes from a pilot (--pilot A B, graded samples of the same problems), or is given
by --effect-sd and --sampling-variance. Differences are fractions of one: 0.05 is five points.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from evals.core.errors import UserError
from evals.shell.inputs import find_files, read_answers
from evals.shell.output import add_format_options, print_rows
from evals.shell.score import add_grading_options
from evals.statistics.power import Design, minimum_detectable_effect, problems_needed, samples_needed
from evals.tables import numbers
from evals.tables.layout import Table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``power``."""
    parser.add_argument(
        "--pilot", type=Path, nargs=2, metavar=("A", "B"), help="two files to estimate the variances from"
    )
    parser.add_argument("--effect-sd", type=float, help="spread over problems of the true difference (typical: 0.15)")
    parser.add_argument(
        "--sampling-variance",
        type=float,
        help="mean of p (1 - p) over problems, summed over both policies (typical: 0.3)",
    )
    parser.add_argument("--seed-sd", type=float, default=0.0, help="spread of a method's score over seeds (default: 0)")
    parser.add_argument(
        "--seeds", type=int, default=0, help="training seeds of each method; 0 compares two checkpoints (default: 0)"
    )
    parser.add_argument("--effect", type=float, help="true difference to detect")
    parser.add_argument("--problems", type=int, help="problems of the benchmark")
    parser.add_argument("--samples", type=int, help="samples of each problem")
    parser.add_argument("--alpha", type=float, default=0.05, help="two-sided level (default: 0.05)")
    parser.add_argument("--power", type=float, default=0.8, help="chance to find the difference (default: 0.8)")
    add_grading_options(parser, "--pilot-problems")
    add_format_options(parser)


def run(arguments: argparse.Namespace) -> None:
    """Print the plan.

    Raises:
        UserError: an option is missing or out of range, or the pilots did not answer the same problems.
    """
    for option in ("alpha", "power"):
        if not 0.0 < getattr(arguments, option) < 1.0:
            raise UserError(f"--{option}: is {getattr(arguments, option)}; accepted: between 0 and 1")
    for option in ("problems", "samples"):
        least = 2 if option == "problems" else 1
        if getattr(arguments, option) is not None and getattr(arguments, option) < least:
            raise UserError(f"--{option}: is {getattr(arguments, option)}; accepted: {least} or more")
    if arguments.effect is not None and not 0.0 < arguments.effect <= 1.0:
        raise UserError(f"--effect: is {arguments.effect}; accepted: above 0, up to 1, as a fraction of one")
    given = [name for name in ("effect", "problems", "samples") if getattr(arguments, name) is not None]
    if len(given) != 2:
        raise UserError(
            f"--effect, --problems, --samples: {len(given)} of them given; accepted: two, the third is worked out"
        )
    design = _design(arguments)
    row = _plan(design, arguments)
    print_rows(arguments, [row], _table(row), "plan")


def _design(arguments: argparse.Namespace) -> Design:
    try:
        if arguments.pilot is None:
            if arguments.effect_sd is None or arguments.sampling_variance is None:
                raise UserError("--pilot, or --effect-sd and --sampling-variance, say how policies differ; none given")
            return Design(arguments.effect_sd, arguments.sampling_variance, arguments.seed_sd, arguments.seeds)
        if arguments.effect_sd is not None or arguments.sampling_variance is not None:
            raise UserError("--effect-sd, --sampling-variance: are estimated from --pilot; give one or the other")
        files = find_files(arguments.pilot)
        if len(files) != 2:
            raise UserError(f"--pilot: names {len(files)} files of grades or samples; accepted: two, of one benchmark")
        one, other = read_answers(files, arguments.golds, arguments.kind, arguments.workers)
        if set(one.grades) != set(other.grades) or one.samples != other.samples:
            raise UserError(f"{other.path}: has other problems or another number of samples than {one.path}")
        rates = [[count / each.samples for count in each.counts] for each in (one, other)]
        return Design.from_accuracies(rates[0], rates[1], one.samples, arguments.seed_sd, arguments.seeds)
    except ValueError as error:
        raise UserError(f"power: {error}") from None


def _plan(design: Design, arguments: argparse.Namespace) -> dict[str, Any]:
    alpha, power = arguments.alpha, arguments.power
    problems, samples, effect = arguments.problems, arguments.samples, arguments.effect
    if effect is None:
        found = minimum_detectable_effect(design.expected_difference(problems, samples), alpha, power)
        effect, asked = float(found), "effect"
    elif problems is None:
        problems, asked = problems_needed(design, effect, samples, alpha, power), "problems"
    else:
        samples, asked = samples_needed(design, effect, problems, alpha, power), "samples"
    return {
        "worked_out": asked,
        "effect": effect,
        "problems": problems,
        "samples": samples,
        "alpha": alpha,
        "power": power,
        "effect_sd": design.effect_sd,
        "sampling_variance": design.sampling_variance,
        "seed_sd": design.seed_sd,
        "seeds": design.seeds,
    }


def _table(row: dict[str, Any]) -> Table:
    header = ("Worked out", "Effect (pp)", "Problems", "Samples", "Level", "Power", "Effect SD", "p (1 - p)", "Seeds")
    cells = (
        row["worked_out"],
        numbers.percent(row["effect"]),
        *("none suffices" if row[key] is None else str(row[key]) for key in ("problems", "samples")),
        f"{row['alpha']:g}",
        f"{row['power']:g}",
        f"{row['effect_sd']:.3f}",
        f"{row['sampling_variance']:.3f}",
        f"{row['seeds']} ± {row['seed_sd']:g}" if row["seeds"] else "given policies",
    )
    notes = [
        "For one comparison; over several benchmarks Holm asks for more, at worst what the level divided by their "
        "number gives."
    ]
    if row["problems"] is None:
        notes.append("No number of problems suffices: the seeds alone vary more than that.")
    if row["samples"] is None:
        notes.append("No number of samples suffices: the problems, or the seeds, alone vary more than that.")
    return Table("power", "What a comparison can detect", header, (cells,), tuple(notes))
