"""Methods at learning rates of their own: each at the best of its rates, chosen by scores that are not reported.

One rate for all methods can decide a verdict. Here a method has several, and a seed's rate is the one with the highest
mean score on held-out problems over the other seeds. Neither the benchmarks nor the seed's own luck has a part in its
choice, so that the comparison at the best rates needs no further correction for it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from evals.core.comparisons import Comparison
from evals.core.config.sections import Statistics
from evals.core.errors import UserError
from evals.core.files import read_parquet
from evals.core.records import ALL_BENCHMARKS, BASE
from evals.scores.comparison import BenchmarkCounts, Settings, compare, extraction_note, read_counts
from evals.tables import numbers
from evals.tables.layout import Column, make_table, table_frame, write_table
from evals.tables.main import difference_text

Rates = Mapping[str, float]
"""The learning rates of a method, by the name that it has at each; the study's own comes first."""


@dataclass(frozen=True)
class Rated:
    """A row: a method at the study's learning rate, and at the best of its own."""

    model: str
    method: str
    title: str
    rates: Rates
    held_out: Mapping[str, float]  # mean score on held-out problems over seeds, by the method's name at a rate
    chosen: Sequence[str]  # the name at the rate chosen for each seed
    averages: tuple[float, float]  # over benchmarks and seeds: at the study's rate, and at the chosen ones
    compared: tuple[Comparison | None, Comparison | None]  # with the reference method; None of itself

    @property
    def counts(self) -> str:
        """The number of seeds for which each rate was chosen."""
        counts = Counter(self.chosen)
        return ", ".join(f"{self.rates[name]:g}: {counts[name]}" for name in self.by_rate)

    @property
    def held_out_text(self) -> str:
        """The mean scores on held-out problems, by rate."""
        return ", ".join(f"{self.rates[name]:g}: {numbers.percent(self.held_out[name])}" for name in self.by_rate)

    @property
    def by_rate(self) -> list[str]:
        """The method's names, from the smallest rate to the largest."""
        return sorted(self.rates, key=self.rates.__getitem__)

    @property
    def at_the_edge(self) -> bool:
        """Whether most seeds have the smallest or the largest rate: one beyond may be better still."""
        return any(self.chosen.count(name) * 2 > len(self.chosen) for name in (self.by_rate[0], self.by_rate[-1]))


def write_rates_table(
    scores: Sequence[Path],
    training: Path,
    rates: Mapping[str, Mapping[str, Rates]],
    titles: Mapping[str, str],
    reference_method: str,
    statistics: Statistics,
    out: Path,
) -> None:
    """Write verdicts at the study's learning rate beside those at each method's own best.

    Args:
        scores: of all runs, at every rate.
        training: the directories of the runs, with their scores on held-out problems.
        rates: model -> method -> its rates.
    """
    benchmarks = read_counts(scores)
    names = {run: known for run, known in benchmarks[0].methods.items() if known[1] != BASE}
    files = {run: training / run / "validation.parquet" for run in names}
    held_out = {run: _last_score(path) for run, path in files.items()}
    settings = Settings.of(reference_method, statistics)
    rows, models = [], list(dict.fromkeys(model for model, _ in names.values()))
    for model in models:
        seeds = [
            run.removeprefix(f"{model}-{reference_method}-s")
            for run in names
            if names[run] == (model, reference_method)
        ]
        if len(seeds) < 2:
            raise UserError(f"scores: {model} has one seed; accepted: 2 or more, for each seed's rate is the others'")
        tried = rates[model]
        chosen = {
            method: [_choose(model, by_name, seeds, seed, held_out) for seed in seeds]
            for method, by_name in tried.items()
        }
        common = {method: [next(iter(by_name))] * len(seeds) for method, by_name in tried.items()}
        pair = [_compared(_of(benchmarks, model, names_of, seeds), settings) for names_of in (common, chosen)]
        for method, by_name in tried.items():
            means = {name: fmean(held_out[f"{model}-{name}-s{seed}"] for seed in seeds) for name in by_name}
            averages = [of_methods[method, BASE].method_average for of_methods in pair]
            compared = [of_methods.get((method, reference_method)) for of_methods in pair]
            title = f"{titles[method]} ({model})" if len(models) > 1 else titles[method]
            pairs = (averages[0], averages[1]), (compared[0], compared[1])
            rows.append(Rated(model, method, title, by_name, means, chosen[method], *pairs))
    columns = _columns(benchmarks[0].k, titles[reference_method])
    notes = [*_notes(rows), extraction_note(benchmarks)]
    table = make_table("rates", "Every method at the best of its learning rates", columns, rows, notes)
    read = [*(benchmark.path for benchmark in benchmarks), *files.values()]
    parameters = {"rates": rates, "reference_method": reference_method}
    write_table(out, [table], table_frame(columns, rows), read, parameters)


