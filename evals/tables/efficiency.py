"""Scores at equal cost: every method at the same number of tokens, and its compute-performance curve."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from evals.core.files import read_parquet
from evals.core.random import stream_seed
from evals.core.records import BASE, Condition, Estimate
from evals.results import Results
from evals.statistics.accuracy import FloatArray
from evals.statistics.difference import Arm, Difference, estimate_combination
from evals.statistics.resampling import draw_problems, holm_of_known
from evals.statistics.scaling import FEATURES, Course, CourseEstimate, Curves, estimate_course
from evals.tables import numbers
from evals.tables.layout import Cells, Table, Texts, estimate_columns, frame_of, table_of_texts, write_table

RESAMPLES = 300
REACHED_GAIN = 0.8
"""The score whose compute is compared: this part of the gain that the reference's curve makes in its training."""
_SPENT = ["tokens_generated", "optimizer_steps", "seconds_step"]
_METRICS = ("step", "reward_mean", *_SPENT)
_CEILING, _COMPUTE = FEATURES.index("ceiling"), FEATURES.index("log_compute")


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

    def features(self, row: Condition, other: Condition | None = None) -> Difference:
        """The features of a method, less those of another one."""
        return self.estimates[row].less(None if other is None else self.estimates[other], self.problems)

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
    against = {row: equal[row].less(equal[other]) for row, other in _references(results, equal).items()}
    adjusted, shown, written = _p_values(against), Texts(), Cells()
    for row, then in equal.items():
        (reward,), p_value = then.less(None).estimates(), adjusted.get(row)
        versus = _points(against[row].estimates()[0]) if row in against else numbers.NOTHING
        shown[row] = {
            "Method": row.title,
            "Tokens in all": numbers.count(then.tokens),
            "Updates": numbers.whole(then.steps),
            "Seconds": numbers.seconds(then.seconds),
            "Reward (%)": _share(reward),
            f"Versus {results.reference_title} (pp)": versus,
            "p (Holm)": numbers.p_value(p_value),
        }
        written[row] = {"model": row.model, "method": row.method, "title": row.title, "tokens": then.tokens}
        written[row] |= {"equal_tokens": tokens, "optimizer_steps": then.steps, "seconds": then.seconds}
        written[row] |= {**estimate_columns("training_reward", reward), "p_value_holm": p_value}
    note = (
        "Updates: optimizer steps; seconds: of training steps. Reward: on the training problems, mean of the last "
        "tenth of these tokens; brackets: 95 % intervals over seeds."
        + (" The positive control is left out." if results.controls else "")
        + (" Runs that fell are left out." if results.fallen else "")
    )
    heading = f"Every method after {numbers.count(tokens)} tokens, which each of its runs generated"
    caption = "Reward on the training problems. Brackets: 95 % intervals over seeds; p after Holm over the methods."
    tables = [table_of_texts("equal_tokens", heading, shown, [note], caption)]
    if (fits := fit_courses(results, training)) is not None:
        fitted, further = _fit_tables(results, fits)
        tables += fitted
        written = {row: {**cells, **further[row]} for row, cells in written.items()}
    return [table for table in tables if table.rows], frame_of(written)


def _share(estimate: Estimate) -> str:
    """Show a share of one, whose interval ends at 0 and 1."""
    value, interval = estimate
    return numbers.percent_with_interval(value, interval and (max(interval[0], 0.0), min(interval[1], 1.0)))


def _points(estimate: Estimate) -> str:
    return numbers.NOTHING if np.isnan(estimate[0]) else numbers.points_with_interval(*estimate)


def _scaled(text: Callable[[float], str], estimate: Estimate) -> str:
    """Show the exponential of an estimate, with its interval."""
    value, interval = estimate
    ends = numbers.NO_INTERVAL if interval is None else f"[{', '.join(text(np.exp(end)) for end in interval)}]"
    return f"{text(float(np.exp(value)))} {ends}"


def _fit_tables(results: Results, fits: Fits) -> tuple[list[Table], Cells]:
    """The parameters of every method, and its ceiling and compute against the reference method's; and the CSV's."""
    title, pairs = results.reference_title, _references(results, fits.courses)
    against = {row: fits.features(row, other) for row, other in pairs.items()}
    limited = [row for row, other in pairs.items() if fits.has_ceiling(row) and fits.has_ceiling(other)]
    ceilings = _p_values({row: against[row] for row in limited}, _CEILING)
    computes = _p_values(against, _COMPUTE)
    reached = " / ".join(f"{100 * target:.0f}" for target in fits.targets.values())
    references = [row for row in fits.courses if row.method == results.reference_method]
    base = " / ".join(numbers.percent(float(fits.curves[row].base[0])) for row in references)

    def verdict(row: Condition, index: int, p_value: float | None, words: Sequence[str]) -> str:
        is_certain = p_value is not None and p_value <= 0.05
        return words[int(against[row].estimate[index] > 0)] if is_certain else "not distinguishable"

    parameters, versus, written = Texts(), Texts(), Cells()
    for row, course in fits.courses.items():
        features = fits.features(row).estimates()
        ceiling, exponent, midpoint, compute, half = features
        is_seen = np.exp(fits.curves[row].log_midpoint[0]) <= course.compute.max()
        parameters[row] = {
            "Method": row.title,
            "A (%)": _share(ceiling) if fits.has_ceiling(row) else "not identified",
            "B": _scaled("{:.2f}".format, exponent),
            "C_mid (tokens)": _scaled(numbers.count, midpoint),
            "C_mid within": "yes" if is_seen else "no",
            f"Tokens to {reached} %": _scaled(numbers.count, compute) if fits.is_reached(row) else "not reached",
            "Second half, predicted - seen (pp)": _points(half),
        }
        written[row] = {}
        for name, feature in zip(FEATURES, features, strict=True):
            written[row] |= estimate_columns(name, feature)
        ceiling_p, compute_p = ceilings.get(row), computes.get(row)
        written[row] |= {"ceiling_p_holm": ceiling_p, "compute_p_holm": compute_p}
        if row in pairs:
            less, both = against[row].estimates(), row in limited
            ratio = _scaled("{:.2f}".format, less[_COMPUTE]) if fits.is_reached(row) else "not reached"
            ends = verdict(row, _CEILING, ceiling_p, ("lower", "higher")) if both else "not identified"
            versus[row] = {
                "Method": row.title,
                "A (pp)": _points(less[_CEILING]) if both else "not identified",
                "p (Holm)": numbers.p_value(ceiling_p),
                "Ceiling": ends,
                f"Tokens to {reached} %, ratio": ratio,
                "p (Holm) ": numbers.p_value(compute_p),
                "Compute": verdict(row, _COMPUTE, compute_p, ("less", "more")),
            }
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
    heading = f"Compute-performance curves against {title}"
    tables = [
        table_of_texts("scaling", "Compute-performance curves", parameters, [note], caption),
        table_of_texts("scaling_versus", heading, versus, [comparison]),
    ]
    return tables, written
