"""The table of what a mean hides: seeds that fell, the interquartile mean, and the worst and the best seed."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evals.core.random import stream_seed
from evals.core.records import BASE, Condition, Interval
from evals.results import Results
from evals.statistics import robust
from evals.statistics.accuracy import FloatArray, IntArray
from evals.statistics.suite import Suite
from evals.tables import numbers
from evals.tables.layout import Cells, Table, Texts, estimate_columns, interval_columns, table_of_texts, write_table

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
    bases = {run.base_model: results.rates([run]) for run in results.runs if run.method == BASE}
    suite = Suite(clusters=[results.clusters.get(name) for name in results.benchmarks])
    falls = {}
    for row in results.conditions:
        if row.method != BASE:
            fallen = [run.run for run in row.runs if run.run in (results.fallen or ())]
            known = [(run, bases[run.base_model]) for run in row.runs if run.base_model in bases]
            below = [run.run for run, base in known if robust.fell_below(results.rates([run]), base, suite)]
            falls[row] = Falls(tuple(fallen), len(row.runs), tuple(below))
    return falls


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
    table, cells = robust_table(results, falls, {row: summarise(results, row) for row in falls})
    write_table(out, [table], cells, results.sources, {"resamples": RESAMPLES})


def robust_table(
    results: Results, falls: Mapping[Condition, Falls], summaries: Mapping[Condition, Summary]
) -> tuple[Table, Cells]:
    """Lay out a row for each trained method; and the CSV file."""
    # The levels by which the differences to the reference method vary, as far as they are known.
    levels = list(dict.fromkeys(level for row in results.comparisons.values() for level in row.variance_shares or ()))
    shown, written = Texts(), Cells()
    for row, fallen in falls.items():
        summary, versus = summaries[row], results.comparison(row, results.reference_method)
        middle = summary.interquartile_mean, summary.interval
        texts = {
            "Method": row.title,
            "Fell": fallen.text,
            "Below base": str(len(fallen.below)),
            f"avg@{results.k} (%)": numbers.percent(summary.mean),
            "IQM (%)": numbers.percent_with_interval(*middle),
            "as rliable draws": numbers.bounds(summary.rliable_interval),
            "Worst seed": numbers.percent(summary.worst),
            "Best seed": numbers.percent(summary.best),
        }
        cells: dict[str, Any] = {"model": row.model, "method": row.method, "title": row.title, "seeds": fallen.seeds}
        cells["fell"] = len(fallen.runs)
        cells |= interval_columns(fallen.interval, "fell_")
        cells |= {"fallen_runs": " ".join(fallen.runs), "below_base_runs": " ".join(fallen.below)}
        cells |= {"average": summary.mean, **estimate_columns("interquartile_mean", middle)}
        cells |= interval_columns(summary.rliable_interval, "interquartile_mean_rliable_")
        cells |= {"worst_seed": summary.worst, "best_seed": summary.best}
        if levels:
            shares = (versus.variance_shares if versus else None) or {}
            said = " / ".join(numbers.whole(100 * share) for share in shares.values()) or numbers.NOTHING
            texts[f"Variance by {', '.join(levels)} (%)".replace("_", " ")] = said
            cells |= {f"variance_{level}": shares.get(level) for level in levels}
        if "base_models" in levels:
            interval = versus.interval_over_bases if versus else None
            over_bases = numbers.points_with_interval(versus.difference if versus else None, interval)
            texts[f"Versus {results.reference_title}, over base models (pp)"] = over_bases
            cells |= interval_columns(interval, "over_base_models_")
        shown[row] = texts
        written[row] = cells
    level = round(100 * results.confidence)
    note = (
        f"{falls_note(results)} The numbers of this table are of all seeds, those that fell too. Below base: seeds "
        "that ended below their base model (paired 95 % interval over problems). "
        "IQM: mean of the middle half of all scores of seeds on benchmarks (arXiv 2108.13264). "
        f"Brackets: {level} % bootstrap over seeds, each drawn once for all benchmarks, for it is one policy; rliable "
        "draws seeds for each benchmark alone, as if they were other policies. Neither knows of other problems, and "
        "few seeds make both too short: verdicts rest on the main table."
    )
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
    table = table_of_texts("robust", title, shown, [note, results.extraction_note], caption)
    return table, written
