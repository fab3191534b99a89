"""Scores at equal cost: every method at the same number of tokens, and its compute-performance curve."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from evals.core.files import read_parquet
from evals.core.random import stream_seed
from evals.core.records import BASE, Condition, Interval
from evals.results import Results
from evals.statistics.accuracy import FloatArray
from evals.statistics.difference import Arm, Difference, estimate_combination
from evals.statistics.resampling import draw_problems, holm_of_known
from evals.statistics.scaling import FEATURES, Course, CourseEstimate, Curves, estimate_course
from evals.tables import numbers
from evals.tables.layout import METHOD, Column, Table, interval_columns, make_table, table_frame, write_table

RESAMPLES = 300
REACHED_GAIN = 0.8
"""The score whose compute is compared: this part of the gain that the reference's curve makes in its training."""
_SPENT = ["tokens_generated", "optimizer_steps", "seconds_step"]
_METRICS = ("step", "reward_mean", *_SPENT)
_CEILING, _EXPONENT, _MIDPOINT, _COMPUTE, _HALF = range(len(FEATURES))
_Cell = tuple[float, Interval | None]


def read_totals(run: str, training: Path) -> pd.DataFrame:
    """A run's reward of each step, and the tokens, optimizer steps and seconds up to its end."""
    metrics = read_parquet(training / run / "metrics.parquet", _METRICS)[[*_METRICS]]
    return metrics.assign(**metrics[_SPENT].cumsum())


def read_courses(condition: Condition, training: Path) -> dict[str, Course]:
    """A method's scores on the validation problems over each cost; none if not all of its training runs were validated.

    The courses of all seeds end with the training that stopped first.
    """
    files = [training / run.run / "validation.parquet" for run in condition.runs]
    if not all(path.is_file() for path in files):
        return {}
    spent, accuracies = [], []
    tables = [read_parquet(path, ("step", "correct_counts", "samples_per_problem")) for path in files]
    for run, table in zip(condition.runs, tables, strict=True):
        scores = table[: min(map(len, tables))]
        spent.append(read_totals(run.run, training).set_index("step").loc[scores["step"][1:], _SPENT])
        counts = np.stack(scores["correct_counts"].tolist())
        accuracies.append(counts / scores["samples_per_problem"].to_numpy()[:, None])
    of_all = np.array(accuracies)
    return {cost: Course(np.array([totals[cost] for totals in spent], dtype=np.float64), of_all) for cost in _SPENT}


@dataclass(frozen=True)
class AtEqualTokens:
    """A method after as many tokens as every training of the study generated; means over seeds."""

    tokens: float  # of its whole training runs
    steps: float
    seconds: float
    by_seed: FloatArray  # [S] training reward, the mean of the tenth of the tokens before

    def less(self, other: "AtEqualTokens | None") -> Difference:
        """The reward with the variance that other seeds would cause, less that of another method."""
        known = [self] if other is None else [self, other]
        arms = [Arm([np.stack([of.by_seed, of.by_seed], axis=1)]) for of in known]  # of no sample of problems
        return estimate_combination(arms, (1.0, -1.0)[: len(arms)])


def candidates(results: Results) -> list[Condition]:
    """The trained methods but for the positive control, which may be a shorter training."""
    left_out = {BASE, results.controls.positive if results.controls else BASE}
    return [row for row in results.conditions if row.method not in left_out]


