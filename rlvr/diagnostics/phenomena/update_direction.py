"""Claim 8: the sign of what training did to a token says more than its size, and unlikely tokens move most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from transformers import AutoModelForCausalLM

from evals.core.errors import UserError
from evals.core.files import read_jsonl
from evals.core.run_spec import LocalRun
from evals.decoding.draw import PairDraw
from evals.decoding.settings import Criterion, Decoding, Driver, Mode
from evals.figures.style import MARKERS, new_figure
from evals.generation.backend import BackendSettings, Request
from evals.generation.checkpoint import Checkpoint, load_tokenizer
from evals.generation.registry import load_backend
from evals.generation.sampler import Response, SamplingParameters
from evals.grading import Case, GradingPool
from evals.problems.problem_set import render_prompt
from rlvr.diagnostics.direction import ModelPair
from rlvr.diagnostics.interval import Measurement, measure
from rlvr.diagnostics.phenomena.drawing import SERIES, draw_means, finish
from rlvr.diagnostics.phenomena.findings import Findings
from rlvr.diagnostics.phenomena.sources import Sources
from rlvr.diagnostics.phenomena.token_directions import (
    OVER_LINES,
    UNIT,
    by_problem,
    direction_measurements,
    direction_rows,
    draw_directions,
    log_prob_difference,
    series_row,
)
from rlvr.engines.local.policy import TokenBatch

SAMPLES = 8
FRACTIONS = (0.01, 0.03, 0.1, 0.3)
COMPARED_AT = 0.03
"""The fraction of tokens replaced at which criteria are compared: small enough that what is chosen matters."""
CRITERIA = (Criterion.LOG_PROB_DIFFERENCE, Criterion.KL_TRAINED_BASE, Criterion.ENTROPY, Criterion.RANDOM)


def find(sources: Sources) -> Findings:
    """Both models' responses token by token, and base-driven replacement at several fractions by several criteria.

    Raises:
        UserError: no benchmark was given, or a run's files are missing.
    """
    if not sources.benchmarks:
        raise UserError("update_direction: no benchmark; name one in diagnostics.benchmark")
    problems = read_jsonl(
        sources.results / "problems" / sources.benchmarks[0] / "problems.jsonl", required=("id", "problem", "answer")
    )
    runs = list({moment.run.run: moment.run for moment in sources.moments}.values())
    rows: list[dict[str, Any]] = []
    with GradingPool(workers=1) as pool:
        for run in runs:
            found = _Comparison(run, sources.results / "runs" / run.run, problems, pool).rows()
            rows += [{"run": run.run, **row} for row in found]
            print(f"{run.run}: compared with its base model", flush=True)
    series = pd.DataFrame(rows)
    return Findings("Direction of the update", _METHOD, _measurements(series), series)


class _Comparison:
    """One run beside its base model on a benchmark."""

    def __init__(
        self, run: LocalRun, directory: Path, problems: Sequence[Mapping[str, Any]], pool: GradingPool
    ) -> None:
        base, trained = run.base / "checkpoint", directory / "checkpoint"
        self._run, self._problems, self._pool = run, problems, pool
        self._tokenizer = load_tokenizer(base)
        training = run.training
        prompts = [self._tokenizer.encode(render_prompt(run.prompt, row["problem"])).ids for row in problems]
        self._requests = [
            Request(tuple(prompt), f"direction/{row['id']}/{number}", training.max_new_tokens)
            for row, prompt in zip(problems, prompts, strict=True)
            for number in range(SAMPLES)
        ]
        pair = Checkpoint(base), Checkpoint(trained)
        self._sampling = SamplingParameters(training.max_new_tokens, training.temperature)
        settings = BackendSettings("float32", "cpu", pair[0].context_length(None), pair[0].end_tokens, self._sampling)
        self._backend = load_backend("local", pair, settings)
        models = [AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32) for path in (base, trained)]
        self._models = ModelPair(models[0], models[1], training.temperature)

    def rows(self) -> list[dict[str, Any]]:
        """Per problem: statistics of tokens, accuracies of both models and of each way of replacing."""
        alone = {
            "base": self._sample(Decoding.alone(Driver.BASE)),
            "trained": self._sample(Decoding.alone(Driver.TRAINED)),
        }
        tokens = {name: self._tokens(responses) for name, responses in alone.items()}
        rows = [
            series_row(f"accuracy {name}", value, problem)
            for name, made in alone.items()
            for problem, value in self._graded(made)
        ]
        rows += direction_rows(tokens)
        for criterion in CRITERIA:
            for fraction in FRACTIONS:
                tau = self._threshold(criterion, tokens["base"], fraction)
                decoding = Decoding(mode=Mode.REPLACEMENT, driver=Driver.BASE, criterion=criterion, tau=tau)
                made = self._sample(decoding)
                replaced = sum(each.replaced or 0 for each in made) / sum(len(each.tokens) for each in made)
                rows += [
                    series_row("accuracy replaced", value, problem, criterion.value, fraction, replaced)
                    for problem, value in self._graded(made)
                ]
        return rows

    def _sample(self, decoding: Decoding) -> list[Response]:
        return self._backend.generate(self._requests, partial(PairDraw, decoding, self._sampling))

    def _graded(self, responses: Sequence[Response]) -> list[tuple[str, float]]:
        """Problem -> accuracy."""
        texts = self._tokenizer.decode_batch([each.tokens for each in responses], skip_special_tokens=True)
        verdicts = self._pool.grade(
            [
                Case(text, self._problems[place // SAMPLES]["answer"], truncated=not response.finished)
                for place, (text, response) in enumerate(zip(texts, responses, strict=True))
            ]
        )
        correct = np.array([verdict.correct for verdict in verdicts], dtype=np.float64).reshape(-1, SAMPLES)
        return [(row["id"], float(mean)) for row, mean in zip(self._problems, correct.mean(axis=1), strict=True)]

    def _tokens(self, responses: Sequence[Response]) -> pd.DataFrame:
        """What both models say about the responses' tokens, with the problem of each."""
        batch = TokenBatch([list(each.prompt) for each in self._requests], [each.tokens for each in responses])
        frame = pd.DataFrame({name: values.numpy() for name, values in self._models.compare(batch).items()})
        lengths = [len(each.tokens) for each in responses]
        names = [self._problems[place // SAMPLES]["id"] for place in range(len(responses))]
        return frame.assign(problem=np.repeat(names, lengths), difference=log_prob_difference(frame))

    def _threshold(self, criterion: Criterion, tokens: pd.DataFrame, fraction: float) -> float:
        """The threshold that would replace ``fraction`` of the tokens of the base model's own responses."""
        if criterion is Criterion.RANDOM:
            return fraction
        if criterion is Criterion.LOG_PROB_DIFFERENCE:
            return float(tokens["difference"].quantile(fraction))
        column = "base_entropy" if criterion is Criterion.ENTROPY else "kl_trained_base"
        return float(tokens[column].quantile(1 - fraction))


def _measurements(series: pd.DataFrame) -> list[Measurement]:
    def replaced_by(criterion: Criterion) -> pd.Series:
        rows = series[(series["quantity"] == "accuracy replaced") & (series["criterion"] == criterion.value)]
        return rows[rows["fraction"] == COMPARED_AT].groupby("problem")["value"].mean()

    found = direction_measurements(series)
    own = replaced_by(Criterion.LOG_PROB_DIFFERENCE)
    for criterion in CRITERIA[1:]:
        name = criterion.value
        found.append(
            measure(
                f"Replacing by the log-prob difference gains more than by {name}",
                f"accuracy at {COMPARED_AT:.0%} replaced, log_prob_difference less {name}",
                (own - replaced_by(criterion)).tolist(),
                UNIT,
            )
        )
    for name in ("base", "trained"):
        accuracy = by_problem(series, f"accuracy {name}").tolist()
        found.append(measure("", f"accuracy of the {name} model alone", accuracy, UNIT, direction=None))
    at_compared = f"accuracy at {COMPARED_AT:.0%} replaced by the log-prob difference"
    found.append(measure("", at_compared, own.tolist(), UNIT, direction=None))
    return found


def draw(findings: Findings) -> Figure:
    """Log-prob difference, KL and entropy of both models' tokens, the probability beside them, and replacement."""
    series = findings.series
    figure = new_figure(10.0, 6.6)
    (histogram, spread), (relation, curves) = figure.subplots(2, 2)
    draw_directions(histogram, spread, relation, series)
    replaced = series[series["quantity"] == "accuracy replaced"]
    means = replaced.groupby(["criterion", "fraction", "problem"])[["value", "replaced"]].mean().reset_index()
    for place, criterion in enumerate(CRITERIA):
        rows = means[means["criterion"] == criterion.value]
        rows = rows.assign(replaced=rows.groupby("fraction")["replaced"].transform("mean"))
        draw_means(curves, rows, "replaced", "value", SERIES[place], criterion.value.replace("_", " "), MARKERS[place])
    for name, line in (("base", ":"), ("trained", "--")):
        level = series[series["quantity"] == f"accuracy {name}"]["value"].mean()
        curves.axhline(level, color="#4d4d4d", linestyle=line, linewidth=0.9, label=f"{name} model alone")
    curves.set(title="Base model with tokens replaced", xlabel="fraction replaced", ylabel="accuracy", xscale="log")
    curves.legend(fontsize=7, **OVER_LINES)
    rows_by = {each.quantity: each for each in findings.measurements}
    base, trained = (rows_by[f"accuracy of the {name} model alone"].estimate for name in ("base", "trained"))
    own = findings.measurements[-1].estimate
    finding = (
        f"Replacing {COMPARED_AT:.0%} of the base model's tokens by the log-prob difference gives {own:.2f} accuracy, "
        f"between {base:.2f} (base) and {trained:.2f} (trained)"
    )
    return finish(figure, finding, findings.measurements)


_METHOD = (
    f"Base model and final checkpoint of each run answered the benchmark, {SAMPLES} samples a problem, and both models "
    "gave every token of both models' responses a log-probability, an entropy and the KL divergence between their "
    "distributions, over the whole vocabulary. Then the base model decoded, and where a criterion fired the trained "
    "model drew the token again. Thresholds are quantiles of the criterion on the base model's own responses to the "
    "same problems, so that each criterion replaces about the same fraction; the figure shows the fraction that it did "
    "replace. No threshold was chosen by accuracy. Values are means over runs, the interval is over problems, so it "
    "holds no spread between seeds. The lemma on gradient norms is a test."
)
