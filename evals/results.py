"""The results of a study as one model: runs, scores, comparisons and the averages of methods.

Tables, figures, the report, the pages and MLflow all read it. The files are described in docs/architecture.md.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import product
from pathlib import Path

import numpy as np

from evals.core import records
from evals.core.comparisons import FALL, Comparison, Comparisons, Contrast, Controls, Fall, Look
from evals.core.errors import InvalidInput, UserError, counted
from evals.core.records import ALL_BENCHMARKS, BASE, Condition, Run, Score, Weighting
from evals.statistics.accuracy import FloatArray, pass_at_k
from evals.statistics.difference import Arm, Average, estimate_average
from evals.statistics.suite import Clusters, Suite, label, weighting_text, weights_of

_OF_COMPARISONS = (
    "reference_method", "confidence", "controls", "weighting", "looks", "margin", "level", "all_decided", "fall",
)  # fmt: skip
"""The fields of results that comparisons have too."""


@dataclass(frozen=True)
class Results:
    """Everything that the tables and figures of a study show."""

    runs: tuple[Run, ...]  # in the study's order
    benchmarks: tuple[str, ...]  # in the order of the files
    samples: Mapping[str, int]  # benchmark -> the k of avg@k
    scores: Mapping[tuple[str, str], Score]  # (run, benchmark) -> score; every run has every benchmark
    comparisons: Mapping[tuple[str, str, str, str], Comparison]  # (model, method, against, benchmark) -> comparison
    reference_method: str
    confidence: float  # the level of every interval of a comparison
    controls: Controls | None = None  # methods of the study with known outcomes
    weighting: Weighting = "benchmarks"  # of every mean over benchmarks
    between_models: tuple[Comparison, ...] = ()  # of base models, where the study has no methods
    contrasts: Mapping[tuple[str, str], Contrast] = field(default_factory=dict)  # (model, method) -> with the reference
    clusters: Mapping[str, Clusters] = field(default_factory=dict)  # benchmark -> of problems that are near copies
    by_topic: tuple[str, ...] = ()  # benchmarks whose clusters are topics
    by_last_statement: tuple[str, ...] = ()  # benchmarks graded by the last statement where nothing is marked
    looks: tuple[Look, ...] = ()  # of a study that stops when it is certain, in their order
    margin: float | None = None  # of equivalence, in such a study; a fraction of one
    level: float | None = None  # of all comparisons of such a study together
    all_decided: float | None = None  # the chance that a repetition of such a study decides every comparison
    fall: Fall = FALL  # the rule by which runs fell
    fallen: frozenset[str] | None = None  # the runs that fell; None where no training was read
    sources: tuple[Path, ...] = ()  # the files that all of this was read from

    @cached_property
    def samples_per_problem(self) -> int:
        """The k of every benchmark; of a study with methods it is the same for all (:class:`StudyConfig`)."""
        (k,) = set(self.samples.values())
        return k

    @property
    def k(self) -> str:
        """The k in the name of avg@k: a number if it is the same for every benchmark."""
        return "k" if len(set(self.samples.values())) > 1 else str(self.samples_per_problem)

    @cached_property
    def conditions(self) -> tuple[Condition, ...]:
        """Methods in the study's order, the base of each model first."""
        return records.conditions_of(self.runs)

    def condition(self, method: str, model: str | None = None) -> Condition | None:
        """The row of a method on a model, by default on the first that has it; None where there is none."""
        return next((row for row in self.conditions if row.method == method and model in (None, row.model)), None)

    @property
    def has_methods(self) -> bool:
        """Whether anything was trained; models that were evaluated alone are given policies without seeds."""
        return any(run.method != BASE for run in self.runs)

    @cached_property
    def reference_title(self) -> str:
        return next((run.title for run in self.runs if run.method == self.reference_method), self.reference_method)

    @cached_property
    def problems(self) -> dict[str, int]:
        """The number of problems of each benchmark."""
        return {name: len(self.scores[self.runs[0].run, name].correct_counts) for name in self.benchmarks}

    @cached_property
    def weights(self) -> list[float]:
        """The weights of the benchmarks in every mean over them; they need not add up to 1."""
        return weights_of(self.weighting, self.problems)

    @property
    def mean_text(self) -> str:
        """The mean over benchmarks in words, with their weights; every table that shows one says it."""
        return f"mean over {counted(len(self.benchmarks), 'benchmark')}, {weighting_text(self.weighting)}"

    @property
    def clusters_note(self) -> str:
        """What intervals and tests are over, for every table that shows some: topics, clusters, single problems."""
        counts = {name: np.bincount(labels) for name, labels in self.clusters.items() if labels is not None}
        topics = [f"{len(sizes)} of {name}" for name, sizes in counts.items() if name in self.by_topic]
        several = {name: sizes[sizes > 1] for name, sizes in counts.items() if name not in self.by_topic}
        told = [f"{sizes.sum()} of {counts[name].sum()} of {name} in {len(sizes)}" for name, sizes in several.items()]
        alone = [name for name in self.benchmarks if name not in counts]
        parts = [
            f"Problems of one topic are a cluster: {', '.join(topics)}." if topics else "",
            f"Problems that are one another but for numbers are a cluster: {', '.join(told)}." if told else "",
            "Intervals, tests and MDE count a cluster once." if counts else "",
        ]
        if alone:
            where = f" of {', '.join(alone)}" if counts else ""
            parts.append(f"Intervals take the problems{where} as independent of one another: no topics are declared.")
        return " ".join(filter(None, parts))

    @property
    def extraction_note(self) -> str:
        """The benchmarks that are graded by the last statement, for every table of scores; nothing without any."""
        return records.extraction_note(self.by_last_statement)

    @property
    def drawn_against(self) -> tuple[str, str]:
        """The method that differences are drawn against, and its name: the base if the reference is the only method."""
        if {run.method for run in self.runs} <= {BASE, self.reference_method}:
            return BASE, "the base model"
        return self.reference_method, self.reference_title

    def average(self, condition: Condition, benchmark: str = ALL_BENCHMARKS) -> Average:
        """The average of a condition over its seeds that did not fall, on one benchmark or over all.

        The values by seed are of all seeds. Base models are given policies: their error has no share of seeds, and the
        interval of a single one on one benchmark is that of its score.
        """
        names, weights = (self.benchmarks, self.weights) if benchmark == ALL_BENCHMARKS else ((benchmark,), None)
        estimate = partial(self.average_over, names=names, weights=weights, is_fixed=condition.method == BASE)
        average, held = estimate(condition), self.held(condition)
        if len(held) == len(condition.runs):
            return average
        return replace(estimate(replace(condition, runs=held)), by_seed=average.by_seed)

    def standing(self, condition: Condition) -> tuple[Run, ...]:
        """The runs of a condition that did not fall; none if every one fell."""
        return tuple(run for run in condition.runs if run.run not in (self.fallen or ()))

    def held(self, condition: Condition) -> tuple[Run, ...]:
        """The runs of a condition that did not fall; all of them if every one fell."""
        return self.standing(condition) or condition.runs

    def average_over(
        self,
        condition: Condition,
        names: Sequence[str],
        of_problem: Callable[[Score], FloatArray] | None = None,
        weights: Sequence[float] | None = None,
        is_fixed: bool | None = None,
    ) -> Average:
        """The average over some benchmarks, beside a published number.

        ``of_problem`` gives each problem's value [N], in fractions of one, in place of its share of correct samples.
        Without ``is_fixed`` the interval of one seed is that of this very policy, as a paper's number is: it knows of
        problems alone.
        """
        k = [1 if of_problem else self.samples[name] for name in names]
        value = of_problem or (lambda score: np.array(score.correct_counts))
        scores = [[value(self.scores[run.run, name]) for run in condition.runs] for name in names]
        rates = [np.array(counts) / samples for counts, samples in zip(scores, k, strict=True)]
        clusters = [self.clusters.get(name) for name in names]
        is_fixed = condition.method == BASE or len(condition.runs) == 1 if is_fixed is None else is_fixed
        bases = [run.base for run in condition.runs if run.base is not None]
        return estimate_average(Arm(rates, k, bases or None, is_fixed), Suite(weights, clusters), self.confidence)

    def rates(self, runs: Sequence[Run]) -> list[FloatArray]:
        """The shares of correct samples [S, N] of runs on each benchmark."""
        counts = [[self.scores[run.run, name].correct_counts for run in runs] for name in self.benchmarks]
        return [np.array(of) / self.samples[name] for of, name in zip(counts, self.benchmarks, strict=True)]

    def by_problem(self, metric: str) -> Callable[[Score], FloatArray] | None:
        """The function from a score to pass@k or cons@k of each problem [N]; None where we do not compute that.

        Of a majority only the mean is stored. It is spread as widely as it can be, over problems right or wrong.
        """
        kind, _, k = metric.partition("@")
        samples, majorities = self.samples_per_problem, [score.majority_at_k for score in self.scores.values()]
        if kind == "pass" and k.isdecimal() and 1 < int(k) <= samples:
            return lambda score: pass_at_k(np.array(score.correct_counts)[:, None], samples, int(k))
        if metric == f"cons@{samples}" and None not in majorities:
            return lambda score: _spread(score.majority_at_k or 0.0, len(score.correct_counts))
        return None

    def comparison(self, condition: Condition, against: str, benchmark: str = ALL_BENCHMARKS) -> Comparison | None:
        """The comparison of a condition, or None for a method against itself and for the base model."""
        return self.comparisons.get((condition.model, condition.method, against, benchmark))

    def verdict(self, condition: Condition) -> str | None:
        """The verdict on a condition against the reference method, in words; None where nothing was compared."""
        if condition.method == self.reference_method:
            return "reference"
        compared = self.comparison(condition, self.reference_method)
        return compared.words if compared else None

    def contrast(self, condition: Condition) -> Contrast | None:
        """The contrast of a condition with the reference method, or None where it was not measured."""
        return self.contrasts.get((condition.model, condition.method))


