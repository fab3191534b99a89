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
from evals.core.records import ALL_BENCHMARKS, BASE, Way
from evals.scores.comparison import BenchmarkCounts, Settings, compare, extraction_note, read_counts
from evals.statistics.average import Average, estimate_average
from evals.statistics.difference import Difference, estimate_combination
from evals.statistics.weighting import weighted_mean, weights_of
from evals.tables import numbers
from evals.tables.layout import Column, Table, interval_columns, make_table, write_table
from evals.tables.main import average_text, difference_text

LEVEL, DRAWS = 0.05, 10_000
Files = Sequence[Path]
Row = Mapping[str, Any]
Columns = list[Column[Any]]
_RATES = (
    "A seed's rate is the one with the highest mean score on held-out problems over the other seeds. Benchmarks have "
    "no part in it, nor has the seed itself, so that intervals and verdicts at the best rates hold as they stand. The "
    "reference method has its best rates, too."
)
_DOSES = (
    "KL is that of the sampler from the trainer, in nats a token. p-values are corrected over the doses of a kind, and "
    "in the tables below over the methods under a dose."
)


@dataclass(frozen=True)
class Sheet:
    """The scores of some runs, each under the model and method that it counts as."""

    benchmarks: Sequence[BenchmarkCounts]
    settings: Settings

    @classmethod
    def read(cls, scores: Files, reference_method: str, statistics: Statistics) -> "Sheet":
        """Read the scores of all runs, each under its own method."""
        return cls(read_counts(scores), Settings.of(reference_method, statistics))

    @property
    def methods(self) -> Mapping[str, tuple[str, str]]:
        """Run -> model and method, of what was trained."""
        return {run: known for run, known in self.benchmarks[0].methods.items() if known[1] != BASE}

    @property
    def models(self) -> list[str]:
        return list(dict.fromkeys(model for model, _ in self.methods.values()))

    @property
    def average_header(self) -> str:
        return f"avg@{self.benchmarks[0].k} (%)"

    @cached_property
    def weights(self) -> list[float]:
        """The weights of the benchmarks in a mean over them."""
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
        if len({method for _, method in self.methods.values()}) < 2:
            return {}
        rows = compare(self.benchmarks, self.settings).comparisons
        return {row.method: row for row in rows if row.benchmark == ALL_BENCHMARKS}

    def mean(self, model: str, method: str) -> float:
        """The mean score of a method over benchmarks and seeds."""
        return float(weighted_mean([counts.arm(model, method)[0].mean() for counts in self.benchmarks], self.weights))

    def average(self, model: str, method: str) -> Average:
        """The same with its interval."""
        accuracies = [counts.arm(model, method)[0] for counts in self.benchmarks]
        samples, clusters = [counts.k for counts in self.benchmarks], [counts.clusters for counts in self.benchmarks]
        level, weights = self.settings.confidence, self.weights
        return estimate_average(
            accuracies, samples, is_fixed=False, confidence=level, weights=weights, clusters=clusters
        )

    def combine(self, arms: Sequence[tuple[str, str]], coefficients: npt.ArrayLike, blocks: bool) -> Difference:
        """Combine the mean scores of methods of models; in ``blocks`` what a seed adds to all of them cancels."""
        known = [list(zip(*(counts.arm(*arm) for counts in self.benchmarks), strict=True)) for arm in arms]
        return estimate_combination(
            [accuracies for accuracies, _ in known],
            np.asarray(coefficients).tolist(),
            weights=self.weights,
            samples=[samples for _, samples in known],
            clusters=[counts.clusters for counts in self.benchmarks],
            seeds_are_blocks=blocks,
        )

    def write(self, out: Path, tables: Sequence[Table], rows: Sequence[Row], read: Iterable[Path] = ()) -> None:
        """Write the tables, each with the note on extraction, and the CSV file, which the figure is drawn from."""
        files, note = [counts.path for counts in self.benchmarks], extraction_note(self.benchmarks)
        noted = [replace(table, notes=(*table.notes, *filter(None, [note]))) for table in tables]
        write_table(out, noted, frame(rows), [*files, *read])


def frame(rows: Sequence[Row]) -> pd.DataFrame:
    """The CSV file of a table: numbers in full precision, empty where there is none."""
    return pd.DataFrame([{key: row[key] for key in row if key[0] != "_"} for row in rows], dtype=object)


def tested_cells(tested: Any, *names: str, prefix: str = "") -> dict[str, Any]:
    """What a comparison or an effect has in the CSV file: empty where there is none."""
    interval = interval_columns(getattr(tested, "confidence_interval", None), prefix)
    return {"difference": getattr(tested, "difference", None), **interval} | {
        name: getattr(tested, name, None) for name in (*names, "p_value_holm", "minimum_detectable_effect", "verdict")
    }