def _last_score(path: Path) -> float:
    """The share of correct samples of held-out problems at the end of a training."""
    row = read_parquet(path).iloc[-1]
    return float(sum(row["correct_counts"]) / (len(row["correct_counts"]) * row["samples_per_problem"]))


def _choose(model: str, rates: Rates, seeds: Sequence[str], seed: str, held_out: Mapping[str, float]) -> str:
    """The method's name at the rate with the highest mean score of the other seeds; of equals the first."""
    return max(rates, key=lambda name: fmean(held_out[f"{model}-{name}-s{other}"] for other in seeds if other != seed))


def _of(
    benchmarks: Sequence[BenchmarkCounts], model: str, chosen: Mapping[str, Sequence[str]], seeds: Sequence[str]
) -> list[BenchmarkCounts]:
    """The counts of a model's base and of the runs that are chosen, each under its method's own name."""
    methods = {run: known for run, known in benchmarks[0].methods.items() if known == (model, BASE)}
    for method, names in chosen.items():
        methods |= {f"{model}-{name}-s{seed}": (model, method) for name, seed in zip(names, seeds, strict=True)}
    return [counts.of(methods) for counts in benchmarks]


def _compared(benchmarks: Sequence[BenchmarkCounts], settings: Settings) -> dict[tuple[str, str], Comparison]:
    """The comparisons over all benchmarks, by the method and what it is compared with."""
    rows = compare(benchmarks, settings).comparisons
    return {(row.method, row.against): row for row in rows if row.benchmark == ALL_BENCHMARKS}


def _columns(k: int, reference: str) -> list[Column[Rated]]:
    def verdict(index: int) -> Column[Rated]:
        words, name = ("at the study's rate", "at the best rates")[index], f"verdict_{index + 1}"
        return Column(f"Verdict {words}", lambda row: getattr(row.compared[index], "verdict", "reference"), csv=name)

    return [
        Column("Method", lambda row: row.title),
        Column("", lambda row: row.model, csv="model"),
        Column("", lambda row: row.method, csv="method"),
        Column("Held out, by rate (%)", lambda row: row.held_out_text),
        Column("Seeds that chose it", lambda row: row.counts, csv="seeds_by_rate"),
        Column(f"avg@{k} (%)", lambda row: row.averages[0], numbers.percent, "average"),
        Column("at its best rates", lambda row: row.averages[1], numbers.percent, "average_at_best"),
        Column(f"Versus {reference} (pp)", lambda row: row.compared[0], difference_text),
        Column("both at their best", lambda row: row.compared[1], difference_text),
        verdict(0),
        verdict(1),
        Column("", lambda row: getattr(row.compared[0], "difference", None), csv="difference"),
        Column("", lambda row: getattr(row.compared[1], "difference", None), csv="difference_at_best"),
    ]


def _notes(rows: Sequence[Rated]) -> list[str]:
    """What the columns are, and a sentence for every verdict."""
    notes = [
        "A seed's rate is the one with the highest mean score on held-out problems over the other seeds. Benchmarks "
        "have no part in it, nor has the seed itself, so that intervals and verdicts at the best rates hold as they "
        "stand. The reference method has its best rates, too."
    ]
    for row in rows:
        common, best = row.compared
        said = []
        if common is not None and best is not None:
            same = "and" if common.verdict == best.verdict else "but"
            said.append(
                f"{common.verdict.value} at the study's rate, {same} {best.verdict.value} where both have their best"
            )
        if row.at_the_edge:
            said.append("most seeds chose a rate at the end of those tried, one beyond may be better")
        if said:
            notes.append(f"{row.title}: {'; '.join(said)}.")
    return notes
