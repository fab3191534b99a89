"""Averages and differences of methods: their texts and columns, and the tables of differences and of decisions."""

from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import Any

from evals.core.comparisons import Comparison, Look, Verdict
from evals.core.records import ALL_BENCHMARKS, BASE, Condition
from evals.results import Results
from evals.statistics.difference import Average
from evals.tables import numbers
from evals.tables.layout import METHOD, Column, Row, Table, field_of, make_table


def average_text(average: Average) -> str:
    """An average in per cent, with its interval."""
    return numbers.percent_with_interval(average.value, average.confidence_interval)


def difference_text(comparison: Comparison | None) -> str:
    """A difference in percentage points, with its interval."""
    if comparison is None:
        return numbers.NOTHING
    return numbers.points_with_interval(comparison.difference, comparison.confidence_interval)


def tested_columns(header: str, tested: Callable[[Row], Any]) -> list[Column[Row]]:
    """The columns of a row's comparison, or of another tested difference: with its interval, p-values, MDE."""
    return [
        Column(header, tested, difference_text),
        Column("p", field_of(tested, "p_value"), numbers.p_value),
        Column("p (Holm)", field_of(tested, "p_value_holm"), numbers.p_value),
        Column("MDE (pp)", field_of(tested, "minimum_detectable_effect"), numbers.percent),
    ]


def compared_columns(results: Results) -> list[Column[Condition]]:
    """The columns of the comparison with the reference method: difference, p-values, MDE, verdict."""
    reference = results.reference_title

    versus = partial(results.comparison, against=results.reference_method)
    return [
        *tested_columns(f"Versus {reference} (pp)", versus),
        Column(f"Verdict versus {reference}", lambda row: results.verdict(row) or numbers.NOTHING),
    ]


def differences_table(results: Results, against: str, against_title: str) -> Table:
    """Lay out the differences of all methods to ``against`` on each benchmark and over all of them."""

    def column(name: str) -> Column[Condition]:
        return Column(name, lambda condition: results.comparison(condition, against, name), _marked)

    rows = [condition for condition in results.conditions if condition.method not in (BASE, against)]
    is_decided = results.looks and against == results.reference_method
    of_mean = "with a verdict by the decisions" if is_decided else "p after Holm over the methods"
    note = (
        f"Paired differences to {against_title} in percentage points, p in parentheses, after Holm over the "
        f"benchmarks; all: {results.mean_text}, {of_mean}. "
        "An asterisk marks a verdict of better or worse; anything else is not distinguishable at this size, or has no "
        "contrast with the reference."
    )
    columns = [*METHOD, *map(column, (*results.benchmarks, ALL_BENCHMARKS))]
    title, notes = f"Differences to {against_title} (pp)", [note, results.extraction_note]
    return make_table(f"differences_to_{against}", title, columns, rows, notes)


def _marked(comparison: Comparison | None) -> str:
    """A difference on one benchmark, with an asterisk if it has a verdict, and its p-value."""
    if comparison is None:
        return numbers.NOTHING
    mark = "*" if comparison.verdict.is_difference else ""
    p_value = "" if comparison.p_value_holm is None else f" ({numbers.p_value(comparison.p_value_holm)})"
    return f"{numbers.points(comparison.difference)}{mark}{p_value}"


def corrected_note(results: Results) -> str:
    """Say how p-values and verdicts are corrected for the number of methods."""
    if results.looks:
        return (
            "Methods were looked at several times and trained until their verdict was certain (the table of "
            "decisions). Brackets beside the reference are those of one comparison and hold at every look; the "
            "reference counts with all of its seeds, those after the method's last look too. p is that of one look and "
            "decides nothing. MDE: the smallest true difference that this study, with its looks, finds in 80 % of "
            "repetitions; a smaller one may end as equivalent or as not decided."
        )
    against, title = results.drawn_against
    compared = [results.comparison(row, against) for row in results.conditions]
    return (
        f"p and brackets are those of one comparison. p (Holm) is corrected over the study's comparisons with {title} "
        f"({sum(row is not None and row.p_value is not None for row in compared)}), and verdicts follow it: brackets "
        'without 0 may stand beside "not distinguishable". MDE: the smallest true difference that one comparison finds '
        "in 80 % of studies, before Holm."
    )


