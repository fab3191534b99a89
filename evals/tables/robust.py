"""The table of what a mean hides: seeds that fell, the interquartile mean, and the worst and the best seed."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from evals.core.random import stream_seed
from evals.core.records import BASE, Condition, Interval, Run
from evals.results import Results
from evals.statistics import robust
from evals.statistics.accuracy import FloatArray, IntArray
from evals.statistics.clusters import cluster_values
from evals.tables import numbers
from evals.tables.layout import METHOD, Column, Table, field_of, interval_columns, make_table, table_frame, write_table

RESAMPLES = 10_000


def falls_note(results: Results) -> str:
    """Say by which rule runs fell, and what became of them."""
    rule = results.fall
    return (
        f"Fell: seeds whose training reward or held-out score lost {rule.points:g} points or more from its best, and "
        f"{100 * rule.share:g} % or more of what it had gained; brackets: exact 95 % interval of the share, in %. "
        "Scores, differences and their verdicts are of the seeds that did not fall; the shares that fell have a "
        "verdict of their own (Boschloo's exact test, Holm over the methods)."
    )


@dataclass(frozen=True)
class Falls:
    """The runs of a method that fell, of how many seeds."""

    runs: tuple[str, ...]
    seeds: int
    below: tuple[str, ...] = ()  # the runs that ended below their base model, whether they fell or not

    @property
    def interval(self) -> Interval:
        """The interval of the share of all seeds that would fall."""
        return robust.share_interval(len(self.runs), self.seeds)

    @property
    def text(self) -> str:
        """1 of 3 [1, 91]."""
        low, high = self.interval
        return f"{len(self.runs)} of {self.seeds} [{100 * low:.0f}, {100 * high:.0f}]"


def falls_of(results: Results) -> dict[Condition, Falls]:
    """Find the runs of every trained method that fell, and those that ended below their base model."""
    bases = {run.base_model: _accuracies(results, run) for run in results.runs if run.method == BASE}
    falls = {}
    for row in results.conditions:
        if row.method != BASE:
            fallen = [run.run for run in row.runs if run.run in (results.fallen or ())]
            known = [(run, bases[run.base_model]) for run in row.runs if run.base_model in bases]
            below = [run.run for run, base in known if robust.fell_below(_accuracies(results, run), base)]
            falls[row] = Falls(tuple(fallen), len(row.runs), tuple(below))
    return falls


def _accuracies(results: Results, run: Run) -> list[FloatArray]:
    """The accuracies [N] of a run on each benchmark, of problems that are near copies a value for each cluster."""
    rates = zip(results.benchmarks, results.rates([run]), strict=True)
    return [cluster_values(of[0], results.clusters.get(name)) for name, of in rates]


@dataclass(frozen=True)
class Summary:
    """The scores of a method's seeds in a few numbers, fractions of one.

    Both intervals are of the interquartile mean: with seeds drawn once for all benchmarks, and as rliable draws them.
    One seed has none.
    """

    mean: float
    interquartile_mean: float
    interval: Interval | None
    rliable_interval: Interval | None
    worst: float
    best: float


def score_matrix(results: Results, condition: Condition) -> FloatArray:
    """The scores [S, M] of a method's seeds on the benchmarks."""
    rows = [[results.scores[run.run, name].average_at_k for name in results.benchmarks] for run in condition.runs]
    return np.array(rows)


def bootstrap_draws(scores: FloatArray, condition: Condition, resamples: int, together: bool) -> IntArray:
    """Draws of a method's seeds [R, S, M], from a stream of the method's own."""
    stream = stream_seed("seeds", condition.model, condition.method, together)
    shape = (scores.shape[0], scores.shape[1])
    return robust.draw_seeds(shape, np.random.default_rng(stream), resamples, together=together)


def summarise(results: Results, condition: Condition) -> Summary:
    """Summarise a method's seeds."""
    scores = score_matrix(results, condition)

    def interval(together: bool) -> Interval | None:
        draws = bootstrap_draws(scores, condition, RESAMPLES, together)
        replicates = robust.stratified_bootstrap(scores, robust.interquartile_mean, draws)
        low, high = robust.percentile_interval(replicates, results.confidence)
        return (float(low), float(high)) if len(scores) > 1 else None

    by_seed, middle = scores.mean(axis=1), float(robust.interquartile_mean(scores))
    ends = float(by_seed.min()), float(by_seed.max())
    return Summary(float(scores.mean()), middle, interval(together=True), interval(together=False), *ends)


