"""Both models' numbers of response tokens as rows, and one run beside its base model on a benchmark."""

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
from evals.generation.backend import BackendSettings, load_backend
from evals.generation.chat import end_tokens
from evals.generation.checkpoint import Checkpoint, load_tokenizer
from evals.generation.request import Response
from evals.grading import GradingPool
from rlvr.engines.local.policy import TokenBatch, load_policy
from rlvr_claims.claims.benchmark_samples import SAMPLES, accuracies, requests_for
from rlvr_claims.decoding.draw import PairDraw
from rlvr_claims.decoding.settings import DRIVERS, Decoding
from rlvr_claims.measures import MOVED, FloatArray, log_prob_difference, rank_correlation
from rlvr_claims.model_pair import ModelPair
from rlvr_claims.settings import Criterion

FRACTIONS = (0.01, 0.03, 0.1, 0.3)
CRITERIA: tuple[Criterion, ...] = ("log_prob_difference", "kl_trained_base", "entropy", "assistant_entropy", "random")
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
    settings = BackendSettings(
        "float32",
        "cpu",
        pair[0].context_length(None),
        list(end_tokens(pair[0], run.prompt_form, run.chat_template_kwargs)),
        sampling,
    )
    backend = load_backend("local", pair, settings)
    policies = [load_policy(response, "cpu") for response in pair]
    models = ModelPair(policies[0], policies[1], training.temperature)

    def sample(decoding: Decoding) -> list[Response]:
        return backend.generate(requests, partial(PairDraw, decoding, sampling))

    def by_problem(responses: Sequence[Response]) -> Iterator[tuple[str, float]]:
        for problem, mean in zip(problems, accuracies(tokenizer, problems, requests, responses, pool), strict=True):
            yield str(problem.id), mean

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
    for criterion, fraction in product(CRITERIA, FRACTIONS):
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
