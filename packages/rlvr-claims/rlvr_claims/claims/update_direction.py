"""Claim 8: the sign of what training did to a token says more than its size, and unlikely tokens move most."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import mannwhitneyu

from evals.core.records import Problem
from evals.core.run_spec import LocalRun
from evals.core.sampling import SamplingParameters
from evals.figures.style import MARKERS
from evals.generation.backend import Response
from evals.generation.checkpoint import Checkpoint, load_tokenizer
from evals.grading import GradingPool
from rlvr.engines.local.policy import TokenBatch, load_policy
from rlvr_claims.claims.claim import Claim
from rlvr_claims.claims.findings import Findings, select
from rlvr_claims.claims.inputs import Inputs
from rlvr_claims.claims.panels import NEGATIVE, POSITIVE, SERIES, Histogram, Layout, Level, Means, Panel, panel
from rlvr_claims.claims.sampling_settings import SAMPLES, accuracies, load_local, requests_for
from rlvr_claims.compare import ModelPair
from rlvr_claims.decoding.draw import PairDraw
from rlvr_claims.decoding.settings import DRIVERS, Decoding
from rlvr_claims.measures import MOVED, FloatArray, log_prob_difference, rank_correlation
from rlvr_claims.settings import USUAL, Criterion

_COMPARED_AT = 0.03
"""The fraction of tokens replaced at which criteria are compared: small enough that the choice of tokens matters."""
_OVER_LINES: dict[str, Any] = {"fontsize": 7, "frameon": True, "framealpha": 0.85, "edgecolor": "none"}


class UpdateDirection(Claim):
    """Both models' responses token by token, and base-driven replacement at several fractions by several criteria."""

    size = (10.0, 6.6)

    def rows(self, inputs: Inputs) -> Iterator[dict[str, Any]]:
        problems = inputs.problems()
        with GradingPool(workers=1) as pool:
            for run in {snapshot.run.run: snapshot.run for snapshot in inputs.snapshots()}.values():
                for row in benchmark_rows(run, inputs.results / "runs" / run.run, problems, pool):
                    yield {"run": run.run, **row}
                print(f"{run.run}: compared with its base model", flush=True)

    def values(self, series: pd.DataFrame) -> Mapping[Any, Any]:
        return _by_name(series)

    def panels(self, findings: Findings) -> Layout:
        series = findings.series
        replaced = select(series, quantity="accuracy replaced")
        means = replaced.groupby(["criterion", "fraction", "problem"])[["value", "replaced"]].mean().reset_index()
        curves, levels = list[Means](), list[Level]()
        for criterion, colour, marker in zip(USUAL, SERIES, MARKERS, strict=False):
            rows = select(means, criterion=criterion)
            rows = rows.assign(replaced=rows.groupby("fraction")["replaced"].transform("mean"))
            curves.append(Means(rows, "replaced", "value", colour, criterion.replace("_", " "), marker))
        for name, line in (("base", ":"), ("trained", "--")):
            accuracy = float(select(series, quantity=f"accuracy {name}")["value"].mean())
            levels.append(Level(accuracy, "#4d4d4d", line, f"{name} model alone"))
        axes: Any = {"x": "fraction replaced", "y": "accuracy", "xscale": "log", "legend": _OVER_LINES}
        differences, spread, relation = _direction_panels(series)
        return [[differences, spread], [relation, panel("Base model with tokens replaced", *curves, *levels, **axes)]]


class UpdateDirectionOfCheckpoints(Claim):
    """The update direction between any two checkpoints, on the tokens of given responses, without replacement."""

    size = (11.0, 3.5)

    def rows(self, inputs: Inputs) -> Iterator[dict[str, Any]]:
        return direction_rows(inputs.compared_tokens())

    def values(self, series: pd.DataFrame) -> Mapping[Any, Any]:
        return _by_name(series)

    def panels(self, findings: Findings) -> Layout:
        return [_direction_panels(findings.series)]


