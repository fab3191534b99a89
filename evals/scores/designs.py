"""Designs: the tables of studies that train a method in several ways, or on models of several sizes.

A design is a sheet: a row (:class:`~evals.core.records.Way`) for each way in which a method is trained, with its
learning rates, its dose of difference between sampler and trainer, or the levels of its factors. What is compared is a
choice of runs, each under a name. A row of a table is a mapping; what begins with ``_`` is not in the CSV file.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from evals.core.comparisons import Comparison, Verdict
from evals.core.config.sections import Statistics
from evals.core.errors import UserError
from evals.core.files import read_parquet
from evals.core.random import stream_seed
from evals.core.records import ALL_BENCHMARKS, BASE, Way, extraction_note
from evals.scores.comparison import BenchmarkCounts, Settings, arm_of, compare, read_counts, with_falls
from evals.scores.contrast import held_out_scores
from evals.statistics.difference import Arm, Average, Difference, estimate_average, estimate_combination
from evals.statistics.resampling import choice_variance
from evals.statistics.suite import Suite, weighted_mean, weights_of
from evals.tables import numbers
from evals.tables.differences import average_text, difference_text, tested_columns
from evals.tables.layout import Column, Table, interval_columns, make_table, write_table

Files = Sequence[Path]
Row = Mapping[str, Any]
Columns = list[Column[Any]]
_TESTED = ("p_value_holm", "minimum_detectable_effect", "verdict")
_RATES = (
    "A seed's rate is the one with the highest mean score on held-out problems over the other seeds. Benchmarks have "
    "no part in it, nor has the seed itself. Intervals and verdicts at the best rates know that another study might "
    "choose others: they count how the mean varies when other seeds and held-out problems choose. The reference method "
    "has its best rates, too."
)
_DOSES = (
    "KL is that of the sampler from the trainer, in nats a token. p-values are corrected over the doses of a kind, and "
    "in the tables below over the methods under a dose."
)


@dataclass(frozen=True)
class Sheet:
    """The scores of some runs, each under the model and method that it counts as, and the ways in which they came."""

    ways: Sequence[Way]
    benchmarks: Sequence[BenchmarkCounts]
    settings: Settings
    statistics: Statistics

    @classmethod
    def read(
        cls,
        scores: Files,
        ways: Sequence[Way],
        reference_method: str,
        statistics: Statistics,
        training: Path | None = None,
    ) -> "Sheet":
        """Read the scores of all runs, each under its own method; ``training`` has the runs, and so which fell."""
        benchmarks, _ = with_falls(read_counts(scores), training, statistics.fall)
        return cls(ways, benchmarks, Settings.of(reference_method, statistics), statistics)

    @property
    def methods(self) -> Mapping[str, tuple[str, str]]:
        """Run -> model and method, of what was trained."""
        return {run: known for run, known in self.benchmarks[0].methods.items() if known[1] != BASE}

    @property
    def models(self) -> list[str]:
        return list(dict.fromkeys(model for model, _ in self.methods.values()))

    @cached_property
    def weights(self) -> list[float]:
        return weights_of(self.settings.weighting, {counts.benchmark: counts.problems for counts in self.benchmarks})

    def of(self, methods: Mapping[str, tuple[str, str]]) -> "Sheet":
        """Take some runs alone, each as one of the model and method that it is given."""
        return replace(self, benchmarks=[counts.of(methods) for counts in self.benchmarks])

    def named(self, names: Mapping[str, str]) -> "Sheet":
        """Take the runs of some methods alone, each under another name."""
        return self.of({run: (model, names[name]) for run, (model, name) in self.methods.items() if name in names})

    @cached_property
    def versus(self) -> dict[str, Comparison]:
        """The comparisons with the reference method over all benchmarks, by method; Holm runs over them."""
        several = len({method for _, method in self.methods.values()}) > 1
        rows = compare(self.benchmarks, self.settings).comparisons if several else ()
        return {row.method: row for row in rows if row.benchmark == ALL_BENCHMARKS}

    @cached_property
    def suite(self) -> Suite:
        return Suite(self.weights, [counts.clusters for counts in self.benchmarks])

    def arm(self, model: str, method: str) -> Arm:
        """The runs of a method that did not fall; where all fell, all."""
        return arm_of(self.benchmarks, self.benchmarks[0].held(model, method))

    def mean(self, model: str, method: str) -> float:
        return float(weighted_mean([values.mean() for values in self.arm(model, method).strata], self.weights))

    def average(self, model: str, method: str) -> Average:
        return estimate_average(self.arm(model, method), self.suite, self.settings.confidence)

    def combine(self, arms: Sequence[tuple[str, str]], coefficients: npt.ArrayLike, blocks: bool) -> Difference:
        """Combine the mean scores of methods of models; in ``blocks`` what a seed adds to all of them cancels."""
        factors = np.asarray(coefficients).tolist()
        return estimate_combination([self.arm(*arm) for arm in arms], factors, self.suite, seeds_are_blocks=blocks)

    def write(
        self, out: Path, tables: Sequence[Table], rows: Sequence[Row], read: Iterable[Path] = (), **decides: Any
    ) -> None:
        """Write the tables, each with the note on extraction, and the CSV file; their manifest has what ``decides``."""
        stated = [counts.benchmark for counts in self.benchmarks if counts.by_last_statement]
        note, reference = extraction_note(stated), self.settings.reference_method
        if fallen := self.benchmarks[0].fallen:
            note = " ".join([note, f"Left out are runs that fell: {', '.join(sorted(fallen))}."]).strip()
        noted = [replace(table, notes=(*table.notes, *filter(None, [note]))) for table in tables]
        parameters: dict[str, Any] = {"reference_method": reference, "sheet": [way.identity() for way in self.ways]}
        parameters |= {"statistics": self.statistics.identity(), **decides}
        write_table(out, noted, frame(rows), [*(counts.path for counts in self.benchmarks), *read], parameters)


def frame(rows: Sequence[Row]) -> pd.DataFrame:
    """The CSV file of a table: numbers in full precision, empty where there is none."""
    return pd.DataFrame([{key: row[key] for key in row if key[0] != "_"} for row in rows], dtype=object)


def cells_of(tested: Any, *names: str, prefix: str = "") -> dict[str, Any]:
    """The columns of a comparison or an effect in the CSV file: empty where there is none."""
    known = {name: getattr(tested, name, None) for name in ("difference", *names, *_TESTED)}
    interval = interval_columns(getattr(tested, "confidence_interval", None), prefix)
    return {"difference": known.pop("difference"), **interval, **known}


def tested(header: str, value: Callable[[Any], Any]) -> Columns:
    """A comparison or an effect: the difference with its interval, p-value, MDE and verdict."""
    difference, _, *others = tested_columns(header, value)
    return [difference, *others, Column("Verdict", lambda row: getattr(value(row), "verdict", numbers.NOTHING))]


def across(
    heading: Column[str], places: Mapping[str, Mapping[str, Any]], columns: Callable[..., Columns]
) -> tuple[Columns, list[str]]:
    """A row for each name, and the columns of each place, such as a model or a dose, whose values are by name."""
    listed = [column for place, values in places.items() for column in columns(place, values.get)]
    return [heading, *listed], list(dict.fromkeys(name for values in places.values() for name in values))


def write_rates_table(
    scores: Files, training: Path, sheet: Sequence[Way], reference_method: str, statistics: Statistics, out: Path
) -> None:
    """Write verdicts at the study's learning rate, each method's first, beside those at each one's own best.

    Neither the benchmarks nor a seed's own luck has a part in the choice of its rate. ``training`` has the directories
    of the runs.
    """
    study, rows, notes = Sheet.read(scores, sheet, reference_method, statistics, training), list[Row](), [_RATES]
    methods = {way.method: [other for other in sheet if other.method == way.method] for way in sheet}
    files = {run: training / run / "validation.parquet" for run in study.methods}
    validated = {run: read_parquet(path) for run, path in files.items()}
    for model in study.models:
        seeds = [run.rpartition("-")[2] for run, known in study.methods.items() if known == (model, reference_method)]
        if len(seeds) < 2:
            raise UserError(f"scores: {model} has one seed; accepted: 2 or more, for each seed's rate is the others'")
        by_way = {way.name: [validated[f"{model}-{way.name}-{seed}"] for seed in seeds] for way in sheet}
        by_name = {name: [held_out_scores(of_run)[-1] for of_run in runs] for name, runs in by_way.items()}
        best = {method: best_rates(ways, by_name) for method, ways in methods.items()}
        views, choices = [], {}
        for choice in ({method: [ways[0].name] * len(seeds) for method, ways in methods.items()}, best):
            runs = [(method, run) for method, names in choice.items() for run in zip(names, seeds, strict=True)]
            views.append(study.of({f"{model}-{name}-{seed}": (model, method) for method, (name, seed) in runs}))
        for method, ways in methods.items():
            right = np.array([[of_run["correct_counts"].iloc[-1] for of_run in by_way[way.name]] for way in ways])
            generator = np.random.default_rng(stream_seed("choice of rates", model, method))
            choices[method] = choice_variance(right, [study.mean(model, way.name) for way in ways], generator)
        views[1] = replace(views[1], settings=replace(study.settings, choices=choices))
        for method, ways in methods.items():
            title = f"{ways[0].title} ({model})" if len(study.models) > 1 else ways[0].title
            rates = {way.name: f"{way.rates[model]:g}" for way in sorted(ways, key=lambda way: way.rates[model])}
            means = {name: numbers.percent(fmean(by_name[name])) for name in rates}
            counts = {name: best[method].count(name) for name in rates}
            versus = [view.versus.get(method) for view in views]
            first, second = (getattr(compared, "verdict", "reference") for compared in versus)
            gains = [getattr(compared, "difference", None) for compared in versus]
            row: dict[str, Any] = {"_title": title, "model": model, "method": method, "_versus": versus}
            row["_held_out"] = ", ".join(f"{rate}: {means[name]}" for name, rate in rates.items())
            row["seeds_by_rate"] = ", ".join(f"{rate}: {counts[name]}" for name, rate in rates.items())
            row |= zip(("average", "average_at_best"), (view.mean(model, method) for view in views), strict=True)
            row |= {"verdict_1": first, "verdict_2": second, "difference": gains[0], "difference_at_best": gains[1]}
            rows.append(row)
            said, tried, same = list[str](), [*counts.values()], "and" if first == second else "but"
            if all(versus):
                said = [f"{first} at the study's rate, {same} {second} where both have their best"]
            if 2 * max(tried[0], tried[-1]) > len(seeds):
                said.append("most seeds chose a rate at the end of those tried, one beyond may be better")
            notes += [f"{title}: {'; '.join(said)}."] if said else []
    columns: Columns = [
        Column("Method", itemgetter("_title")),
        Column("Held out, by rate (%)", itemgetter("_held_out")),
        Column("Seeds that chose it", itemgetter("seeds_by_rate")),
        Column(f"avg@{study.benchmarks[0].k} (%)", itemgetter("average"), numbers.percent),
        Column("at its best rates", itemgetter("average_at_best"), numbers.percent),
        Column(f"Versus {methods[reference_method][0].title} (pp)", lambda row: difference_text(row["_versus"][0])),
        Column("both at their best", lambda row: difference_text(row["_versus"][1])),
        Column("Verdict at the study's rate", itemgetter("verdict_1")),
        Column("Verdict at the best rates", itemgetter("verdict_2")),
    ]
    table = make_table("rates", "Every method at the best of its learning rates", columns, rows, notes)
    study.write(out, [table], rows, files.values())


def best_rates(ways: Sequence[Way], scores: Mapping[str, Sequence[float]]) -> list[str]:
    """For each seed the name with the highest mean score of the other seeds; of equals the first."""
    known = {way.name: scores[way.name] for way in ways}
    others = {name: [fmean(np.delete(values, seed)) for seed in range(len(values))] for name, values in known.items()}
    return [max(others, key=lambda name: others[name][seed]) for seed in range(len(next(iter(others.values()))))]


def write_doses_table(
    scores: Files, training: Path, sheet: Sequence[Way], reference_method: str, statistics: Statistics, out: Path
) -> None:
    """Write what each dose does to the plain method, and what every other method gains over it there.

    The methods under a dose are compared with the plain one under that dose, as a study of their own. What a dose does
    to the plain one is its comparison with no dose; the doses of a kind are one family.
    """
    study = Sheet.read(scores, sheet, reference_method, statistics, training)
    (model,) = study.models
    metrics = {run: training / run / "metrics.parquet" for run in study.methods}
    by_run = {run: float(read_parquet(path)["rollout_kl"].mean()) for run, path in metrics.items()}
    named = {
        name: [by_run[run] for run, known in study.methods.items() if known[1] == name]
        for _, name in study.methods.values()
    }
    distances = {name: fmean(values) for name, values in named.items()}

    def rows_of(kind: str, dose: str, of_dose: Comparison | None = None) -> list[Row]:
        ways = [way for way in sheet if (way.kind, way.dose) == (kind, dose)]
        view, rows = study.named({way.name: way.method for way in ways}), list[Row]()
        for way in ways:
            average, none = view.average(model, way.method), of_dose if way.method == reference_method else None
            versus = view.versus.get(way.method, none)
            row: dict[str, Any] = {"kind": kind, "dose": dose, "method": way.method, "title": way.title}
            row |= {"distance": distances[way.name], "average": average.value, "_average": average, "_versus": versus}
            row |= interval_columns(average.confidence_interval)
            row["against"] = "" if versus is None else "no dose" if versus is none else "plain"
            rows.append(row | cells_of(versus, prefix="difference_"))
        return rows

    def plain_of(rows: Sequence[Row], dose: str) -> dict[str, Comparison]:
        of_dose = [row for row in rows if (row["dose"], row["against"]) == (dose, "plain")]
        return {row["method"]: row["_versus"] for row in of_dose}

    plain = [way for way in sheet if way.method == reference_method]
    titles, title, versus = {way.method: way.title for way in sheet}, plain[0].title, itemgetter("_versus")
    average = Column[Row](f"avg@{study.benchmarks[0].k} (%)", itemgetter("_average"), average_text)
    undosed, of_kinds, tables = rows_of("", ""), list[Row](), list[Table]()
    for kind in dict.fromkeys(way.kind for way in plain if way.kind):
        doses = sorted((way for way in plain if way.kind == kind), key=lambda way: distances[way.name])
        versus_none = study.named({reference_method: reference_method, **{way.name: way.dose for way in doses}}).versus
        rows = [row for way in doses for row in rows_of(kind, way.dose, versus_none[way.dose])]
        places = {way.dose: plain_of(rows, way.dose) for way in doses}
        heading, name = f"{kind}: points over {title} under the same dose", Column("Method", titles.__getitem__)
        laid_out = across(name, places, lambda dose, value: [Column(dose, value, _gain)])
        tables.append(make_table(f"doses_{kind}", heading, *laid_out, [_fall(kind, title, rows)]))
        of_kinds += rows
    columns: Columns = [
        Column("Dose", lambda row: f"{row['kind']} {row['dose']}".strip() or "none"),
        Column("KL", itemgetter("distance"), "{:.1e}".format),
        average,
        *tested("Versus none (pp)", versus),
    ]
    of_plain = [row for row in (*undosed, *of_kinds) if row["method"] == reference_method]
    tables.insert(0, make_table("doses", f"{title}, by dose", columns, of_plain, [_DOSES]))
    columns = [Column("Method", itemgetter("title")), average, *tested(f"Versus {title} (pp)", versus)]
    tables.append(make_table("doses_none", "Without a dose", columns, undosed))
    study.write(out, tables, [*undosed, *of_kinds], metrics.values())


def _gain(comparison: Comparison | None) -> str:
    judged = "" if comparison is None or comparison.verdict is Verdict.NOT_DISTINGUISHABLE else f" {comparison.verdict}"
    return difference_text(comparison) + judged


def _fall(kind: str, plain: str, rows: Sequence[Row]) -> str:
    """Say at which dose of a kind the plain method falls, and which methods are better or worse there."""
    fallen = [row for row in rows if (row["against"], row["verdict"]) == ("no dose", Verdict.WORSE)]
    if not fallen:
        return f"At no dose of {kind} is {plain} distinguishable from no dose."
    said, first = "", fallen[0]
    for verdict in (Verdict.BETTER, Verdict.WORSE):
        key = first["dose"], "plain", verdict
        titles = [row["title"] for row in rows if (row["dose"], row["against"], row["verdict"]) == key]
        said += f"; {verdict} there: {', '.join(titles) or 'none'}"
    return f"{plain} falls at {kind} {first['dose']} ({difference_text(first['_versus'])} points){said}."