def tested(header: str, value: Callable[[Any], Any]) -> Columns:
    """A comparison or an effect: the difference with its interval, p-value, MDE and verdict."""
    return [
        Column(header, value, difference_text),
        Column("p (Holm)", lambda row: getattr(value(row), "p_value_holm", None), numbers.p_value),
        Column("MDE (pp)", lambda row: getattr(value(row), "minimum_detectable_effect", None), numbers.percent),
        Column("Verdict", lambda row: getattr(value(row), "verdict", numbers.NOTHING)),
    ]


def across(
    name: str,
    title: str,
    heading: str,
    places: Mapping[str, Mapping[str, Any]],
    columns: Callable[..., Columns],
    *notes: str,
) -> Table:
    """A table with a row for each name, and the columns of each place, such as a dose, whose values are by name."""
    names = list(dict.fromkeys(name for values in places.values() for name in values))
    listed = [column for place, values in places.items() for column in columns(place, values.get)]
    return make_table(name, title, [Column[str](heading, str), *listed], names, notes)


def write_rates_table(
    scores: Files, training: Path, sheet: Sequence[Way], reference_method: str, statistics: Statistics, out: Path
) -> None:
    """Write verdicts at the study's learning rate, each method's first, beside those at each one's own best.

    Neither the benchmarks nor a seed's own luck has a part in the choice of its rate, so that the comparison at the
    best rates needs no correction for it. ``training`` has the directories of the runs.
    """
    study, rows, notes, files = Sheet.read(scores, reference_method, statistics), list[Row](), [_RATES], list[Path]()
    methods = {way.method: [other for other in sheet if other.method == way.method] for way in sheet}
    for model in study.models:
        seeds = [run.rpartition("-")[2] for run, known in study.methods.items() if known == (model, reference_method)]
        if len(seeds) < 2:
            raise UserError(f"scores: {model} has one seed; accepted: 2 or more, for each seed's rate is the others'")
        held_out = dict[str, list[float]]()
        for name in (way.name for way in sheet):
            paths = [training / f"{model}-{name}-{seed}" / "validation.parquet" for seed in seeds]
            files, held_out[name] = [*files, *paths], [_last_score(path) for path in paths]
        chosen = {method: _chosen([way.name for way in ways], held_out) for method, ways in methods.items()}
        views = []
        for choice in ({method: [ways[0].name] * len(seeds) for method, ways in methods.items()}, chosen):
            runs = [(method, run) for method, names in choice.items() for run in zip(names, seeds, strict=True)]
            views.append(study.of({f"{model}-{name}-{seed}": (model, method) for method, (name, seed) in runs}))
        for method, ways in methods.items():
            by_rate = {f"{way.rates[model]:g}": way.name for way in sorted(ways, key=lambda way: way.rates[model])}
            means = {rate: numbers.percent(fmean(held_out[name])) for rate, name in by_rate.items()}
            counts = {rate: chosen[method].count(name) for rate, name in by_rate.items()}
            title = f"{ways[0].title} ({model})" if len(study.models) > 1 else ways[0].title
            common, best = (view.versus.get(method) for view in views)
            first, second = (getattr(versus, "verdict", "reference") for versus in (common, best))
            averages = dict(
                zip(("average", "average_at_best"), (view.mean(model, method) for view in views), strict=True)
            )
            rows.append(
                {
                    **{"_title": title, "model": model, "method": method, "_held_out": _listed(means)},
                    **{"seeds_by_rate": _listed(counts), **averages, "verdict_1": first, "verdict_2": second},
                    **{
                        "difference": getattr(common, "difference", None),
                        "difference_at_best": getattr(best, "difference", None),
                    },
                    **{"_common": common, "_best": best},
                }
            )
            said, tried = list[str](), [*counts.values()]
            if common and best:
                same = "and" if first == second else "but"
                said = [f"{first} at the study's rate, {same} {second} where both have their best"]
            if 2 * max(tried[0], tried[-1]) > len(seeds):
                said.append("most seeds chose a rate at the end of those tried, one beyond may be better")
            notes += [f"{title}: {'; '.join(said)}."] if said else []
    reference = methods[reference_method][0].title
    columns: Columns = [
        Column("Method", itemgetter("_title")),
        Column("Held out, by rate (%)", itemgetter("_held_out")),
        Column("Seeds that chose it", itemgetter("seeds_by_rate")),
        Column(study.average_header, itemgetter("average"), numbers.percent),
        Column("at its best rates", itemgetter("average_at_best"), numbers.percent),
        Column(f"Versus {reference} (pp)", itemgetter("_common"), difference_text),
        Column("both at their best", itemgetter("_best"), difference_text),
        Column("Verdict at the study's rate", itemgetter("verdict_1")),
        Column("Verdict at the best rates", itemgetter("verdict_2")),
    ]
    table = make_table("rates", "Every method at the best of its learning rates", columns, rows, notes)
    study.write(out, [table], rows, files)


def _last_score(path: Path) -> float:
    """The share of correct samples of held-out problems at the end of a training run."""
    row = read_parquet(path).iloc[-1]
    return float(sum(row["correct_counts"]) / (len(row["correct_counts"]) * row["samples_per_problem"]))


