"""The table by family: the same methods on other tasks or sizes, and whether their order is the same there."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from evals.core.errors import UserError
from evals.core.random import stream_seed
from evals.core.records import BASE, Condition, Interval
from evals.results import Results, read_directory
from evals.statistics.ranks import Means, decision_accuracy, signal_to_noise
from evals.statistics.weighting import weighted_mean
from evals.tables import numbers
from evals.tables.layout import Column, interval_columns, make_table, table_frame, write_table
from evals.tables.robust import score_matrix

DRAWS = 10_000
_NOTE = (
    "A family is a model and the task that it is trained on. Decision accuracy (arXiv 2504.11393): the share of pairs "
    "of methods, without controls, that the first family orders as this one does, with a 95 % interval over seeds; "
    "chance is 50 %. Signal to noise (arXiv 2508.13144): the largest difference between methods over the standard "
    "deviation between seeds."
)


def means_of(results: Results, rows: Sequence[Condition]) -> Means:
    """The scores of methods with two seeds or more, over all benchmarks; runs that fell are left out."""
    held = [replace(row, runs=results.held(row)) for row in rows]
    return Means.of([weighted_mean(score_matrix(results, row).T, results.weights) for row in held])


def candidates(results: Results, model: str) -> dict[str, Condition]:
    """The methods of a model with two seeds or more that did not fall; no controls, which are there to differ."""
    left_out = {BASE, *dict(results.controls or {}).values()}
    rows = [row for row in results.conditions if row.model == model and row.method not in left_out]
    return {row.method: row for row in rows if len(results.held(row)) > 1}


def signal_note(results: Results) -> str:
    """The signal to noise of each model of a study; nothing where fewer than two methods have seeds."""
    said = []
    for model in dict.fromkeys(row.model for row in results.conditions):
        if len(rows := [*candidates(results, model).values()]) > 1:
            said.append(f"{signal_to_noise(means_of(results, rows)):.1f} on {model}, of {len(rows)} methods")
    explained = "the largest difference between methods, without controls, over the standard deviation between seeds"
    return f"Signal to noise ({explained}): {'; '.join(said)}." if said else ""


def write_families_table(directories: Sequence[Path], out: Path) -> None:
    """Write the methods' differences by family, and how well the first family's order of them predicts each other one.

    ``directories`` are the ``results/`` of studies with one reference method; a model of several counts in the first.
    """
    families: dict[str, Results] = {}
    for directory in directories:
        read = read_directory(directory)
        families |= {row.model: read for row in read.conditions if row.model not in families}
    if len(families) < 2 or len({results.reference_method for results in families.values()}) > 1:
        raise UserError("families: accepted: results of two models or more, whose studies have one reference method")
    known = {family: candidates(results, family) for family, results in families.items()}
    first, *others = families

    def accuracy(names: Sequence[str]) -> tuple[float, Interval] | None:
        shared = [method for method in known[first] if all(method in known[name] for name in names)]
        if len(shared) < 2 or first in names:
            return None
        study, *means = (means_of(families[name], [known[name][of] for of in shared]) for name in (first, *names))
        return decision_accuracy(study, means, np.random.default_rng(stream_seed("families", *names)), DRAWS)

    def signal(family: str) -> float | None:
        rows = [*known[family].values()]
        return signal_to_noise(means_of(families[family], rows)) if len(rows) > 1 else None

    def shown(value: tuple[float, Interval] | None) -> str:
        return numbers.percent_with_interval(*value) if value else numbers.NOTHING

    def cells(value: tuple[float, Interval | None] | None, name: str) -> dict[str, float | None]:
        return {name: value[0] if value else None, **interval_columns(value[1] if value else None, f"{name}_")}

    def versus(row: Condition) -> tuple[float, Interval | None] | None:
        compared = families[row.model].comparison(row, families[row.model].reference_method)
        return (compared.difference, compared.confidence_interval) if compared else None

    accuracies, signals = (
        {family: of(family) for family in families} for of in (lambda name: accuracy([name]), signal)
    )
    columns: list[Column[Condition]] = [
        Column("Family", lambda row: row.model, csv="family"),
        Column("Method", lambda row: row.runs[0].title),
        Column("", lambda row: row.method, csv="method"),
        Column("avg (%)", lambda row: families[row.model].average(row).value, numbers.percent, "average"),
        Column(
            f"Versus {families[first].reference_title} (pp)",
            versus,
            lambda value: numbers.points_with_interval(*value) if value else numbers.NOTHING,
            partial(cells, name="difference"),
        ),
        Column("Seeds", lambda row: len(row.seeds), csv="seeds"),
        Column("", lambda row: signals[row.model], csv="signal_to_noise"),
        Column("", lambda row: accuracies[row.model], csv=partial(cells, name="decision_accuracy")),
    ]
    of_families: list[Column[str]] = [
        Column("Family", str),
        Column("Methods", lambda family: len(known[family])),
        Column("Signal to noise", signals.get, numbers.decimal),
        Column(f"Decision accuracy of {first} (%)", accuracies.get, shown),
    ]
    rows = [row for of_family in known.values() for row in of_family.values()]
    note = f"{_NOTE} {first} for all others together: {shown(accuracy(others))} %."
    tables = [
        make_table("families", "By family", columns, rows, [note]),
        make_table("families_order", "Decision accuracy and signal to noise", of_families, [*families]),
    ]
    sources = sorted({path for results in families.values() for path in results.sources})
    write_table(out, tables, table_frame(columns, rows), sources, {"draws": DRAWS})