def at_equal_tokens(results: Results, training: Path) -> tuple[float, dict[Condition, AtEqualTokens]]:
    """The tokens that every training generated, and every method after them."""
    trained = candidates(results)
    totals = {run.run: read_totals(run.run, training) for row in trained for run in row.runs}
    tokens = min((float(frame["tokens_generated"].iloc[-1]) for frame in totals.values()), default=0.0)
    methods = {}
    for row in trained:
        frames = [totals[run.run] for run in results.held(row)]
        rewards = []
        for frame in frames:
            spent = frame["tokens_generated"]
            window = frame[spent.between(0.9 * tokens, tokens)]
            last = max(0, int((spent <= tokens).sum()) - 1)  # step before, or the first
            nearest = frame[spent == spent[last]]
            rewards.append(float((nearest if window.empty else window)["reward_mean"].mean()))
        then = [[np.interp(tokens, frame["tokens_generated"], frame[name]) for name in _SPENT[1:]] for frame in frames]
        steps, seconds = (float(np.mean(costs)) for costs in zip(*then, strict=True))
        total = np.mean([frame["tokens_generated"].iloc[-1] for frame in frames])
        methods[row] = AtEqualTokens(float(total), steps, seconds, np.array(rewards))
    return tokens, methods


@dataclass(frozen=True)
class Fits:
    """The compute-performance curves of a study's methods."""

    courses: Mapping[Condition, Course]
    curves: Mapping[Condition, Curves]
    targets: Mapping[str, float]  # by model, the score whose compute is compared

    @property
    def problems(self) -> int:
        return int(next(iter(self.courses.values())).accuracies.shape[2])

    @cached_property
    def estimates(self) -> dict[Condition, CourseEstimate]:
        """The features of every method with their uncertainty, which takes hundreds of fits of each."""
        draws = draw_problems(self.problems, np.random.default_rng(stream_seed("validation problems")), RESAMPLES)
        return {row: estimate_course(course, draws, self.targets[row.model]) for row, course in self.courses.items()}

    def feature(self, row: Condition, index: int) -> _Cell:
        return _cell(self.estimates[row].less(None, self.problems), index)

    def has_ceiling(self, row: Condition) -> bool:
        """Return whether the scores bend enough to say where they end: the fitted ceiling is below its bound, 1."""
        return bool(self.curves[row].ceiling[0] < 1.0 - 1e-9)

    def is_reached(self, row: Condition) -> bool:
        """Return whether the method's curve reaches the score whose compute is compared."""
        return bool(self.curves[row].log_compute(self.targets[row.model])[0] < np.inf)


def fit_courses(results: Results, training: Path) -> Fits | None:
    """Fit the curve of every method; None if the study has no validation."""
    trained = candidates(results)
    held = {row: read_courses(replace(row, runs=results.held(row)), training) for row in trained}
    courses = {row: by_cost["tokens_generated"] for row, by_cost in held.items() if by_cost}
    references = {row.model: row for row in courses if row.method == results.reference_method}
    if len(courses) < len(trained) or {row.model for row in trained} - {*references}:
        return None
    curves = {row: course.curve() for row, course in courses.items()}
    targets = {}
    for model, row in references.items():
        reached, base = float(curves[row].scores([courses[row].compute.max()])[0, 0]), float(curves[row].base[0])
        targets[model] = base + REACHED_GAIN * (reached - base)
    return Fits(courses, curves, targets)


def _cell(difference: Difference, index: int = 0) -> _Cell:
    low, high = (np.atleast_1d(end)[index] for end in difference.interval())
    value = float(np.atleast_1d(difference.estimate)[index])
    return value, None if np.isnan(low) else (float(low), float(high))


def _p_values(differences: Mapping[Condition, Difference], index: int = 0) -> dict[Condition, float | None]:
    """p-values after Holm over methods."""
    values = [float(np.atleast_1d(difference.p_values())[index]) for difference in differences.values()]
    adjusted = holm_of_known([None if np.isnan(value) else value for value in values])
    return dict(zip(differences, adjusted, strict=True))


def _references(results: Results, rows: Iterable[Condition]) -> dict[Condition, Condition]:
    """The reference method's row on the same model, of every other method that has one."""
    references = {row.model: row for row in rows if row.method == results.reference_method}
    others = (row for row in rows if row.method != results.reference_method)
    return {row: references[row.model] for row in others if row.model in references}


