"""The table by family: the same methods on other tasks or sizes, and whether their order is the same there."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from evals.core.errors import InvalidInput, UserError
from evals.core.random import stream_seed
from evals.core.records import BASE, Condition, Estimate
from evals.results import Results, read_directory
from evals.statistics.ranks import Means, decision_accuracy, signal_of_equal_methods, signal_to_noise
from evals.statistics.suite import weighted_mean
from evals.tables import numbers
from evals.tables.layout import Cells, Texts, estimate_columns, table_of_texts, write_table
from evals.tables.robust import score_matrix

DRAWS = 10_000
_NOTE = (
    "A family is a model and the task that it is trained on. Decision accuracy (arXiv 2504.11393): the share of pairs "
    "of methods, without controls, that the first family orders as this one does; chance is 50 %. In brackets: what "
    "95 % of repetitions of both studies by other seeds would find, which counts their noise twice and lies below the "
    "share of the true order. Signal to noise (after arXiv 2508.13144, whose noise is that of a run's last "
    "checkpoints): the largest difference between the methods that all families share over the standard deviation "
    "between seeds, beside what equal methods with as many seeds would have. Runs that fell are left out."
)


def means_of(results: Results, rows: Sequence[Condition]) -> Means:
    """The scores of methods with two seeds or more, over all benchmarks; runs that fell are left out."""
    held = [replace(row, runs=results.held(row)) for row in rows]
    scores = [weighted_mean(score_matrix(results, row).T, results.weights) for row in held]
    return Means.of(scores, [_bases(row) for row in held])


def _bases(row: Condition) -> list[int] | None:
    """The base model of each seed; None where there is one, or none has two seeds: all then vary around one mean."""
    bases = [run.base for run in row.runs if run.base is not None]
    return bases if len(set(bases)) < len(bases) else None


def candidates(results: Results, model: str) -> dict[str, Condition]:
    """The methods of a model with two seeds or more that did not fall; no controls, which are there to differ."""
    left_out = {BASE, *dict(results.controls or {}).values()}
    rows = [row for row in results.conditions if row.model == model and row.method not in left_out]
    return {row.method: row for row in rows if len(results.standing(row)) > 1}


def signals(results: Results, rows: Sequence[Condition]) -> tuple[float, float] | None:
    """The signal to noise of methods, and that of as many equal ones; None of one method, and of equal scores."""
    if len(rows) < 2 or math.isnan(signal := signal_to_noise(means := means_of(results, rows))):
        return None
    return signal, signal_of_equal_methods(means, np.random.default_rng(stream_seed("signal", rows[0].model)), DRAWS)


def signal_note(results: Results) -> str:
    """The signal to noise of each model of a study; nothing where fewer than two methods have seeds."""
    said = []
    for model in dict.fromkeys(row.model for row in results.conditions):
        if known := signals(results, rows := [*candidates(results, model).values()]):
            said.append(f"{known[0]:.1f} on {model}, of {len(rows)} methods (of equal ones {known[1]:.1f})")
    explained = "the largest difference between methods, without controls, over the standard deviation between seeds"
    return f"Signal to noise ({explained}): {'; '.join(said)}." if said else ""


def write_families_table(directories: Sequence[Path], out: Path) -> None:
    """Write the methods' differences by family, and how well the first family's order of them predicts each other one.

    ``directories`` are the ``results/`` of studies with one reference method. A model of several of them, as the size
    that a ladder shares with another study, is that of the first.
    """
    families: dict[str, Results] = {}
    for directory in directories:
        read = read_directory(directory)
        models = dict.fromkeys(row.model for row in read.conditions)
        if models.keys() <= families.keys():
            raise InvalidInput(str(directory), "model", f"has {', '.join(models)}, as studies before it", "other names")
        families |= {model: read for model in models if model not in families}
    if len(families) < 2:
        raise UserError(f"families: found the results of {', '.join(families)} alone; accepted: those of two models")
    references = {model: results.reference_method for model, results in families.items()}
    if len(set(references.values())) > 1:
        found_here = ", ".join(f"{method} of {model}" for model, method in references.items())
        raise UserError(f"families: reference_method: found {found_here}; accepted: one in all studies")
    known = {family: candidates(results, family) for family, results in families.items()}
    first, *others = families

    def shared_with(names: Sequence[str]) -> list[str]:
        return [method for method in known[first] if all(method in known[name] for name in names)]

    def accuracy(names: Sequence[str]) -> Estimate | None:
        shared = shared_with(names)
        if len(shared) < 2 or first in names:
            return None
        study, *means = (means_of(families[name], [known[name][of] for of in shared]) for name in (first, *names))
        return decision_accuracy(study, means, np.random.default_rng(stream_seed("families", *names)), DRAWS)

    def text(estimate: Estimate | None) -> str:
        return numbers.percent_with_interval(*estimate) if estimate else numbers.NOTHING

    in_all, shown, by_family, written = shared_with(others), Texts(), Texts(), Cells()
    for family, results in families.items():
        ratios = signals(results, [known[family][method] for method in in_all]) or (None, None)
        of_family = accuracy([family])
        by_family[family] = {
            "Family": family,
            "Methods": str(len(known[family])),
            "Shared by all": str(len(in_all)),
            "Signal to noise": numbers.decimal(ratios[0]),
            "Of equal methods": numbers.decimal(ratios[1]),
            f"Decision accuracy of {first} (%)": text(of_family),
        }
        for method, row in known[family].items():
            average, seeds = results.average(row).value, len(results.standing(row))
            compared = results.comparison(row, results.reference_method)
            versus = compared.estimate if compared else None
            shown[row] = {
                "Family": family,
                "Method": row.runs[0].title,
                "avg (%)": numbers.percent(average),
                f"Versus {families[first].reference_title} (pp)": numbers.points_with_interval(
                    *(versus or (None, None))
                ),
                "Seeds": str(seeds),
            }
            cells = {"family": family, "method": method, "average": average}
            cells |= estimate_columns("difference", versus) | {"seeds": seeds}
            cells |= zip(("signal_to_noise", "signal_of_equal_methods"), ratios, strict=True)
            written[row] = {**cells, "shared_methods": len(in_all), **estimate_columns("decision_accuracy", of_family)}
    note = f"{_NOTE} {first} for all others together: {text(accuracy(others))} %."
    tables = [
        table_of_texts("families", "By family", shown, [note]),
        table_of_texts("families_order", "Decision accuracy and signal to noise", by_family),
    ]
    sources = sorted({path for results in families.values() for path in results.sources})
    write_table(out, tables, written, sources, {"draws": DRAWS})
