"""Plans of an evaluation: what difference can be detected, or what it takes to detect one."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from evals.core.errors import InvalidInput, UserError, check_option
from evals.scores.loose_files import Reader, find_files
from evals.scores.printed import Format, print_rows
from evals.statistics.power import MOST, Design, minimum_detectable_effect, problems_needed, samples_needed
from evals.tables import numbers
from evals.tables.layout import table_of_texts

_NONE = {
    "effect": "No difference can be detected: it would have to be above 100 points.",
    "problems": "No number of problems suffices: the seeds alone vary more than that.",
    "samples": "No number of samples suffices: the problems, or the seeds, alone vary more than that.",
}


def make_design(
    pilot: Sequence[Path] | None,
    reader: Reader,
    effect_sd: float | None,
    sampling_variance: float | None,
    seed_sd: float,
    seeds: int,
) -> Design:
    """Gather the variances to plan with (:class:`Design`), from two files of the same problems or from numbers."""
    # Nothing that lies within 0 and 1 varies more: a difference by 1, p (1 - p) of two policies by 0.5, a mean by 0.5.
    most = {"effect-sd": (effect_sd, 1.0), "sampling-variance": (sampling_variance, 0.5), "seed-sd": (seed_sd, 0.5)}
    for name, (value, bound) in most.items():
        check_option(name, value, value is None or 0.0 <= value <= bound, f"0 to {bound:g}, as a fraction of one")
    check_option("seeds", seeds, seeds == 0 or 2 <= seeds <= MOST, f"0, for two given policies, or 2 to {MOST}")
    check_option("seed-sd", f"{seed_sd} without --seeds", seeds or not seed_sd, "both of them, or neither")
    try:
        if pilot is None:
            if effect_sd is None or sampling_variance is None:
                raise UserError("--pilot, or --effect-sd and --sampling-variance, say how policies differ; none given")
            return Design(effect_sd, sampling_variance, seed_sd, seeds)
        if effect_sd is not None or sampling_variance is not None:
            raise UserError("--effect-sd, --sampling-variance: are estimated from --pilot; give one or the other")
        files = find_files(pilot)
        if len(files) != 2:
            raise UserError(f"--pilot: names {len(files)} files of grades or samples; accepted: two, of one benchmark")
        one, other = reader.read(files)
        if set(one.grades) != set(other.grades) or one.samples != other.samples:
            raise UserError(f"{other.path}: has other problems or another number of samples than {one.path}")
        first, second = ([count / policy.samples for count in policy.counts] for policy in (one, other))
        return Design.from_accuracies(first, second, one.samples, seed_sd, seeds)
    except ValueError as error:
        raise UserError(f"power: {error}") from None


@dataclasses.dataclass(frozen=True)
class Size:
    """The size of an evaluation: two of effect (a fraction of one), problems and samples; the third is worked out."""

    effect: float | None
    problems: int | None
    samples: int | None
    alpha: float = 0.05
    power: float = 0.8

    def __post_init__(self) -> None:
        """Refuse numbers out of range; the options of the command line have these names."""
        effect, problems, samples, alpha, power = dataclasses.astuple(self)
        check_option("alpha", alpha, 1e-9 <= alpha <= 0.5, "1e-9 to 0.5")
        check_option("power", power, alpha < power <= 1.0 - 1e-9, "above alpha, below 1")
        check_option("problems", problems, problems is None or 2 <= problems <= MOST, f"2 to {MOST}")
        check_option("samples", samples, samples is None or 1 <= samples <= MOST, f"1 to {MOST}")
        words = "above 0, up to 1, as a fraction of one"
        check_option("effect", effect, effect is None or 0.0 < effect <= 1.0, words)
        given = 3 - (effect, problems, samples).count(None)
        if given != 2:
            options = "--effect, --problems, --samples"
            raise InvalidInput(options, "", f"{given} of them given", "two, the third is worked out")


def print_plan(design: Design, size: Size, form: Format) -> None:
    """Print the one of effect, problems and samples that is missing, worked out from the other two."""
    effect, problems, samples, alpha, power = dataclasses.astuple(size)
    if effect is None:
        asked = "effect"
        expected = design.expected_difference(problems, samples)
        effect = float(minimum_detectable_effect(expected, alpha, power, planned=True))
        effect = effect if effect <= 1.0 else None
    elif problems is None:
        asked, problems = "problems", problems_needed(design, effect, samples, alpha, power)
    else:
        asked, samples = "samples", samples_needed(design, effect, problems, alpha, power)
    sizes = {"effect": effect, "problems": problems, "samples": samples, "alpha": alpha, "power": power}
    row = {"worked_out": asked, **sizes, **dataclasses.asdict(design)}

    texts = {
        "Worked out": asked,
        "Effect (pp)": "none" if effect is None else numbers.percent(effect),
        "Problems": str(problems or "none suffices"),
        "Samples": str(samples or "none suffices"),
        "Level": f"{alpha:g}",
        "Power": f"{power:g}",
        "Effect SD": f"{design.effect_sd:.3f}",
        "p (1 - p)": f"{design.sampling_variance:.3f}",
        "Seeds": f"{design.seeds} ± {design.seed_sd:g}" if design.seeds else "given policies",
    }
    notes = [
        "For one comparison; over several benchmarks Holm asks for more, at worst what the level divided by their "
        "number gives."
    ]
    if sizes[asked] is None:
        notes.append(_NONE[asked])
    table = table_of_texts("power", "What a comparison can detect", {asked: texts}, notes)
    print_rows(form, [row], table, "plan")