def write_efficiency_table(results: Results, training: Path, out: Path) -> None:
    """Write every method at equal tokens and, with validation, its compute-performance curve."""
    tables, frame = efficiency_tables(results, training)
    runs = [run.run for row in results.conditions for run in row.runs if row.method != BASE]
    files = [training / run / name for run in runs for name in ("metrics.parquet", "validation.parquet")]
    read = [path for path in files if path.is_file()]
    write_table(out, tables, frame, [*results.sources, *read], {"resamples": RESAMPLES})


def efficiency_tables(results: Results, training: Path) -> tuple[list[Table], pd.DataFrame]:
    """Lay out the tables, and the same numbers as a CSV file has them."""
    tokens, equal = at_equal_tokens(results, training)
    against = {row: equal[row].less(equal[reference]) for row, reference in _references(results, equal).items()}
    columns: list[Column[Condition]] = [
        *METHOD,
        Column("Tokens in all", lambda row: equal[row].tokens, numbers.count, "tokens"),
        Column("", lambda row: tokens, csv="equal_tokens"),
        Column("Updates", lambda row: equal[row].steps, numbers.whole, "optimizer_steps"),
        Column("Seconds", lambda row: equal[row].seconds, numbers.seconds, "seconds"),
        Column("Reward (%)", lambda row: _cell(equal[row].less(None)), _share, _written("training_reward")),
        Column(
            f"Versus {results.reference_title} (pp)",
            against.get,
            lambda difference: _points(_cell(difference)) if difference else numbers.NOTHING,
        ),
        Column("p (Holm)", _p_values(against).get, numbers.p_value, "p_value_holm"),
    ]
    note = (
        "Updates: optimizer steps; seconds: of training steps. Reward: on the training problems, mean of the last "
        "tenth of these tokens; brackets: 95 % intervals over seeds."
        + (" The positive control is left out." if results.controls else "")
        + (" Runs that fell are left out." if results.fallen else "")
    )
    heading = f"Every method after {numbers.count(tokens)} tokens, which each of its runs generated"
    caption = "Reward on the training problems. Brackets: 95 % intervals over seeds; p after Holm over the methods."
    tables = [make_table("equal_tokens", heading, columns, list(equal), [note], caption)] if equal else []
    if (fits := fit_courses(results, training)) is not None:
        fitted, further = _fit_tables(results, fits)
        tables += fitted
        columns += further
    return tables, table_frame(columns, list(equal))


def _written(name: str) -> Callable[[_Cell], dict[str, float | None]]:
    """Make the function of a cell's columns in the CSV file."""
    return lambda cell: {name: cell[0], **interval_columns(cell[1], f"{name}_")}


def _share(cell: _Cell) -> str:
    """Show a share of one, whose interval ends at 0 and 1."""
    value, interval = cell
    return numbers.percent_with_interval(value, interval and (max(interval[0], 0.0), min(interval[1], 1.0)))


def _points(cell: _Cell) -> str:
    return numbers.NOTHING if np.isnan(cell[0]) else numbers.points_with_interval(*cell)


def _scaled(text: Callable[[float], str], cell: _Cell) -> str:
    """Show the exponential of a cell, with its interval."""
    value, interval = cell
    ends = numbers.NO_INTERVAL if interval is None else f"[{', '.join(text(np.exp(end)) for end in interval)}]"
    return f"{text(float(np.exp(value)))} {ends}"


