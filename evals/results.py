"""The results of a study as one model: runs, scores, comparisons and the averages of methods.

Tables, figures, the report, the pages and MLflow all read it. The files are described in docs/architecture.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from evals.core.errors import InvalidInput, UserError
from evals.core.records import (
    ALL_BENCHMARKS,
    BASE,
    BenchmarkScores,
    Comparison,
    Comparisons,
    Condition,
    Interval,
    Run,
    Score,
    conditions_of,
    read_runs,
)
from evals.statistics.average import estimate_average


@dataclass(frozen=True)
class Average:
    """The mean avg@k of a condition; all fractions of one.

    Attributes:
        by_seed: the average of every seed, in seed order.
        standard_error: over problems and seeds; None for a method with one seed, which cannot tell.
        confidence_interval: within [0, 1]; None without a standard error, or where a handful of problems decides.
    """

    value: float
    by_seed: tuple[float, ...]
    standard_error: float | None
    confidence_interval: Interval | None


@dataclass(frozen=True)
class Results:
    """Everything that the tables and figures of a study show.

    Attributes:
        runs: in the study's order.
        benchmarks: their names, in the order of the files.
        samples_per_problem: the k of avg@k, the same for every benchmark.
        scores: (run, benchmark) -> score; every run has every benchmark.
        comparisons: (model, method, against, benchmark) -> comparison.
        confidence: the level of every interval in ``comparisons``.
        sources: the files that all of this was read from.
    """

    runs: tuple[Run, ...]
    benchmarks: tuple[str, ...]
    samples_per_problem: int
    scores: Mapping[tuple[str, str], Score]
    comparisons: Mapping[tuple[str, str, str, str], Comparison]
    reference_method: str
    confidence: float
    sources: tuple[Path, ...] = ()

    @cached_property
    def conditions(self) -> tuple[Condition, ...]:
        """Methods in the study's order, the base of each model first."""
        return conditions_of(self.runs)

    @cached_property
    def reference_title(self) -> str:
        """The reference method's name for people."""
        return next((run.title for run in self.runs if run.method == self.reference_method), self.reference_method)

    @cached_property
    def drawn_against(self) -> tuple[str, str]:
        """The method that differences are drawn against, and its name: the base if the reference is the only method."""
        if {run.method for run in self.runs} <= {BASE, self.reference_method}:
            return BASE, "the base model"
        return self.reference_method, self.reference_title

    @cached_property
    def _averages(self) -> dict[tuple[str, str, str], Average]:
        suites = {ALL_BENCHMARKS: self.benchmarks, **{name: (name,) for name in self.benchmarks}}
        return {
            (condition.model, condition.method, name): self._average(condition, benchmarks)
            for condition in self.conditions
            for name, benchmarks in suites.items()
        }

    def average(self, condition: Condition, benchmark: str = ALL_BENCHMARKS) -> Average:
        """The average of a condition over its seeds, on one benchmark or over all, each with the same weight.

        The base model is one given policy: its error has no share of seeds, and its interval on one benchmark is
        that of its score.
        """
        return self._averages[condition.model, condition.method, benchmark]

    def _average(self, condition: Condition, benchmarks: Sequence[str]) -> Average:
        k = self.samples_per_problem
        rates = [
            np.array([self.scores[run.run, name].correct_counts for run in condition.runs], dtype=np.float64) / k
            for name in benchmarks
        ]
        by_seed = tuple(float(value) for value in np.mean([benchmark.mean(axis=1) for benchmark in rates], axis=0))
        fixed = condition.method == BASE
        average = estimate_average(rates, [k] * len(rates), is_fixed=fixed, confidence=self.confidence)
        return Average(average.value, by_seed, average.standard_error, average.interval)

    def comparison(self, condition: Condition, against: str, benchmark: str = ALL_BENCHMARKS) -> Comparison | None:
        """The comparison of a condition, or None for a method against itself and for the base model."""
        return self.comparisons.get((condition.model, condition.method, against, benchmark))


def read_results(runs: Path | Sequence[Run], scores: Sequence[Path], comparisons: Path) -> Results:
    """Read and check the results of a study.

    Args:
        runs: the run sheet, or its runs.
        scores: ``scores/{benchmark}.json``, in the order of the study's benchmarks.
        comparisons: ``comparisons.json``.

    Raises:
        UserError: a file is missing or malformed, a run lacks a benchmark, a method lacks a comparison, or the
            benchmarks differ in k.
    """
    known = tuple(read_runs(runs) if isinstance(runs, Path) else runs)
    if not scores:
        raise UserError("--scores: names no file")
    by_run: dict[tuple[str, str], Score] = {}
    names: list[str] = []
    samples: dict[int, Path] = {}
    for path in scores:
        content = BenchmarkScores.read(path)
        names.append(content.benchmark)
        samples.setdefault(content.samples_per_problem, path)
        by_run |= {(score.run, content.benchmark): score for score in content.scores}
        missing = [run.run for run in known if (run.run, content.benchmark) not in by_run]
        if missing:
            raise InvalidInput(str(path), "scores", f"no score for {', '.join(missing)}, which the study has")
    if len(samples) > 1:
        found = ", ".join(f"{k} in {path}" for k, path in samples.items())
        raise UserError(f"samples_per_problem: must be the same for every benchmark, found {found}")
    compared = Comparisons.read(comparisons)
    rows = {(row.model, row.method, row.against, row.benchmark): row for row in compared.comparisons}
    _check_comparisons(comparisons, known, names, rows, compared.reference_method)
    return Results(
        runs=known,
        benchmarks=tuple(names),
        samples_per_problem=next(iter(samples)),
        scores=by_run,
        comparisons=rows,
        reference_method=compared.reference_method,
        confidence=compared.confidence,
        sources=(*([runs] if isinstance(runs, Path) else []), *scores, comparisons),
    )


def _check_comparisons(
    path: Path,
    runs: Sequence[Run],
    benchmarks: Sequence[str],
    compared: Mapping[tuple[str, str, str, str], Comparison],
    reference: str,
) -> None:
    """Every method must be compared with the reference and, where its model's base was scored, with that."""
    pairs = {(run.model, run.method) for run in runs}
    for model, method in sorted(pairs):
        for against in (reference, BASE):
            if method in (BASE, against) or (model, against) not in pairs:
                continue
            for benchmark in (*benchmarks, ALL_BENCHMARKS):
                if (model, method, against, benchmark) not in compared:
                    found = f"none of {model} {method} against {against} on {benchmark}"
                    raise InvalidInput(str(path), "comparisons", found)