def write_robust_table(results: Results, out: Path) -> None:
    """Write the seeds that fell, and averages that one seed does not decide."""
    falls = falls_of(results)
    summaries = {row: summarise(results, row) for row in falls}
    frame = table_frame(_columns(results, falls, summaries), list(falls))
    write_table(out, [robust_table(results, falls, summaries)], frame, results.sources, {"resamples": RESAMPLES})


def _columns(
    results: Results, falls: Mapping[Condition, Falls], summaries: Mapping[Condition, Summary]
) -> list[Column[Condition]]:
    levels, known = variance_levels(results), partial(results.comparison, against=results.reference_method)

    def fallen(of_row: Falls) -> dict[str, Any]:
        counts = {"seeds": of_row.seeds, "fell": len(of_row.runs), **interval_columns(of_row.interval, "fell_")}
        return {**counts, "fallen_runs": " ".join(of_row.runs), "below_base_runs": " ".join(of_row.below)}

    def middle(summary: Summary) -> str:
        return numbers.percent_with_interval(summary.interquartile_mean, summary.interval)

    def middle_cells(summary: Summary) -> dict[str, Any]:
        interval = interval_columns(summary.interval, "interquartile_mean_")
        return {"interquartile_mean": summary.interquartile_mean, **interval}

    def shares(known: Mapping[str, float] | None) -> str:
        return " / ".join(numbers.whole(100 * share) for share in (known or {}).values()) or numbers.NOTHING

    def share_cells(known: Mapping[str, float] | None) -> dict[str, Any]:
        return {f"variance_{level}": (known or {}).get(level) for level in levels}

    def over_bases(row: Condition) -> str:
        against = known(row)
        return (
            numbers.points_with_interval(against.difference, against.interval_over_bases)
            if against
            else numbers.NOTHING
        )

    of_levels: list[Column[Condition]] = []
    if levels:
        header = f"Variance by {', '.join(levels)} (%)".replace("_", " ")
        of_levels.append(Column(header, field_of(known, "variance_shares"), shares, share_cells))
    if "base_models" in levels:
        header, cells = f"Versus {results.reference_title}, over base models (pp)", "over_base_models_"
        of_levels.append(Column(header, over_bases))
        interval = field_of(known, "interval_over_bases")
        of_levels.append(Column("", interval, csv=partial(interval_columns, prefix=cells)))
    rliable = partial(interval_columns, prefix="interquartile_mean_rliable_")
    return [
        *METHOD,
        Column("Fell", lambda row: falls[row], lambda of_row: of_row.text, fallen),
        Column("Below base", lambda row: len(falls[row].below)),
        Column(f"avg@{results.k} (%)", lambda row: summaries[row].mean, numbers.percent, "average"),
        Column("IQM (%)", lambda row: summaries[row], middle, middle_cells),
        Column("as rliable draws", lambda row: summaries[row].rliable_interval, numbers.bounds, rliable),
        Column("Worst seed", lambda row: summaries[row].worst, numbers.percent, "worst_seed"),
        Column("Best seed", lambda row: summaries[row].best, numbers.percent, "best_seed"),
        *of_levels,
    ]


def variance_levels(results: Results) -> list[str]:
    """The levels by which the differences to the reference method vary, as far as they are known."""
    return list(dict.fromkeys(level for row in results.comparisons.values() for level in row.variance_shares or ()))


def robust_table(results: Results, falls: Mapping[Condition, Falls], summaries: Mapping[Condition, Summary]) -> Table:
    """Lay out a row for each trained method."""
    level = round(100 * results.confidence)
    note = (
        f"{falls_note(results)} The numbers of this table are of all seeds, those that fell too. Below base: seeds "
        "that ended below their base model (paired 95 % interval over problems). "
        "IQM: mean of the middle half of all scores of seeds on benchmarks (arXiv 2108.13264). "
        f"Brackets: {level} % bootstrap over seeds, each drawn once for all benchmarks, for it is one policy; rliable "
        "draws seeds for each benchmark alone, as if they were other policies. Neither knows of other problems, and "
        "few seeds make both too short: verdicts rest on the main table."
    )
    levels = variance_levels(results)
    if levels:
        note += (
            f" Variance: the share of each level in the variance of the mean difference to {results.reference_title}. "
            "More of what has a large share makes the difference more certain."
        )
    if "base_models" in levels:
        note += (
            " Verdicts are of these very base models; over base models: the interval if they are a sample of all that "
            "there could be, with one degree of freedom less than there are base models."
        )
    title = "Seeds that fell, and averages that one seed does not decide"
    caption = f"Of all seeds. IQM: the mean of the middle half of all scores; brackets: {level} % bootstrap over seeds."
    columns = _columns(results, falls, summaries)
    return make_table("robust", title, columns, list(falls), [note, results.extraction_note], caption)
