"""Methods under doses of difference between sampler and trainer: where the plain one falls, and what is better there.

The methods under a dose are compared with the plain one under that dose, as a study of their own. What a dose does to
the plain one is its comparison with no dose; the doses of a kind are one family.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd

from evals.core.comparisons import Comparison, Verdict
from evals.core.config.sections import Statistics
from evals.core.files import read_parquet
from evals.core.records import ALL_BENCHMARKS, BASE
from evals.scores.comparison import BenchmarkCounts, Settings, compare, extraction_note, read_counts
from evals.statistics.average import Average, estimate_average
from evals.statistics.weighting import weights_of
from evals.tables import numbers
from evals.tables.layout import Column, interval_columns, make_table, write_table
from evals.tables.main import difference_text

Doses = Mapping[str, Mapping[str, Mapping[str, str]]]
"""Kind -> dose -> method -> the method's name under it."""


@dataclass(frozen=True)
class Dosed:
    """A method under a dose; kind and dose are empty where there is none."""

    kind: str
    dose: str
    method: str
    title: str
    distance: float  # KL(sampler || trainer) in nats a token, mean over steps and seeds
    average: Average
    versus_plain: Comparison | None  # under the same dose; None of the plain method itself
    versus_no_dose: Comparison | None  # of the plain method; None of others, and without a dose


@dataclass(frozen=True)
class _Trainings:
    """The trainings of a study, and how they are compared."""

    benchmarks: Sequence[BenchmarkCounts]
    training: Path
    settings: Settings

    def compared(self, named: Mapping[str, str]) -> dict[str, Comparison]:
        """Compare methods with the reference method over all benchmarks; ``named`` gives each run's method its name."""
        if len(named) < 2:
            return {}
        methods = {run: (model, named[name]) for run, (model, name) in self._methods.items() if name in named}
        rows = compare([counts.of(methods) for counts in self.benchmarks], self.settings).comparisons
        return {row.method: row for row in rows if row.benchmark == ALL_BENCHMARKS}

    def average(self, name: str) -> Average:
        """The average of a method over seeds and benchmarks."""
        sizes = {counts.benchmark: counts.problems for counts in self.benchmarks}
        (model,) = {model for model, method in self._methods.values() if method == name}
        return estimate_average(
            [counts.arm(model, name)[0] for counts in self.benchmarks],
            [counts.k for counts in self.benchmarks],
            is_fixed=False,
            confidence=self.settings.confidence,
            weights=weights_of(self.settings.weighting, sizes),
            clusters=[counts.clusters for counts in self.benchmarks],
        )

    def distance(self, name: str) -> float:
        """The mean divergence of the sampler from the trainer."""
        runs = [run for run, (_, method) in self._methods.items() if method == name]
        return fmean(float(read_parquet(path)["rollout_kl"].mean()) for path in map(self.metrics, runs))

    def metrics(self, run: str) -> Path:
        """The file of a training's metrics."""
        return self.training / run / "metrics.parquet"

    @property
    def _methods(self) -> Mapping[str, tuple[str, str]]:
        return self.benchmarks[0].methods


def write_doses_table(
    scores: Sequence[Path],
    training: Path,
    doses: Doses,
    titles: Mapping[str, str],
    reference_method: str,
    statistics: Statistics,
    out: Path,
) -> None:
    """Write what each dose does to the plain method, and what every other method gains over it there.

    Args:
        scores: of all runs.
        training: the directories of the runs.
        titles: of every method without a dose, controls among them.
        reference_method: the plain one.
    """
    settings = Settings.of(reference_method, statistics)
    trainings = _Trainings(read_counts(scores), training, settings)

    def rows_of(kind: str, dose: str, names: Mapping[str, str], of_dose: Comparison | None = None) -> list[Dosed]:
        compared = trainings.compared({name: method for method, name in names.items()})
        rows = []
        for method, name in names.items():
            versus_none = of_dose if method == reference_method else None
            measured = trainings.distance(name), trainings.average(name), compared.get(method), versus_none
            rows.append(Dosed(kind, dose, method, titles[method], *measured))
        return rows

    by_distance = {  # a job's file does not keep the order
        kind: dict(sorted(of_kind.items(), key=lambda item: trainings.distance(item[1][reference_method])))
        for kind, of_kind in doses.items()
    }
    undosed = rows_of("", "", {name: name for name in titles})
    rows = list(undosed)
    for kind, of_kind in by_distance.items():
        plain = {reference_method: reference_method}
        plain |= {names[reference_method]: dose for dose, names in of_kind.items()}
        against_none = trainings.compared(plain)
        for dose, names in of_kind.items():
            rows += rows_of(kind, dose, names, against_none[dose])
    extraction = extraction_note(trainings.benchmarks)
    k, title = trainings.benchmarks[0].k, titles[reference_method]
    plain_rows = [row for row in rows if row.method == reference_method]
    tables = [make_table("doses", f"{title}, by dose", _of_doses(k), plain_rows, [_DOSES_NOTE, extraction])]
    for kind, of_kind in by_distance.items():
        of_methods = [[row for row in rows if (row.kind, row.method) == (kind, method)] for method in titles]
        shown = [line for line in of_methods if line and line[0].method != reference_method]
        columns = [
            Column[Sequence[Dosed]]("Method", lambda row: row[0].title),
            *(Column(dose, partial(_gain, number=number), _gain_text) for number, dose in enumerate(of_kind)),
        ]
        heading = f"{kind}: points over {title} under the same dose"
        tables.append(make_table(f"doses_{kind}", heading, columns, shown, [_fall(kind, rows, title), extraction]))
    tables.append(make_table("doses_none", "Without a dose", _of_methods(k, title), undosed, [extraction]))
    read = [counts.path for counts in trainings.benchmarks]
    runs = [run for run, (_, method) in trainings.benchmarks[0].methods.items() if method != BASE]
    listed = {kind: list(of_kind) for kind, of_kind in by_distance.items()}
    parameters = {"doses": listed, "reference_method": reference_method}
    write_table(out, tables, pd.DataFrame(map(_written, rows)), [*read, *map(trainings.metrics, runs)], parameters)