def by_look(results: Results) -> Table:
    """Lay out the path of every comparison over the looks; no rows in a study with one look."""
    looks = {(look.model, look.method, look.seeds): look for look in results.looks}
    rows = [row for row in results.conditions if any(key[:2] == (row.model, row.method) for key in looks)]
    level, versus = results.level or 0.05, partial(results.comparison, against=results.reference_method)

    def decision(look: Look | None) -> str:
        if look is None:
            return numbers.NOTHING
        words, distance = look.verdict or look.falls or "goes on", _distance(look, results.margin)
        words += "" if distance is None else f" by {100 * distance:.2f}"
        return f"{numbers.points_with_interval(look.difference, look.interval)} {words}"

    def at(seeds: int) -> Column[Condition]:
        return Column(f"{seeds} seeds", lambda row: looks.get((row.model, row.method, seeds)), decision)

    columns = [
        *METHOD,
        *map(at, sorted({seeds for _, _, seeds in looks})),
        Column("With all seeds of the reference", field_of(versus, "difference"), numbers.points),
        Column("Median-unbiased", field_of(versus, "median_unbiased"), numbers.points),
        Column("Undecided if repeated (%)", field_of(versus, "undecided"), numbers.percent),
    ]
    note = (
        f"Difference to {results.reference_title} in percentage points over all benchmarks. Brackets hold at every "
        f"look and for every method of the study together, with a probability of {100 - 100 * level:.3g} %; "
        "a method is decided by them: better or worse where they exclude 0, equivalent where they lie within the "
        "margin; by: the distance of the bracket's end from that border. Near 0 the next seed could have "
        "decided otherwise. A difference that ends its seeds early is on average too far from 0: the "
        "median-unbiased one is that true difference with which half of the repetitions "
        f"end above the observed one. {repeated_note(results)}"
    )
    return make_table("looks", "The decisions, look by look (pp)", columns, rows, [note, results.extraction_note])


def repeated_note(results: Results) -> str:
    """Say how near a decision was, and how often a repetition of a study that stops would decide everything.

    Nothing for other studies.
    """
    if results.all_decided is None:
        return ""
    distances = [
        (distance, look) for look in results.looks if (distance := _distance(look, results.margin)) is not None
    ]
    near = ""
    if distances:
        distance, nearest = min(distances, key=itemgetter(0))
        row = results.condition(nearest.method, nearest.model)
        by = f"by {100 * distance:.2f} points after {nearest.seeds} seeds"
        near = f"Nearest to its border was the decision on {row.title if row else nearest.method}, {by}. "
    chances = [row.undecided for row in results.comparisons.values() if row.undecided is not None]
    return (
        f"{near}A repetition with other seeds and problems, where the true differences are these, would decide all "
        f"{len(chances)} comparisons with a probability of {100 * results.all_decided:.0f} %, and leave "
        f"{sum(chances):.1f} of them not decided on average."
    )


def _distance(look: Look, margin: float | None) -> float | None:
    """The distance of a decision's interval from the border that it must not touch; None where none was taken."""
    if look.interval is None or look.verdict is None:
        return None
    low, high = look.interval
    if look.verdict is Verdict.EQUIVALENT:
        return None if margin is None else min(margin - high, low + margin)
    return max(low, -high)


def between_models_table(results: Results) -> Table:
    """Lay out every two models of a study without methods; no rows elsewhere."""
    titles = {condition.model: condition.title for condition in results.conditions}
    by_pair = {(row.model, row.against_model or "", row.benchmark): row for row in results.between_models}

    def on_benchmark(name: str) -> Column[Comparison]:
        return Column(name, lambda row: by_pair[row.model, row.against_model or "", name], _marked)

    columns: list[Column[Comparison]] = [
        Column("Model", lambda row: titles[row.model]),
        Column("Against", lambda row: titles[row.against_model or ""]),
        *map(on_benchmark, results.benchmarks),
        *tested_columns(ALL_BENCHMARKS, lambda row: row),
        Column("Model is", lambda row: row.verdict.value),
    ]
    note = (
        "Paired differences between these very models; they say nothing about how the models were trained. On a "
        "benchmark: p after Holm over the benchmarks in parentheses, and an asterisk for a verdict of better or worse. "
        f"all: {results.mean_text}, with its {round(100 * results.confidence)} % interval over problems; p (Holm) is "
        "corrected over the pairs of models, and verdicts follow it."
    )
    rows = [row for row in results.between_models if row.benchmark == ALL_BENCHMARKS]
    notes = [note, results.extraction_note]
    return make_table("between_models", "Models against each other (pp)", columns, rows, notes)
