"""The study's findings in words, no stronger than its statistics."""

from __future__ import annotations

from collections.abc import Sequence

from evals.core.records import ALL_BENCHMARKS, BASE, Comparison, Condition
from evals.results import Results
from evals.tables import numbers

_VERDICTS = (
    ("better", "Better than {reference}"),
    ("worse", "Worse than {reference}"),
    ("not distinguishable", "Not distinguishable from {reference} at this size"),
)


def best_condition(results: Results, model: str) -> Condition:
    """The trained method with the highest average on a model; the base model itself where none was trained."""
    conditions = [condition for condition in results.conditions if condition.model == model]
    trained = [condition for condition in conditions if condition.method != BASE] or conditions
    return max(trained, key=lambda condition: results.average(condition).value)


def findings(results: Results) -> list[str]:
    """Sentences: per model the best method and its gain, then what differs from the reference and what does not."""
    sentences = []
    for model in dict.fromkeys(run.model for run in results.runs):
        conditions = [condition for condition in results.conditions if condition.model == model]
        sentences.append(_best(results, best_condition(results, model), conditions))
        compared = [
            (condition, comparison)
            for condition in conditions
            if (comparison := results.comparison(condition, results.reference_method, ALL_BENCHMARKS)) is not None
            and condition.method != BASE
        ]
        sentences += _verdicts(results, compared)
        sentences += _resolution([comparison for _, comparison in compared])
    return sentences


def _best(results: Results, best: Condition, conditions: Sequence[Condition]) -> str:
    k = results.samples_per_problem
    value = results.average(best)
    sentence = (
        f"{best.title} has the highest average, {numbers.percent_with_interval(value.value, value.confidence_interval)}"
        f" % avg@{k} over {len(results.benchmarks)} benchmarks"
    )
    gain = results.comparison(best, BASE, ALL_BENCHMARKS)
    base = next((condition for condition in conditions if condition.method == BASE), None)
    if gain is not None and base is not None:
        before = results.average(base).value
        sentence += (
            f": {numbers.points_with_interval(gain.difference, gain.confidence_interval)} points over the base model's "
            f"{numbers.percent(before)} % (paired p {_equals(gain.p_value)})"
        )
    trained = sum(condition.method != BASE for condition in conditions)
    return f"{sentence}. Being the highest of {trained} is itself no test; the comparisons below are."


def _verdicts(results: Results, compared: Sequence[tuple[Condition, Comparison]]) -> list[str]:
    sentences = []
    for verdict, words in _VERDICTS:
        members = [
            f"{condition.title} ({numbers.points(comparison.difference)}, p {_equals(comparison.p_value)})"
            for condition, comparison in compared
            if comparison.verdict == verdict
        ]
        opening = words.format(reference=results.reference_title)
        sentences.append(f"{opening}: {'; '.join(members) if members else 'none'}.")
    return sentences if compared else []


def _resolution(compared: Sequence[Comparison]) -> list[str]:
    effects = [row.minimum_detectable_effect for row in compared if row.minimum_detectable_effect is not None]
    if not effects:
        return []
    low, high = numbers.percent(min(effects)), numbers.percent(max(effects))
    size = low if low == high else f"{low} to {high}"
    return [f"A true difference smaller than {size} points would often have been missed (power under 80 %)."]


def _equals(p_value: float | None) -> str:
    text = numbers.p_value(p_value)
    return text.replace("<", "< ") if text.startswith("<") else f"= {text}"