def _fit_tables(results: Results, fits: Fits) -> tuple[list[Table], list[Column[Condition]]]:
    """The parameters of every method, and its ceiling and compute against the reference method's; and the CSV's."""
    conditions, title, pairs = list(fits.courses), results.reference_title, _references(results, fits.courses)
    against = {row: fits.estimates[row].less(fits.estimates[other], fits.problems) for row, other in pairs.items()}
    limited = [row for row, other in pairs.items() if fits.has_ceiling(row) and fits.has_ceiling(other)]
    ceilings = _p_values({row: against[row] for row in limited}, _CEILING)
    computes = _p_values(against, _COMPUTE)
    reached = " / ".join(f"{100 * target:.0f}" for target in fits.targets.values())
    references = [row for row in conditions if row.method == results.reference_method]
    base = " / ".join(numbers.percent(float(fits.curves[row].base[0])) for row in references)
    count, plain = partial(_scaled, numbers.count), partial(_scaled, lambda value: f"{value:.2f}")

    def feature(index: int) -> Callable[[Condition], _Cell]:
        return lambda row: fits.feature(row, index)

    def less(index: int) -> Callable[[Condition], _Cell]:
        return lambda row: _cell(against[row], index)

    def where(
        known: Callable[[Condition], bool], words: str, value: Callable[[Condition], Any], text: Callable[[Any], str]
    ) -> Callable[[Condition], str]:
        return lambda row: text(value(row)) if known(row) else words

    def verdict(
        index: int, adjusted: Mapping[Condition, float | None], more: str, less: str
    ) -> Callable[[Condition], str]:
        def words(row: Condition) -> str:
            p_value, difference = adjusted.get(row), float(against[row].estimate[index])
            return "not distinguishable" if p_value is None or p_value > 0.05 else more if difference > 0 else less

        return words

    def is_seen(row: Condition) -> str:
        return "yes" if np.exp(fits.curves[row].log_midpoint[0]) <= fits.courses[row].compute.max() else "no"

    identified, in_reach = (
        partial(where, fits.has_ceiling, "not identified"),
        partial(where, fits.is_reached, "not reached"),
    )
    parameters: list[Column[Condition]] = [
        Column("Method", lambda row: row.title),
        Column("A (%)", identified(feature(_CEILING), _share)),
        Column("B", feature(_EXPONENT), plain),
        Column("C_mid (tokens)", feature(_MIDPOINT), count),
        Column("C_mid within", is_seen),
        Column(f"Tokens to {reached} %", in_reach(feature(_COMPUTE), count)),
        Column("Second half, predicted - seen (pp)", feature(_HALF), _points),
    ]
    both = partial(where, limited.__contains__, "not identified")
    versus: list[Column[Condition]] = [
        Column("Method", lambda row: row.title),
        Column("A (pp)", both(less(_CEILING), _points)),
        Column("p (Holm)", ceilings.get, numbers.p_value),
        Column("Ceiling", both(verdict(_CEILING, ceilings, "higher", "lower"), str)),
        Column(f"Tokens to {reached} %, ratio", in_reach(less(_COMPUTE), plain)),
        Column("p (Holm) ", computes.get, numbers.p_value),
        Column("Compute", verdict(_COMPUTE, computes, "more", "less")),
    ]
    note = (
        "R = R_0 + (A - R_0) / (1 + (C_mid / C)^B) (arXiv 2510.13786): R is the score on held-out problems of the "
        f"training distribution after C generated tokens, R_0 = {base} % that of the base model. Brackets: 95 % "
        "intervals over problems and seeds. Where C_mid is not within the training, A is an extrapolation. Not "
        "identified: the best fit has the largest A there can be, 100 %, so A is unknown and B and C_mid depend on it. "
        "Last column: what the fit to the first half of the tokens says of the second."
    )
    comparison = (
        "Paired by problem; p after Holm over methods, for ceiling and compute each. "
        f"{reached} % is where {title} has made {100 * REACHED_GAIN:.0f} % of its gain; what never gets "
        "there counts as 100 times the compute."
    )
    caption = "Fitted to scores on held-out problems: ceiling A, exponent B, tokens C_mid to half of the gain."
    tables = [make_table("scaling", "Compute-performance curves", parameters, conditions, [note], caption)]
    if pairs:
        heading = f"Compute-performance curves against {title}"
        tables.append(make_table("scaling_versus", heading, versus, list(pairs), [comparison]))
    written = [Column("", feature(index), csv=_written(name)) for index, name in enumerate(FEATURES)]
    of_tests: list[Column[Condition]] = [
        Column("", ceilings.get, csv="ceiling_p_holm"),
        Column("", computes.get, csv="compute_p_holm"),
    ]
    return tables, [*written, *of_tests]