def _by_name(series: pd.DataFrame) -> dict[str, pd.Series]:
    """Each quantity by problem, its mean over runs; of replacement at the fraction compared, by criterion."""
    replaced = select(series, quantity="accuracy replaced", fraction=_COMPARED_AT)
    alone = series[(series["problem"] != "") & (series["criterion"] == "")]
    names = [*alone.groupby("quantity"), *((f"replaced {name}", rows) for name, rows in replaced.groupby("criterion"))]
    return {str(name): rows.groupby("problem")["value"].mean() for name, rows in names}


def _direction_panels(series: pd.DataFrame) -> list[Panel]:
    """The log-prob difference, KL and entropy beside it, and the displacement of tokens of each probability."""

    def histogram(quantity: str, colour: str, line: str, label: str) -> Histogram:
        return Histogram(select(series, quantity=f"histogram {quantity}"), "fraction", colour, label, line, "post")

    given = "histogram difference given" in set(series["quantity"])
    both = (("trained", POSITIVE, "trained model's responses"), ("base", NEGATIVE, "base model's responses"))
    differences, spread = list[Histogram](), list[Histogram]()
    for source, colour, words in (("given", POSITIVE, "the responses"),) if given else both:
        differences.append(histogram(f"difference {source}", colour, "-", words))
        spread.append(histogram(f"kl_trained_base {source}", colour, "-", f"KL, {words}"))
        spread.append(histogram(f"base_entropy {source}", colour, ":", f"entropy, {words}"))
    moved = select(series, quantity="moved by probability")
    means = Means(moved.groupby(["fraction", "problem"])["value"].mean().reset_index(), "fraction", "value")
    axes: Any = {"y": "fraction of tokens", "yscale": "log", "legend": _OVER_LINES}
    title, words = "KL(trained, base) and the base's entropy", "nats (cut at 1e-6 and 10)"
    moves: Any = {"x": "probability under the base model", "y": "mean |log-prob difference| (nats)"}
    return [
        panel("What training did to tokens", *differences, **axes, x="log-prob difference (nats, cut at 3)"),
        panel(title, *spread, **axes, x=words, xscale="log"),
        panel("How far tokens of each probability moved", means, **moves, ylim=(0, None)),
    ]


FRACTIONS = (0.01, 0.03, 0.1, 0.3)
_PROBABILITY_BINS = 10
_HISTOGRAMS = {
    "difference": np.linspace(-3, 3, 61),
    "kl_trained_base": np.geomspace(1e-6, 10, 43),
    "base_entropy": np.geomspace(1e-6, 10, 43),
}
"""Column -> edges of its bins, in nats; values beyond are counted in the last bins."""
_SEPARATED = {"difference": "difference", "KL": "kl_trained_base", "entropy": "base_entropy"}


def benchmark_rows(
    run: LocalRun, directory: Path, problems: Sequence[Problem], pool: GradingPool
) -> Iterator[dict[str, Any]]:
    """Rows of the accuracy of both models alone, of their tokens, and of the base model with tokens replaced.

    ``directory`` is the run's.
    """
    base, trained = run.base / "checkpoint", directory / "checkpoint"
    tokenizer, training = load_tokenizer(base), run.training
    requests = requests_for(run, problems, "direction")
    problem_of = [problem for problem in problems for _ in range(SAMPLES)]
    pair = Checkpoint(base), Checkpoint(trained)
    sampling = SamplingParameters(max_new_tokens=training.max_new_tokens, temperature=training.temperature)
    backend = load_local(pair, run, sampling)
    policies = [load_policy(response, "cpu") for response in pair]
    models = ModelPair(policies[0], policies[1], training.temperature)

    def sample(decoding: Decoding) -> list[Response]:
        return backend.generate(requests, partial(PairDraw, decoding, sampling))

    def by_problem(responses: Sequence[Response]) -> Iterator[tuple[str, float]]:
        shares = accuracies(tokenizer, problems, requests, responses, pool)
        return zip((str(problem.id) for problem in problems), shares, strict=True)

    def tokens_of(responses: Sequence[Response]) -> pd.DataFrame:
        batch = TokenBatch(
            [list(response.prompt) for response in requests], [response.tokens for response in responses]
        )
        frame = pd.DataFrame({name: values.numpy() for name, values in models.compare(batch).items()})
        names = np.repeat([problem.id for problem in problem_of], [len(response.tokens) for response in responses])
        return frame.assign(problem=names)

    alone: dict[str, list[Response]] = {driver: sample(Decoding.alone(driver)) for driver in DRIVERS}
    for name, responses in alone.items():
        for problem, value in by_problem(responses):
            yield _row(f"accuracy {name}", value, problem)
    tokens: dict[str, pd.DataFrame] = {name: tokens_of(responses) for name, responses in alone.items()}
    yield from direction_rows(tokens)
    for criterion, fraction in product(USUAL, FRACTIONS):
        tau = _threshold(criterion, tokens["base"], fraction)
        made = sample(Decoding(mode="replacement", driver="base", criterion=criterion, tau=tau))
        replaced = sum(response.replaced or 0 for response in made) / sum(len(response.tokens) for response in made)
        for problem, value in by_problem(made):
            yield _row("accuracy replaced", value, problem, criterion, fraction, replaced)


