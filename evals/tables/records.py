"""What tables, figures and the report read: runs, scores and comparisons, checked and typed.

The formats are those of docs/architecture.md, sections 3 to 5: unknown keys are passed over, missing ones are errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evals.core.errors import UserError
from evals.core.files import read_json

BASE = "base"
ALL_BENCHMARKS = "all"
Interval = tuple[float, float]


@dataclass(frozen=True)
class Run:
    """One trained policy, or the base model (method ``base``, no seed)."""

    run: str
    model: str
    method: str
    seed: int | None
    title: str


@dataclass(frozen=True)
class Condition:
    """A row of the main table: one method on one model, over all of its seeds.

    Attributes:
        title: the method's name for the reader; carries the model's name where a study has several models.
        runs: one run per seed, in seed order; the base model has a single run.
    """

    model: str
    method: str
    title: str
    runs: tuple[Run, ...]

    @property
    def seeds(self) -> tuple[int, ...]:
        """The training seeds; empty for the base model."""
        return tuple(run.seed for run in self.runs if run.seed is not None)


@dataclass(frozen=True)
class Score:
    """One run on one benchmark; rates and averages are fractions of one, None where no honest value exists."""

    benchmark: str
    samples_per_problem: int
    run: str
    average_at_k: float
    standard_error: float | None
    confidence_interval: Interval | None
    pass_at_k: Mapping[str, float]
    majority_at_k: float | None
    truncation_rate: float
    no_answer_rate: float
    timeout_rate: float
    unparsable_rate: float
    mean_tokens: float
    total_tokens: int
    correct_counts: tuple[int, ...]


@dataclass(frozen=True)
class Comparison:
    """A method against the reference method or the base model, on one benchmark or on ``all``; fractions of one."""

    model: str
    method: str
    against: str
    benchmark: str
    difference: float
    standard_error: float | None
    confidence_interval: Interval | None
    p_value: float | None
    p_value_holm: float | None
    minimum_detectable_effect: float | None
    verdict: str


@dataclass(frozen=True)
class Results:
    """Everything that the tables and figures of a study show.

    Attributes:
        runs: in the study's order; the base model's run first.
        scores: (run, benchmark) -> score; every run has every benchmark.
        comparisons: (model, method, against, benchmark) -> comparison.
        confidence: level of every interval in ``comparisons``.
    """

    runs: tuple[Run, ...]
    benchmarks: tuple[str, ...]
    scores: Mapping[tuple[str, str], Score]
    comparisons: Mapping[tuple[str, str, str, str], Comparison]
    reference_method: str
    confidence: float

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """Methods in the study's order, each model's base first."""
        return conditions_of(self.runs)

    @property
    def reference_title(self) -> str:
        """The reference method's name for the reader."""
        return next((run.title for run in self.runs if run.method == self.reference_method), self.reference_method)

    @property
    def drawn_against(self) -> tuple[str, str]:
        """What differences are drawn against, and its name: the base model where the reference is the only method."""
        if {run.method for run in self.runs} <= {BASE, self.reference_method}:
            return BASE, "the base model"
        return self.reference_method, self.reference_title

    @property
    def samples_per_problem(self) -> int:
        """The k of avg@k: the same for every benchmark, checked on reading."""
        return next(iter(self.scores.values())).samples_per_problem

    def comparison(self, condition: Condition, against: str, benchmark: str) -> Comparison | None:
        """The comparison of a condition, or None for a method against itself and for the base model."""
        return self.comparisons.get((condition.model, condition.method, against, benchmark))


def conditions_of(runs: Sequence[Run]) -> tuple[Condition, ...]:
    """Runs gathered by model and method: models and methods in the order met, each model's base first."""
    grouped: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        grouped.setdefault((run.model, run.method), []).append(run)
    models = list(dict.fromkeys(run.model for run in runs))
    conditions = [
        Condition(
            model, method, f"{members[0].title} ({model})" if len(models) > 1 else members[0].title, tuple(members)
        )
        for (model, method), members in grouped.items()
    ]
    return tuple(sorted(conditions, key=lambda row: (models.index(row.model), row.method != BASE)))


