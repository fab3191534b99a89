"""The findings of a study in words, no stronger than its statistics."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from evals.core.comparisons import Comparison, Verdict
from evals.core.errors import counted
from evals.core.records import BASE, Condition
from evals.figures.efficiency import COSTS
from evals.results import Results
from evals.statistics.robust import share_interval
from evals.tables import numbers
from evals.tables.differences import average_text, difference_text, repeated_note
from evals.tables.main import Costs
from evals.tables.notes import controls_note
from evals.tables.robust import Summary
from rlvr.report.charts import HELD_OUT, at_the_end

_VERDICTS = {
    Verdict.BETTER: "Better than {reference}",
    Verdict.WORSE: "Worse than {reference}",
    Verdict.EQUIVALENT: "Equivalent to {reference} in score, within the margin",
    Verdict.UNDECIDED: "Not decided against {reference} when the study ended",
    Verdict.NOT_DISTINGUISHABLE: "Not distinguishable from {reference} at this size",
    Verdict.NO_CONTRAST: "No contrast with {reference}, so that more seeds are unlikely to show a difference",
}


def best_condition(results: Results, model: str) -> Condition:
    """The trained method with the highest average on a model, no control; the base model where none was trained."""
    conditions = [condition for condition in results.conditions if condition.model == model]
    trained = [condition for condition in conditions if condition.method not in (BASE, *_controls(results))]
    return max(trained or conditions, key=lambda condition: results.average(condition).value)


def findings(results: Results) -> list[str]:
    """Say for each model which method is best and what it gained, and what differs from the reference and what not."""
    sentences = []
    impossible = {Verdict.NOT_DISTINGUISHABLE} if results.looks else {Verdict.EQUIVALENT, Verdict.UNDECIDED}
    verdicts = {verdict: words for verdict, words in _VERDICTS.items() if verdict not in impossible}
    for model in _models(results):
        conditions = [condition for condition in results.conditions if condition.model == model]
        sentences.append(_best(results, best_condition(results, model), conditions))
        compared = _compared(results, conditions)
        for verdict, words in verdicts.items() if compared else ():
            members = [
                f"{row.title}{', a control' * (row.method in _controls(results))} "
                f"({numbers.points(comparison.difference)}, {_p_values(comparison)})"
                for row, comparison in compared
                if comparison.verdict == verdict
            ]
            sentences.append(f"{words.format(reference=results.reference_title)}: {'; '.join(members) or 'none'}.")
        sentences += _falls(results, compared)
        effects = [row.minimum_detectable_effect for _, row in compared if row.minimum_detectable_effect is not None]
        if effects:
            size = " to ".join(dict.fromkeys([numbers.percent(min(effects)), numbers.percent(max(effects))]))
            missed = "would often have been missed (power under 80 %)"
            sentences.append(f"A true difference smaller than {size} points {missed}.")
    return [*sentences, *filter(None, [repeated_note(results), controls_note(results)])]


def _falls(results: Results, compared: Sequence[tuple[Condition, Comparison]]) -> list[str]:
    """Say which methods fell more or less often than the reference, and what is known where no run fell."""
    known = [(of.title, row) for of, row in compared if row.fell is not None and row.against_fell is not None]
    if not known:
        return []
    first, most = known[0][1], max(share_interval(row.fell or 0, row.seeds)[1] for _, row in known)
    said = [
        f"{title} {row.fell} of {row.seeds} ({row.falls or 'no difference shown'})"
        for title, row in known
        if row.fell or row.falls
    ]
    reference = f"{results.reference_title} {first.against_fell} of {first.against_seeds}"
    if not said and not first.against_fell:
        return [f"No run fell; with so few seeds up to {100 * most:.0f} % of a method's runs may still fall."]
    return [f"Runs that fell: {'; '.join([reference, *said])}. Verdicts on scores are of the other runs."]


def question(results: Results) -> str:
    """What the study asks, the report's heading."""
    candidates, models = _candidates(results), len(_models(results))
    if not candidates:
        return f"What does {results.reference_title} gain over the base model?"
    titles = {row.method: row.title for row in results.conditions}
    which = f"any of {len(candidates)} methods" if len(candidates) > 1 else titles[next(iter(candidates))]
    on_any = f" on any of {models} models" if models > 1 else ""
    return f"Is {which} better than {results.reference_title}{on_any}?"


def answer(results: Results, costs: Costs) -> str:
    """Say the verdict where the study asks about one method on one model; empty otherwise."""
    candidates, reference = _candidates(results), results.reference_title
    if len(candidates) != 1 or len(_models(results)) != 1:
        return ""
    ((method, (comparison,)),) = candidates.items()
    parts = [f"{difference_text(comparison)} points after {comparison.seeds} seeds"]
    if (effect := comparison.minimum_detectable_effect) is not None:
        parts.append(f"differences smaller than {numbers.percent(effect)} are often missed")
    seconds = {row.method: cost.training_seconds for row, cost in costs.items()}
    mine, other = seconds.get(method), seconds.get(results.reference_method)
    if mine and other:
        parts.append(f"{mine / other:.2g} times the seconds of {reference}")
    return f"{_VERDICTS[comparison.verdict].format(reference=reference)}: {'; '.join(parts)}."