def _chosen(names: Sequence[str], held_out: Mapping[str, Sequence[float]]) -> list[str]:
    """For each seed the name with the highest mean score of the other seeds; of equals the first."""
    others = {name: [fmean(np.delete(held_out[name], seed)) for seed in range(len(held_out[name]))] for name in names}
    return [max(names, key=lambda name: others[name][seed]) for seed in range(len(others[names[0]]))]


def _listed(of_rates: Mapping[str, Any]) -> str:
    return ", ".join(f"{rate}: {value}" for rate, value in of_rates.items())


def write_doses_table(
    scores: Files, training: Path, sheet: Sequence[Way], reference_method: str, statistics: Statistics, out: Path
) -> None:
    """Write what each dose does to the plain method, and what every other method gains over it there.

    The methods under a dose are compared with the plain one under that dose, as a study of their own. What a dose does
    to the plain one is its comparison with no dose; the doses of a kind are one family.
    """
    study = Sheet.read(scores, reference_method, statistics)
    (model,) = study.models
    metrics = {run: training / run / "metrics.parquet" for run in study.methods}
    divergences = {run: float(read_parquet(path)["rollout_kl"].mean()) for run, path in metrics.items()}
    distances = {
        way.name: fmean(divergences[run] for run, (_, name) in study.methods.items() if name == way.name)
        for way in sheet
    }

    def rows_of(kind: str, dose: str, of_dose: Comparison | None = None) -> list[Row]:
        ways = [way for way in sheet if (way.kind, way.dose) == (kind, dose)]
        view, rows = study.named({way.name: way.method for way in ways}), list[Row]()
        for way in ways:
            average, none = view.average(model, way.method), of_dose if way.method == reference_method else None
            versus = view.versus.get(way.method, none)
            against = "" if versus is None else "no dose" if versus is none else "plain"
            cells = {
                "kind": kind,
                "dose": dose,
                "method": way.method,
                "title": way.title,
                "distance": distances[way.name],
            }
            cells |= {"average": average.value, **interval_columns(average.confidence_interval), "against": against}
            rows.append({**cells, **tested_cells(versus, prefix="difference_"), "_average": average, "_versus": versus})
        return rows

    rows = undosed = rows_of("", "")
    plain = [way for way in sheet if way.method == reference_method]
    title, tables = plain[0].title, list[Table]()
    for kind in dict.fromkeys(way.kind for way in plain if way.kind):
        doses = sorted((way for way in plain if way.kind == kind), key=lambda way: distances[way.name])
        versus_none = study.named({reference_method: reference_method, **{way.name: way.dose for way in doses}}).versus
        of_kind = [row for way in doses for row in rows_of(kind, way.dose, versus_none[way.dose])]
        places = {
            way.dose: {
                row["title"]: row["_versus"] for row in of_kind if (row["dose"], row["against"]) == (way.dose, "plain")
            }
            for way in doses
        }
        heading = f"{kind}: points over {title} under the same dose"
        tables.append(
            across(
                f"doses_{kind}",
                heading,
                "Method",
                places,
                lambda dose, value: [Column(dose, value, _gain)],
                _fall(kind, title, of_kind),
            )
        )
        rows = [*rows, *of_kind]
    average, versus = Column[Row](study.average_header, itemgetter("_average"), average_text), itemgetter("_versus")
    dose = Column[Row]("Dose", lambda row: f"{row['kind']} {row['dose']}".strip() or "none")
    kl = Column[Row]("KL", itemgetter("distance"), "{:.1e}".format)
    of_plain = [row for row in rows if row["method"] == reference_method]
    tables.insert(
        0,
        make_table(
            "doses", f"{title}, by dose", [dose, kl, average, *tested("Versus none (pp)", versus)], of_plain, [_DOSES]
        ),
    )
    columns = [Column[Row]("Method", itemgetter("title")), average, *tested(f"Versus {title} (pp)", versus)]
    tables.append(make_table("doses_none", "Without a dose", columns, undosed))
    study.write(out, tables, rows, metrics.values())


def _gain(comparison: Comparison | None) -> str:
    judged = "" if comparison is None or comparison.verdict is Verdict.NOT_DISTINGUISHABLE else f" {comparison.verdict}"
    return difference_text(comparison) + judged


def _fall(kind: str, plain: str, rows: Sequence[Row]) -> str:
    """Say at which dose of a kind the plain method falls, and which methods are better or worse there."""
    fallen = [row for row in rows if (row["against"], row["verdict"]) == ("no dose", Verdict.WORSE)]
    if not fallen:
        return f"At no dose of {kind} is {plain} distinguishable from no dose."
    there = [row for row in rows if (row["dose"], row["against"]) == (fallen[0]["dose"], "plain")]
    said = [f"{plain} falls at {kind} {fallen[0]['dose']} ({difference_text(fallen[0]['_versus'])} points)"]
    for verdict in (Verdict.BETTER, Verdict.WORSE):
        said.append(
            f"{verdict} there: {', '.join(row['title'] for row in there if row['verdict'] == verdict) or 'none'}"
        )
    return f"{'; '.join(said)}."
