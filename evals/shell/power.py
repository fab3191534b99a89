"""Plan an evaluation: what difference could be detected, or how many problems or samples a given one needs.

Two of --effect, --problems and --samples decide what is worked out: problems and samples give the minimum detectable
effect; effect and samples the number of problems; effect and problems the number of samples. How strongly two policies
differ from problem to problem comes from a pilot (--pilot A B, graded samples of the same problems), or is given
by --effect-sd and --sampling-variance. Differences are fractions of one: 0.05 is five points.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evals.core.errors import UserError
from evals.grading.verdict import Kind
from evals.shell.inputs import find_files, read_answers
from evals.shell.output import Format, print_rows
from evals.statistics.power import Design, minimum_detectable_effect, problems_needed, samples_needed
from evals.tables import numbers
from evals.tables.layout import Table


@dataclass(frozen=True)
class PowerOptions:
    """The options of ``rlvr-bench power``.

    Attributes:
        pilot: two files to estimate the variances from.
        pilot_problems: their problems with answers, for samples without grades.
        kind: how samples are read; None: choice if the problems have options, else completion.
        workers: grading processes.
        effect_sd: spread over problems of the true difference.
        sampling_variance: mean of p (1 - p) over problems, summed over both policies.
        seed_sd: spread of a method's score over seeds.
        seeds: training seeds of each method; 0 compares two checkpoints.
        effect: true difference to detect.
        problems: of the benchmark.
        samples: of each problem.
        alpha: two-sided level.
        power: chance to find the difference.
        form: what is printed.
    """

    pilot: tuple[Path, Path] | None
    pilot_problems: Sequence[Path]
    kind: Kind | None
    workers: int
    effect_sd: float | None
    sampling_variance: float | None
    seed_sd: float
    seeds: int
    effect: float | None
    problems: int | None
    samples: int | None
    alpha: float
    power: float
    form: Format


def power(options: PowerOptions) -> None:
    """Print the plan.

    Raises:
        UserError: an option is missing or out of range, or the pilots did not answer the same problems.
    """
    for name in ("alpha", "power"):
        if not 0.0 < getattr(options, name) < 1.0:
            raise UserError(f"--{name}: is {getattr(options, name)}; accepted: between 0 and 1")
    for name in ("problems", "samples"):
        least = 2 if name == "problems" else 1
        if getattr(options, name) is not None and getattr(options, name) < least:
            raise UserError(f"--{name}: is {getattr(options, name)}; accepted: {least} or more")
    if options.effect is not None and not 0.0 < options.effect <= 1.0:
        raise UserError(f"--effect: is {options.effect}; accepted: above 0, up to 1, as a fraction of one")
    given = [name for name in ("effect", "problems", "samples") if getattr(options, name) is not None]
    if len(given) != 2:
        raise UserError(
            f"--effect, --problems, --samples: {len(given)} of them given; accepted: two, the third is worked out"
        )
    design = _design(options)
    row = _plan(design, options)
    print_rows(options.form, [row], _table(row), "plan")


def _design(options: PowerOptions) -> Design:
    try:
        if options.pilot is None:
            if options.effect_sd is None or options.sampling_variance is None:
                raise UserError("--pilot, or --effect-sd and --sampling-variance, say how policies differ; none given")
            return Design(options.effect_sd, options.sampling_variance, options.seed_sd, options.seeds)
        if options.effect_sd is not None or options.sampling_variance is not None:
            raise UserError("--effect-sd, --sampling-variance: are estimated from --pilot; give one or the other")
        files = find_files(options.pilot)
        if len(files) != 2:
            raise UserError(f"--pilot: names {len(files)} files of grades or samples; accepted: two, of one benchmark")
        one, other = read_answers(files, options.pilot_problems, options.kind, options.workers)
        if set(one.grades) != set(other.grades) or one.samples != other.samples:
            raise UserError(f"{other.path}: has other problems or another number of samples than {one.path}")
        rates = [[count / each.samples for count in each.counts] for each in (one, other)]
        return Design.from_accuracies(rates[0], rates[1], one.samples, options.seed_sd, options.seeds)
    except ValueError as error:
        raise UserError(f"power: {error}") from None


def _plan(design: Design, options: PowerOptions) -> dict[str, Any]:
    alpha, power = options.alpha, options.power
    problems, samples, effect = options.problems, options.samples, options.effect
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