def headline(results: Results) -> list[tuple[str, str]]:
    """Three numbers and what they are: verdicts, the highest score, and the size of what would have been missed.

    Of several models a method counts as better or worse where it is so on any, and as equivalent where it is on all.
    """
    candidates, models = _candidates(results), _models(results)
    several = len(models) > 1
    verdicts = [[comparison.verdict for comparison in on_models] for on_models in candidates.values()]
    better, worse = (sum(verdict in on_models for on_models in verdicts) for verdict in (Verdict.BETTER, Verdict.WORSE))
    numbers_shown = []
    if len(candidates) * len(models) > 1:  # of one the answer says it
        words = f"methods better than {results.reference_title}, {worse} worse"
        words += f", on one or more of {len(models)} models" if several else ""
        equivalent = f", {verdicts.count([Verdict.EQUIVALENT] * len(models))} equivalent{' on all' if several else ''}"
        words += equivalent if results.looks else " (after Holm)"
        words += "; controls not counted" if results.controls else ""
        numbers_shown.append((f"{better} of {len(candidates)}", words))
    bests = [best_condition(results, model) for model in models]
    gains = [(results.average(best).value, best, gain) for best in bests if (gain := results.comparison(best, BASE))]
    if gains:
        highest, best, gain = max(gains, key=lambda row: row[0])
        average = numbers.percent(highest)
        words = (
            f"points over the base model: {best.title}, the highest, at {average} % avg@{results.samples_per_problem}"
        )
        numbers_shown.append((numbers.points(gain.difference), words))
    compared = [comparison for on_models in candidates.values() for comparison in on_models]
    effects = [row.minimum_detectable_effect for row in compared if row.minimum_detectable_effect is not None]
    if effects:
        words = "points: a smaller true difference would often have been missed (median over the comparisons)"
        numbers_shown.append((numbers.percent(median(effects)), words))
    return numbers_shown


def alternatives(results: Results, shown: dict[str, Any], summaries: Mapping[Condition, Summary]) -> dict[str, str]:
    """Say what the figures show, for who does not see them.

    Args:
        results: of the study.
        shown: the curves of the report (:func:`rlvr.report.charts.charts`).
        summaries: of every trained method.
    """
    sentences = findings(results)
    rewards = {title: 100 * reward for title, reward in at_the_end(shown, "Reward").items()}
    reward = _ranked("Mean reward of the last step", rewards)
    held_out = _ranked("Mean score at the end", at_the_end(shown, f"{HELD_OUT} over {COSTS['tokens_generated']}"))
    middles = {row.title: 100 * summary.interquartile_mean for row, summary in summaries.items()}
    averages = {row.title: 100 * results.average(row).value for row in summaries}
    highest = " ".join(sentence for sentence in sentences if "highest average" in sentence)
    verdicts = " ".join(sentence for sentence in sentences if sentence.startswith(("Better than", "Worse than")))
    return {
        "scores": f"Scores of every method on every benchmark with intervals. {highest}",
        "differences": f"Paired differences of every method to the reference method with intervals. {verdicts}",
        "pass_at_k": "Problems with a right one among k responses, of every method and of its base model.",
        "profiles": f"Performance profiles of every method. {_ranked('Interquartile means', middles)}",
        "cost_curves": f"Training reward of every method over tokens, optimizer steps and seconds. {reward}",
        "compute_performance": f"Scores on held-out problems over tokens with fitted curves. {held_out}",
        "training_curves": f"Training curves of every method. {reward}",
        "reward_curves": f"Reward during training, a panel for every method. {reward}",
        "sizes": f"Paired differences of every method to the reference method, by the size of the model. {verdicts}",
        "validation_curves": "Scores along every training, by which its best policy was chosen.",
        "score_curves": f"Scores of every method along its training. {_ranked('Mean score at the end', averages)}",
    }


def _ranked(what: str, values: Mapping[str, float]) -> str:
    """Every method's percentage, the largest first; nothing without methods."""
    told = [f"{title} {value:.1f} %" for title, value in sorted(values.items(), key=lambda item: -item[1])]
    return f"{what}: {', '.join(told)}." if told else ""


def _compared(results: Results, conditions: Sequence[Condition]) -> list[tuple[Condition, Comparison]]:
    """The methods that are compared with the reference method, and how they compare."""
    return [
        (row, comparison)
        for row in conditions
        if row.method != BASE and (comparison := results.comparison(row, results.reference_method)) is not None
    ]


def _candidates(results: Results) -> dict[str, list[Comparison]]:
    """The comparisons of every method but the controls with the reference method, one for each model."""
    candidates: dict[str, list[Comparison]] = {}
    for row, comparison in _compared(results, results.conditions):
        if row.method not in _controls(results):
            candidates.setdefault(row.method, []).append(comparison)
    return candidates


def _models(results: Results) -> list[str]:
    return list(dict.fromkeys(run.model for run in results.runs))


def _controls(results: Results) -> list[str]:
    return list(dict(results.controls or {}).values())


def _best(results: Results, best: Condition, conditions: Sequence[Condition]) -> str:
    suite = f"avg@{results.samples_per_problem} over {counted(len(results.benchmarks), 'benchmark')}"
    sentence = f"{best.title} has the highest average, {average_text(results.average(best))} % {suite}"
    gain = results.comparison(best, BASE)
    base = next((condition for condition in conditions if condition.method == BASE), None)
    if gain is not None and base is not None:
        sentence += (
            f": {difference_text(gain)} points over the base model's {numbers.percent(results.average(base).value)} % "
            f"(paired {_p_values(gain)})"
        )
    trained = sum(condition.method not in (BASE, *_controls(results)) for condition in conditions)
    return f"{sentence}. Having the highest of {counted(trained, 'score')} proves nothing; see the tests below."


def _p_values(comparison: Comparison) -> str:
    if comparison.p_value_holm is None:  # one seed has none, and that of a look decides nothing
        return f"after {comparison.seeds} seed{'s' * (comparison.seeds != 1)}"
    after_holm = _equals(comparison.p_value_holm).removeprefix("= ")
    return f"p {_equals(comparison.p_value)}, after Holm {after_holm}"


def _equals(p_value: float | None) -> str:
    text = numbers.p_value(p_value)
    return text.replace("<", "< ") if text.startswith("<") else f"= {text}"
