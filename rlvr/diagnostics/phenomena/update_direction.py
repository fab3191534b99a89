"""Claim 8: the sign of what training did to a token says more than its size, and unlikely tokens move most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from transformers import AutoModelForCausalLM

from evals.artifacts import read_jsonl
from evals.decoding.criteria import Criterion
from evals.decoding.local_pair import LocalPair
from evals.decoding.settings import Decoding, Driver, Mode
from evals.errors import UserError
from evals.figures.style import MARKERS, new_figure
from evals.generation.backend import BackendSettings, Request
from evals.generation.checkpoint import context_length, end_token_ids, load_tokenizer
from evals.generation.sampler import Response, SamplingParameters
from evals.grading import Case, GradingPool
from evals.problems.problem_set import render_prompt
from rlvr.diagnostics.coefficients import rank_correlation
from rlvr.diagnostics.direction import ModelPair, separation
from rlvr.diagnostics.interval import Measurement, measure
from rlvr.diagnostics.phenomena.drawing import NEGATIVE, POSITIVE, SERIES, draw_means, finish
from rlvr.diagnostics.phenomena.findings import Findings
from rlvr.diagnostics.phenomena.sources import Sources
from rlvr.engines.local.policy import TokenBatch
from rlvr.engines.local.resolved_run import ResolvedRun

SAMPLES = 8
FRACTIONS = (0.01, 0.03, 0.1, 0.3)
COMPARED_AT = 0.03
"""The fraction of tokens replaced at which criteria are compared: small enough that what is chosen matters."""
CRITERIA = (Criterion.LOG_PROB_DIFFERENCE, Criterion.KL_TRAINED_BASE, Criterion.ENTROPY, Criterion.RANDOM)
MOVED = 0.1  # nats
PROBABILITY_BINS = 10
_OVER_LINES: dict[str, Any] = {"frameon": True, "framealpha": 0.85, "edgecolor": "none"}
HISTOGRAMS = {
    "difference": np.linspace(-3, 3, 61),
    "kl_trained_base": np.geomspace(1e-6, 10, 43),
    "base_entropy": np.geomspace(1e-6, 10, 43),
}
"""Column -> edges of its bins, in nats; what lies beyond is counted in the last bins."""
_UNIT = "problems"


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
            rows += _Comparison(run, sources.results / "runs" / run.run, problems, pool).rows()
            print(f"{run.run}: compared with its base model", flush=True)
    series = pd.DataFrame(rows)
    return Findings("Direction of the update", _METHOD, _measurements(series), series)


class _Comparison:
    """One run beside its base model on a benchmark."""

    def __init__(
        self, run: ResolvedRun, directory: Path, problems: Sequence[Mapping[str, Any]], pool: GradingPool
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
        settings = BackendSettings("local", "float32", "cpu", context_length(base, None))
        sampling = SamplingParameters(training.max_new_tokens, training.temperature)
        self._pair = LocalPair(base, trained, settings, sampling, end_token_ids(base))
        models = [AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32) for path in (base, trained)]
        self._models = ModelPair(models[0], models[1], training.temperature)

    def rows(self) -> list[dict[str, Any]]:
        """Per problem: statistics of tokens, accuracies of both models and of each way of replacing."""
        alone = {
            "base": self._sample(Decoding(Mode.REPLACEMENT, Driver.BASE, Criterion.RANDOM, 0.0)),
            "trained": self._sample(Decoding(Mode.REPLACEMENT, Driver.TRAINED, Criterion.RANDOM, 0.0)),
        }
        tokens = {name: self._tokens(responses) for name, responses in alone.items()}
        rows = [self._row(f"accuracy {name}", "", *each) for name, made in alone.items() for each in self._graded(made)]
        rows += self._token_rows(tokens)
        for criterion in CRITERIA:
            for fraction in FRACTIONS:
                decoding = Decoding(
                    Mode.REPLACEMENT, Driver.BASE, criterion, self._threshold(criterion, tokens["base"], fraction)
                )
                made = self._sample(decoding)
                replaced = sum(each.replaced for each in made) / sum(len(each.tokens) for each in made)
                rows += [
                    self._row("accuracy replaced", criterion.value, *each)
                    | {"fraction": fraction, "replaced": replaced}
                    for each in self._graded(made)
                ]
        return rows

    def _sample(self, decoding: Decoding) -> list[Any]:
        return list(self._pair.generate(self._requests, decoding))

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
        frame["problem"] = np.repeat(names, lengths)
        frame["difference"] = frame["trained_log_prob"] - frame["base_log_prob"]
        return frame

    def _threshold(self, criterion: Criterion, tokens: pd.DataFrame, fraction: float) -> float:
        """The threshold that would replace ``fraction`` of the tokens of the base model's own responses."""
        if criterion is Criterion.RANDOM:
            return fraction
        if criterion is Criterion.LOG_PROB_DIFFERENCE:
            return float(tokens["difference"].quantile(fraction))
        column = "base_entropy" if criterion is Criterion.ENTROPY else "kl_trained_base"
        return float(tokens[column].quantile(1 - fraction))

    def _token_rows(self, tokens: Mapping[str, pd.DataFrame]) -> list[dict[str, Any]]:
        rows = []
        both = pd.concat([frame.assign(source=name) for name, frame in tokens.items()])
        for problem, frame in both.groupby("problem"):
            base, trained = (frame[frame["source"] == name] for name in ("base", "trained"))
            columns = {"difference": "difference", "KL": "kl_trained_base", "entropy": "base_entropy"}
            for name, column in columns.items():
                value = separation(trained[column].to_numpy(float), base[column].to_numpy(float))
                rows.append(self._row(f"separation {name}", "", str(problem), value))
            moved = frame["difference"].abs().to_numpy(float)
            rows.append(self._row("moved fraction", "", str(problem), float((moved > MOVED).mean())))
            correlation = rank_correlation(moved, np.exp(frame["base_log_prob"].to_numpy(float)))
            rows.append(self._row("correlation with probability", "", str(problem), correlation))
            probability = np.exp(frame["base_log_prob"].to_numpy(float))
            bins = np.minimum((probability * PROBABILITY_BINS).astype(int), PROBABILITY_BINS - 1)
            for place in np.unique(bins):
                row = self._row("moved by probability", "", str(problem), float(moved[bins == place].mean()))
                rows.append(row | {"fraction": (place + 0.5) / PROBABILITY_BINS})
        for name, frame in tokens.items():
            for column, edges in HISTOGRAMS.items():
                values = frame[column].clip(edges[0], np.nextafter(edges[-1], 0))
                counts = np.histogram(values, bins=edges)[0] / len(frame)
                for place, share in zip(edges[:-1], counts, strict=True):
                    row = self._row(f"histogram {column} {name}", "", "", float(share))
                    rows.append(row | {"fraction": float(place)})
        return rows

    def _row(self, quantity: str, criterion: str, problem: str, value: float) -> dict[str, Any]:
        return {
            "run": self._run.run,
            "quantity": quantity,
            "criterion": criterion,
            "problem": problem,
            "fraction": np.nan,
            "replaced": np.nan,
            "value": value,
        }