def read_results(runs: Path, scores: Sequence[Path], comparisons: Path) -> Results:
    """Read and check the three inputs.

    Raises:
        UserError: a file is missing or malformed, a run lacks a benchmark, or the benchmarks differ in k.
    """
    return read_results_of(read_runs(runs), scores, comparisons)


def read_results_of(known: Sequence[Run], scores: Sequence[Path], comparisons: Path) -> Results:
    """Read the scores and comparisons of known runs; errors as for :func:`read_results`."""
    by_run: dict[tuple[str, str], Score] = {}
    names: list[str] = []
    samples: dict[int, Path] = {}
    for path in scores:
        benchmark, rows = read_scores(path)
        names.append(benchmark)
        for row in rows:
            by_run[row.run, benchmark] = row
            samples.setdefault(row.samples_per_problem, path)
        missing = [run.run for run in known if (run.run, benchmark) not in by_run]
        if missing:
            raise UserError(f"{path}: scores: no score for {', '.join(missing)}, which the study has")
    if not names:
        raise UserError("--scores: names no file")
    if len(samples) > 1:
        found = ", ".join(f"{k} in {path}" for k, path in samples.items())
        raise UserError(f"samples_per_problem: must be the same for every benchmark, found {found}")
    reference, confidence, compared = _read_comparisons(comparisons)
    _check_comparisons(comparisons, known, (*names, ALL_BENCHMARKS), compared, reference)
    return Results(tuple(known), tuple(names), by_run, compared, reference, confidence)


def read_runs(path: Path) -> list[Run]:
    """Read the list of runs that the workflow writes.

    Raises:
        UserError: the file is not a list of objects with run, model, method, seed and title.
    """
    return parse_runs(path, read_json(path))


def parse_runs(path: Path, content: Any) -> list[Run]:
    """Check a list of runs that stood in ``path``; errors as for :func:`read_runs`."""
    if not isinstance(content, list) or not content:
        raise UserError(f"{path}: must be a list of runs with keys run, model, method, seed, title")
    return [Run(**_pick(path, f"entry {number}", row, Run)) for number, row in enumerate(content, start=1)]


def read_scores(path: Path) -> tuple[str, list[Score]]:
    """A benchmark's name and every run's score on it.

    Raises:
        UserError: the file is missing or malformed.
    """
    content = _object(path, "the file", read_json(path), ("benchmark", "samples_per_problem", "scores"))
    shared = {"benchmark": content["benchmark"], "samples_per_problem": content["samples_per_problem"]}
    scores = []
    for number, row in enumerate(content["scores"], start=1):
        values = _pick(path, f"scores entry {number}", shared | row, Score)
        values["confidence_interval"] = _interval(values["confidence_interval"])
        values["correct_counts"] = tuple(values["correct_counts"])
        scores.append(Score(**values))
    return str(content["benchmark"]), scores


def _read_comparisons(path: Path) -> tuple[str, float, dict[tuple[str, str, str, str], Comparison]]:
    content = _object(path, "the file", read_json(path), ("reference_method", "confidence", "comparisons"))
    rows = {}
    for number, row in enumerate(content["comparisons"], start=1):
        values = _pick(path, f"comparisons entry {number}", row, Comparison)
        values["confidence_interval"] = _interval(values["confidence_interval"])
        comparison = Comparison(**values)
        rows[comparison.model, comparison.method, comparison.against, comparison.benchmark] = comparison
    return str(content["reference_method"]), float(content["confidence"]), rows


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
            for benchmark in benchmarks:
                if (model, method, against, benchmark) not in compared:
                    raise UserError(f"{path}: comparisons: none of {model} {method} against {against} on {benchmark}")


def _interval(value: Sequence[float] | None) -> Interval | None:
    return None if value is None else (float(value[0]), float(value[1]))


def _pick(path: Path, where: str, row: Any, kind: type) -> dict[str, Any]:
    """The values of a dataclass's fields from a JSON object."""
    keys = tuple(kind.__annotations__)
    return {key: value for key, value in _object(path, where, row, keys).items() if key in keys}


def _object(path: Path, where: str, row: Any, keys: Iterable[str]) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise UserError(f"{path}: {where} must be an object")
    missing = [key for key in keys if key not in row]
    if missing:
        raise UserError(f"{path}: {where} lacks {', '.join(missing)}")
    return row