def _spread(share: float, problems: int) -> FloatArray:
    """Values of problems [N] with a mean, spread as widely as they can be: ones, then at most one part, then zeros."""
    return np.clip(share * problems - np.arange(problems), 0.0, 1.0)


def read_results(runs: Path | Sequence[Run], scores: Sequence[Path], comparisons: Path) -> Results:
    """Read the results of a study, and check that they are whole: every run on every benchmark.

    Every method must be compared with the reference and, where its model's base was scored, with that. ``runs`` is the
    run sheet, or its runs; the benchmarks have the order of ``scores``.
    """
    known = tuple(records.read_runs(runs) if isinstance(runs, Path) else runs)
    if not scores:
        raise UserError("scores: names no file")
    contents = {path: records.BenchmarkScores.read(path) for path in scores}
    by_run = {(score.run, of.benchmark): score for of in contents.values() for score in of.scores}
    for path, content in contents.items():
        if missing := [run.run for run in known if (run.run, content.benchmark) not in by_run]:
            raise InvalidInput(str(path), "scores", f"no score for {', '.join(missing)}, which the study has")
    names = [content.benchmark for content in contents.values()]
    samples = {content.benchmark: content.samples_per_problem for content in contents.values()}
    if len(set(samples.values())) > 1 and any(run.method != BASE for run in known):
        numbers = ", ".join(f"{k} of {name}" for name, k in samples.items())
        raise UserError(f"samples_per_problem: must be the same for every benchmark, found {numbers}")
    compared = Comparisons.read(comparisons)
    within = [row for row in compared.comparisons if row.against_model is None]
    rows = {(row.model, row.method, row.against, row.benchmark): row for row in within}
    methods, against_all = {(run.model, run.method) for run in known}, (compared.reference_method, BASE)
    for (model, method), against, benchmark in product(sorted(methods), against_all, (*names, ALL_BENCHMARKS)):
        is_due = method not in (BASE, against) and (model, against) in methods
        if is_due and (model, method, against, benchmark) not in rows:
            complaint = f"none of {model} {method} against {against} on {benchmark}"
            raise InvalidInput(str(comparisons), "comparisons", complaint)
    return Results(
        runs=known,
        benchmarks=tuple(names),
        samples=samples,
        scores=by_run,
        comparisons=rows,
        **{name: getattr(compared, name) for name in _OF_COMPARISONS},
        between_models=tuple(row for row in compared.comparisons if row.against_model is not None),
        contrasts={(row.model, row.method): row for row in compared.contrasts},
        clusters={of.benchmark: label(of.problem_ids, of.clusters) for of in contents.values()},
        by_topic=tuple(of.benchmark for of in contents.values() if of.by_topic),
        by_last_statement=tuple(of.benchmark for of in contents.values() if of.extraction),
        fallen=None if compared.fallen is None else frozenset(compared.fallen),
        sources=(*([runs] if isinstance(runs, Path) else []), *scores, comparisons),
    )


def read_directory(directory: Path) -> Results:
    """Read the results of a finished study by their directory, ``results/``; benchmarks are in alphabetical order."""
    scores = [path for path in sorted((directory / "scores").glob("*.json")) if ".manifest" not in path.name]
    return read_results(directory / "runs.json", scores, directory / "comparisons.json")
