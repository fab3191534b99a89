"""The curves of the report as data, which its script draws: each with a line for every method.

Static figures show the training runs too; here a reader chooses what is drawn, hides methods and reads off values.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from evals.core.records import BASE, Condition
from evals.figures.efficiency import COSTS, over_cost
from evals.figures.style import method_styles
from evals.results import Results
from evals.statistics.accuracy import FloatArray
from evals.tables.efficiency import read_courses, read_totals
from rlvr.report.curves import CURVES, of_seeds, read_metrics

_DASHES = {"-": "", "--": "7 3", "-.": "7 3 1.5 3"}
HELD_OUT = "Held-out score"
_COST_POINTS = 60
_Line = list[list[float | None]]
_SHARES = np.linspace(0, 1, 41)
"""Shares of correct responses at which the number of problems solved so often is shown."""


def charts(results: Results, training: Path) -> dict[str, Any]:
    """Describe every curve of a study; percentages are of 100.

    Returns:
        ``methods``: title, colour and dashes of each; ``views``: of each curve its group and name, the labels of its
        axes, and for every method x and the mean, the smallest and the largest seed, or null where there is none.
    """
    styles = method_styles(results.runs)
    methods = [
        {"title": row.title, "colour": styles[row.method].colour, "dashes": _dashes(styles[row.method].line)}
        for row in results.conditions
    ]
    return {
        "methods": methods,
        "views": [
            *_of_runs(results, training),
            *_of_validation(results, training),
            *_of_scores(results),
            *_of_problems(results),
        ],
    }


def _of_runs(results: Results, training: Path) -> Iterator[dict[str, Any]]:
    """The metrics over the steps, and the reward over cost."""
    rows = [row for row in results.conditions if row.method != BASE]
    metrics = {run.run: read_metrics(run.run, training) for row in rows for run in row.runs}
    for curve in CURVES if rows else ():
        lines = {}
        for row in rows:
            seeds = of_seeds([metrics[run.run] for run in row.runs], curve)
            lines[row] = _line(seeds.index.to_numpy(), seeds.to_numpy(dtype=np.float64).T)
        axes = {"x": "rollout step", "y": f"{curve.title}, {curve.unit}", "fromZero": curve.from_zero}
        yield _view(results, "Training", curve.title, lines, **axes)
    totals = {run.run: read_totals(run.run, training) for row in rows for run in row.runs}
    for cost, title in COSTS.items() if rows else ():
        courses = {row: over_cost([totals[run.run] for run in row.runs], cost, _COST_POINTS) for row in rows}
        lines = {row: _line(spent, 100 * seeds) for row, (spent, seeds) in courses.items()}
        yield _view(results, "Training", f"Reward over {title}", lines, x=title, y="Reward, %")


def _of_validation(results: Results, training: Path) -> Iterator[dict[str, Any]]:
    """The scores on held-out problems along the training runs over cost, of the methods that were validated."""
    trained = [row for row in results.conditions if row.method != BASE]
    courses = {row: courses_of_run for row in trained if (courses_of_run := read_courses(row, training))}
    for cost, title in COSTS.items() if courses else ():
        lines = {
            row: _line(of_row[cost].compute.mean(axis=0), 100 * of_row[cost].accuracies.mean(axis=2)[:, 1:])
            for row, of_row in courses.items()
        }
        yield _view(results, HELD_OUT, f"{HELD_OUT} over {title}", lines, x=title, y="Score, %")


def _of_scores(results: Results) -> Iterator[dict[str, Any]]:
    """pass@k, and how many problems are solved in at least so many of their responses."""
    chosen = {"all benchmarks": results.benchmarks} if len(results.benchmarks) > 1 else {}
    chosen |= {name: (name,) for name in results.benchmarks}
    for title, names in chosen.items():
        weights = results.weights if len(names) > 1 else None
        lines = {}
        for row in results.conditions:
            scores = [[results.scores[run.run, name] for name in names] for run in row.runs]
            k = sorted(map(int, scores[0][0].pass_at_k))
            rates = [[[score.pass_at_k[str(number)] for number in k] for score in of_seed] for of_seed in scores]
            lines[row] = _line(np.array(k), 100 * np.average(rates, axis=1, weights=weights))
        axes = {"x": "k, responses of which one has to be correct", "y": "pass@k, %", "isLogarithmic": True}
        yield _view(results, "pass@k", f"pass@k, {title}", lines, **axes)
    for title, names in chosen.items():
        lines = {}
        for row in results.conditions:
            counts = np.concatenate([_correct_shares(results, row, name) for name in names])
            solved = np.mean(counts >= _SHARES[:, None] - 1e-9, axis=1)  # [shares]
            lines[row] = _line(100 * _SHARES, 100 * solved[None])
        axes = {"x": "at least this share of responses correct, %", "y": "Problems, %", "fromZero": True}
        yield _view(results, "Problems", f"Problems solved, {title}", lines, **axes)


def _of_problems(results: Results) -> Iterator[dict[str, Any]]:
    """Every problem as a point: how often a method solves it, over how often the reference method or the base does."""
    against = dict.fromkeys((results.drawn_against[0], BASE)) if results.has_methods else {}
    for method, name in ((method, name) for method in against for name in results.benchmarks):
        lines = dict[Condition, _Line]()
        for row in results.conditions:
            given = [other for other in results.conditions if (other.model, other.method) == (row.model, method)]
            if given and row.method not in (method, BASE):
                shares = [_correct_shares(results, drawn, name) for drawn in (given[0], row)]
                lines[row] = [[float(f"{100 * share:.4g}") for share in of_method] for of_method in shares]
        title = "the base model" if method == BASE else results.drawn_against[1]
        axes = {"x": f"correct responses of {title}, %", "y": "Correct responses, %", "isOfProblems": True}
        if lines:
            yield _view(results, "Problem by problem", f"{name}, against {title}", lines, **axes)


def _correct_shares(results: Results, row: Condition, benchmark: str) -> FloatArray:
    """The share of correct responses to each problem [N], over all seeds of a method."""
    counts = [results.scores[run.run, benchmark].correct_counts for run in row.runs]
    shares: FloatArray = np.mean(counts, axis=0) / results.samples[benchmark]
    return shares


def at_the_end(shown: dict[str, Any], name: str) -> dict[str, float]:
    """The last mean of every method that a curve of :func:`charts` has, by title; none without that curve."""
    lines = next((view["lines"] for view in shown["views"] if view["name"] == name), [None] * len(shown["methods"]))
    named = zip(shown["methods"], lines, strict=True)
    return {method["title"]: line[1][-1] for method, line in named if line and line[1][-1] is not None}


def _view(results: Results, group: str, name: str, lines: Mapping[Condition, _Line], **axes: Any) -> dict[str, Any]:
    """A curve with a line for every method; null where there is none, as the base model has no training."""
    shown = [
        line if (line := lines.get(row)) and any(value is not None for value in line[1]) else None
        for row in results.conditions
    ]
    return {"group": group, "name": name, **axes, "lines": shown}


def _line(x: np.ndarray, seeds: np.ndarray) -> _Line:
    """The points x [P], then mean, smallest and largest of ``seeds`` [S, P]; of one seed its values alone."""
    values = [seeds.mean(axis=0), *([seeds.min(axis=0), seeds.max(axis=0)] if len(seeds) > 1 else [])]
    return [[float(f"{value:.5g}") if np.isfinite(value) else None for value in row] for row in (x, *values)]


def _dashes(line: Any) -> str:
    """A line style of matplotlib as SVG has it."""
    return _DASHES[line] if isinstance(line, str) else " ".join(f"{2 * length:g}" for length in line[1])