def _threshold(criterion: Criterion, tokens: pd.DataFrame, fraction: float) -> float:
    """The threshold that would replace ``fraction`` of the tokens of the base model's own responses."""
    if criterion == "random":
        return fraction
    if criterion == "log_prob_difference":
        return float(log_prob_difference(tokens).quantile(fraction))
    # The base model drives, so the trained one is the assistant.
    columns = {"entropy": "base_entropy", "assistant_entropy": "trained_entropy"}
    return float(tokens[columns.get(criterion, criterion)].quantile(1 - fraction))


def direction_rows(tokens: Mapping[str, pd.DataFrame]) -> Iterator[dict[str, Any]]:
    """Rows of the series.

    ``tokens`` are those of the "trained" and the "base" model's responses, or of "given" ones, with problem and
    :data:`~rlvr.tokens.table.MODEL_COLUMNS`.
    """
    sources = [frame.assign(source=name, difference=log_prob_difference(frame)) for name, frame in tokens.items()]
    every = pd.concat(sources)
    for problem, frame in every.groupby("problem"):
        name = str(problem)
        if {"base", "trained"} <= tokens.keys():
            for quantity, column in _SEPARATED.items():
                base, trained = (
                    frame.loc[frame["source"] == source_name, column] for source_name in ("base", "trained")
                )
                yield _row(f"separation {quantity}", separation(trained.to_numpy(float), base.to_numpy(float)), name)
        moved = frame["difference"].abs().to_numpy(float)
        probability = np.exp(frame["base_log_prob"].to_numpy(float))
        yield _row("moved fraction", float((moved > MOVED).mean()), name)
        yield _row("correlation with probability", rank_correlation(moved, probability), name)
        bins = np.minimum((probability * _PROBABILITY_BINS).astype(int), _PROBABILITY_BINS - 1)
        for index in np.unique(bins):
            middle = (index + 0.5) / _PROBABILITY_BINS
            yield _row("moved by probability", float(moved[bins == index].mean()), name, fraction=middle)
    for (source, frame), (column, edges) in product(zip(tokens, sources, strict=True), _HISTOGRAMS.items()):
        values = frame[column].astype("float64").clip(edges[0], np.nextafter(edges[-1], 0))
        counts = np.histogram(values, bins=edges)[0] / len(frame)
        for edge, share in zip(edges[:-1], counts, strict=True):
            yield _row(f"histogram {column} {source}", float(share), fraction=float(edge))


def _row(
    quantity: str, value: float, problem: str = "", criterion: str = "", fraction: float = nan, replaced: float = nan
) -> dict[str, Any]:
    """One row of the series; ``fraction`` is the argument that ``quantity`` is a function of."""
    identity = {"quantity": quantity, "criterion": criterion, "problem": problem}
    return {**identity, "fraction": fraction, "replaced": replaced, "value": value}


def separation(first: FloatArray, second: FloatArray) -> float:
    """Return |AUC - 1/2| in [0, 1/2] of a number in two samples, ties counting half; NaN if one is empty."""
    if not len(first) or not len(second):
        return nan
    return abs(float(mannwhitneyu(first, second, method="asymptotic").statistic) / (len(first) * len(second)) - 0.5)