def _measurements(series: pd.DataFrame) -> list[Measurement]:
    def by_problem(quantity: str, criterion: str = "") -> pd.Series:
        rows = series[(series["quantity"] == quantity) & (series["criterion"] == criterion)]
        if criterion:
            rows = rows[rows["fraction"] == COMPARED_AT]
        return rows.groupby("problem")["value"].mean()

    def differ(statement: str, quantity: str, first: pd.Series, second: pd.Series) -> Measurement:
        return measure(statement, quantity, (first - second).tolist(), _UNIT)

    difference = by_problem("separation difference")
    replaced = {criterion: by_problem("accuracy replaced", criterion.value) for criterion in CRITERIA}
    own = replaced[Criterion.LOG_PROB_DIFFERENCE]
    found = [
        measure(
            "Training moves few tokens",
            f"fraction of tokens moved by more than {MOVED:g} nats",
            by_problem("moved fraction").tolist(),
            _UNIT,
            null=0.5,
            direction="below",
        ),
        measure(
            "Unlikely tokens move most",
            "rank correlation of |log-prob difference| and the base model's probability",
            by_problem("correlation with probability").tolist(),
            _UNIT,
            direction="below",
        ),
        *(
            differ(
                f"The direction tells the two models' responses apart better than {name}",
                f"|AUC - 1/2| of the log-prob difference less that of {name}",
                difference,
                by_problem(f"separation {name}"),
            )
            for name in ("KL", "entropy")
        ),
    ]
    for criterion in CRITERIA[1:]:
        name = criterion.value
        found.append(
            differ(
                f"Replacing by the log-prob difference gains more than by {name}",
                f"accuracy at {COMPARED_AT:.0%} replaced, log_prob_difference less {name}",
                own,
                replaced[criterion],
            )
        )
    for name in ("base", "trained"):
        accuracy = by_problem(f"accuracy {name}").tolist()
        found.append(measure("", f"accuracy of the {name} model alone", accuracy, _UNIT, direction=None))
    at_compared = f"accuracy at {COMPARED_AT:.0%} replaced by the log-prob difference"
    found.append(measure("", at_compared, own.tolist(), _UNIT, direction=None))
    return found


