"""The findings of a study in words, no stronger than its statistics."""

from collections.abc import Sequence

from evals.core.records import BASE, Comparison, Condition, Verdict
from evals.results import Results
from evals.tables import numbers
from evals.tables.main import average_text, controls_note, difference_text

_VERDICTS = {
    Verdict.BETTER: "Better than {reference}",
    Verdict.WORSE: "Worse than {reference}",
    Verdict.NOT_DISTINGUISHABLE: "Not distinguishable from {reference} at this size",
    Verdict.NO_CONTRAST: "No contrast with {reference}, so that more seeds would not show a difference",
}


def best_condition(results: Results, model: str) -> Condition:
    """The trained method with the highest average on a model; the base model itself where none was trained."""
    conditions = [condition for condition in results.conditions if condition.model == model]
    trained = [condition for condition in conditions if condition.method != BASE] or conditions
    return max(trained, key=lambda condition: results.average(condition).value)


def findings(results: Results) -> list[str]:
    """Say for each model which method is best and what it gained, and what differs from the reference and what not."""
    sentences = []
    for model in dict.fromkeys(run.model for run in results.runs):
        conditions = [condition for condition in results.conditions if condition.model == model]
        sentences.append(_best(results, best_condition(results, model), conditions))
        compared = [
            (condition.title, comparison)
            for condition in conditions
            if condition.method != BASE
            and (comparison := results.comparison(condition, results.reference_method)) is not None
        ]
        for verdict, words in _VERDICTS.items() if compared else ():
            members = [
                f"{title} ({numbers.points(comparison.difference)}, {_p_values(comparison)})"
                for title, comparison in compared
                if comparison.verdict == verdict
            ]
            sentences.append(f"{words.format(reference=results.reference_title)}: {'; '.join(members) or 'none'}.")
        effects = [row.minimum_detectable_effect for _, row in compared if row.minimum_detectable_effect is not None]
        if effects:
            size = " to ".join(dict.fromkeys([numbers.percent(min(effects)), numbers.percent(max(effects))]))
            missed = "would often have been missed (power under 80 %)"
            sentences.append(f"A true difference smaller than {size} points {missed}.")
    return [*sentences, *filter(None, [controls_note(results)])]


def _best(results: Results, best: Condition, conditions: Sequence[Condition]) -> str:
    suite = f"avg@{results.samples_per_problem} over {len(results.benchmarks)} benchmarks"
    sentence = f"{best.title} has the highest average, {average_text(results.average(best))} % {suite}"
    gain = results.comparison(best, BASE)
    base = next((condition for condition in conditions if condition.method == BASE), None)
    if gain is not None and base is not None:
        sentence += (
            f": {difference_text(gain)} points over the base model's {numbers.percent(results.average(base).value)} % "
            f"(paired {_p_values(gain)})"
        )
    trained = sum(condition.method != BASE for condition in conditions)
    return f"{sentence}. Being the highest of {trained} is itself no test; the comparisons below are."


def _p_values(comparison: Comparison) -> str:
    after_holm = _equals(comparison.p_value_holm).removeprefix("= ")
    return f"p {_equals(comparison.p_value)}, after Holm {after_holm}"


def _equals(p_value: float | None) -> str:
    text = numbers.p_value(p_value)
    return text.replace("<", "< ") if text.startswith("<") else f"= {text}"