def _fall(kind: str, rows: Sequence[Dosed], plain: str) -> str:
    """Say at which dose of a kind the plain method falls, and which methods are better or worse there."""
    of_kind = [row for row in rows if row.kind == kind]
    fallen = [row for row in of_kind if row.versus_no_dose and row.versus_no_dose.verdict is Verdict.WORSE]
    if not fallen:
        return f"At no dose of {kind} is {plain} distinguishable from no dose."
    dose, others = fallen[0].dose, []
    judged = [(row.title, row.versus_plain.verdict) for row in of_kind if row.dose == dose and row.versus_plain]
    for verdict in (Verdict.BETTER, Verdict.WORSE):
        titles = [title for title, of_row in judged if of_row is verdict]
        others.append(f"{verdict.value} there: {', '.join(titles) or 'none'}")
    text = difference_text(fallen[0].versus_no_dose)
    return f"{plain} falls at {kind} {dose} ({text} points); {'; '.join(others)}."


_DOSES_NOTE = (
    "KL is that of the sampler from the trainer, in nats a token. p-values are corrected over the doses of a kind, and "
    "in the tables below over the methods under a dose."
)


def _comparison_columns(header: str, value: Callable[[Dosed], Comparison | None]) -> list[Column[Dosed]]:
    return [
        Column(header, value, difference_text),
        Column("p (Holm)", lambda row: getattr(value(row), "p_value_holm", None), numbers.p_value),
        Column("MDE (pp)", lambda row: getattr(value(row), "minimum_detectable_effect", None), numbers.percent),
        Column("Verdict", value, _verdict),
    ]


def _average_column(k: int) -> Column[Dosed]:
    return Column(
        f"avg@{k} (%)",
        lambda row: row.average,
        lambda average: numbers.percent_with_interval(average.value, average.confidence_interval),
    )


def _of_doses(k: int) -> list[Column[Dosed]]:
    return [
        Column("Dose", lambda row: f"{row.kind} {row.dose}" if row.kind else "none"),
        Column("KL", lambda row: row.distance, "{:.1e}".format),
        _average_column(k),
        *_comparison_columns("Versus none (pp)", lambda row: row.versus_no_dose),
    ]


def _of_methods(k: int, plain: str) -> list[Column[Dosed]]:
    return [
        Column("Method", lambda row: row.title),
        _average_column(k),
        *_comparison_columns(f"Versus {plain} (pp)", lambda row: row.versus_plain),
    ]


def _gain(row: Sequence[Dosed], number: int) -> Comparison | None:
    return row[number].versus_plain


def _gain_text(comparison: Comparison | None) -> str:
    judged = "" if comparison is None or comparison.verdict is Verdict.NOT_DISTINGUISHABLE else f" {comparison.verdict}"
    return difference_text(comparison) + judged


def _verdict(comparison: Comparison | None) -> str:
    return numbers.NOTHING if comparison is None else comparison.verdict.value


def _written(row: Dosed) -> dict[str, Any]:
    """The row of the CSV file, which the figure is drawn from."""
    versus = row.versus_plain or row.versus_no_dose
    return {
        **{key: getattr(row, key) for key in ("kind", "dose", "method", "title", "distance")},
        "average": row.average.value,
        **interval_columns(row.average.confidence_interval),
        "against": "" if versus is None else "plain" if row.versus_plain else "no dose",
        "difference": getattr(versus, "difference", None),
        **interval_columns(getattr(versus, "confidence_interval", None), "difference_"),
        **{key: getattr(versus, key, None) for key in ("p_value_holm", "minimum_detectable_effect")},
        "verdict": "" if versus is None else versus.verdict.value,
    }