def draw(findings: Findings) -> Figure:
    """Log-prob difference, KL and entropy of both models' tokens, the probability beside them, and replacement."""
    series = findings.series
    figure = new_figure(10.0, 6.6)
    (histogram, spread), (relation, curves) = figure.subplots(2, 2)
    for name, colour in (("trained", POSITIVE), ("base", NEGATIVE)):
        _draw_histogram(histogram, series, "difference", name, colour, "-", f"{name} model's responses")
        _draw_histogram(spread, series, "kl_trained_base", name, colour, "-", f"KL, {name} model's responses")
        _draw_histogram(spread, series, "base_entropy", name, colour, ":", f"entropy, {name} model's responses")
    histogram.set(
        title="What training did to tokens", xlabel="log-prob difference (nats, cut at 3)", ylabel="fraction of tokens"
    )
    spread.set(
        title="KL(trained, base) and the base's entropy", xlabel="nats (cut at 1e-6 and 10)",
        ylabel="fraction of tokens", xscale="log",
    )  # fmt: skip
    for axes in (histogram, spread):
        axes.set_yscale("log")
        axes.legend(fontsize=7, **_OVER_LINES)
    moved = series[series["quantity"] == "moved by probability"]
    means = moved.groupby(["fraction", "problem"])["value"].mean().reset_index()
    draw_means(relation, means, "fraction", "value", SERIES[0], "both models' responses")
    relation.set(
        title="Unlikely tokens move most", xlabel="probability under the base model",
        ylabel="mean |log-prob difference| (nats)", ylim=(0, None),
    )  # fmt: skip
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
    curves.legend(fontsize=7, **_OVER_LINES)
    rows_by = {each.quantity: each for each in findings.measurements}
    base, trained = (rows_by[f"accuracy of the {name} model alone"].estimate for name in ("base", "trained"))
    own = findings.measurements[-1].estimate
    finding = (
        f"Replacing {COMPARED_AT:.0%} of the base model's tokens by the log-prob difference gives {own:.2f} accuracy, "
        f"between {base:.2f} (base) and {trained:.2f} (trained)"
    )
    return finish(figure, finding, findings.measurements)


def _draw_histogram(
    axes: Axes, series: pd.DataFrame, column: str, name: str, colour: str, line: str, label: str
) -> None:
    rows = series[series["quantity"] == f"histogram {column} {name}"]
    mean = rows.groupby("fraction")["value"].mean()
    axes.step(mean.index.to_numpy(), mean.to_numpy(), line, where="post", color=colour, label=label)


_METHOD = (
    f"Base model and final checkpoint of each run answered the benchmark, {SAMPLES} samples a problem, and both models "
    "gave every token of both models' responses a log-probability, an entropy and the KL divergence between their "
    "distributions, over the whole vocabulary. Then the base model decoded, and where a criterion fired the trained "
    "model drew the token again. Thresholds are quantiles of the criterion on the base model's own responses to the "
    "same problems, so that each criterion replaces about the same fraction; the figure shows the fraction that it did "
    "replace. No threshold was chosen by accuracy. Values are means over runs, the interval is over problems, so it "
    "holds no spread between seeds. The lemma on gradient norms is a test."
)
