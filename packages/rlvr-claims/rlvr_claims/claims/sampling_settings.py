"""Claim 12: what training gains does not hang on the temperature and top-p that answers are sampled with.

arXiv 2605.08666, Table 4: methods compared under four sampling settings. The paper's values are lost in the text that
we had but for one pair, 0.6 and 0.95, which is inferred; the others are ours.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from tokenizers import Tokenizer

from evals.core.records import Problem
from evals.core.run_spec import LocalRun
from evals.core.sampling import SamplingParameters
from evals.figures.style import MARKERS
from evals.generation.backend import Backend, BackendSettings, Request, Response, load_backend
from evals.generation.chat import end_tokens
from evals.generation.checkpoint import Checkpoint
from evals.generation.plan import encode_prompts
from evals.generation.thinking import case_of
from evals.grading import GradingPool
from evals.problems.problem_set import render_prompt
from rlvr_claims.claims.base import Need
from rlvr_claims.claims.claim import Claim
from rlvr_claims.claims.findings import Findings, Measurement, beside, measure, select
from rlvr_claims.claims.inputs import Inputs
from rlvr_claims.claims.panels import SERIES, Estimates, Layout, panel

SAMPLES = 8


def requests_for(run: LocalRun, problems: Sequence[Problem], stream: str) -> list[Request]:
    """Ask for the samples of each problem with the run's prompt, in its form; ``stream`` names their random numbers."""
    texts = [render_prompt(run.prompt, problem.problem) for problem in problems]
    prompts = encode_prompts(
        Checkpoint(run.base / "checkpoint"), texts, run.prompt_form, template=run.chat_template_kwargs
    )
    return [
        Request(prompt, f"{stream}/{problem.id}/{number}", run.training.max_new_tokens)
        for problem, prompt in zip(problems, prompts, strict=True)
        for number in range(SAMPLES)
    ]


def accuracies(
    tokenizer: Tokenizer,
    problems: Sequence[Problem],
    requests: Sequence[Request],
    responses: Sequence[Response],
    pool: GradingPool,
) -> list[float]:
    """Return the share of right answers to each problem, of responses to :func:`requests_for`."""
    golds = [problem.answer for problem in problems for _ in range(SAMPLES)]
    cases = [
        case_of(tokenizer, request.prompt, response.tokens, response.finished, gold)
        for request, response, gold in zip(requests, responses, golds, strict=True)
    ]
    correct = np.array([verdict.correct for verdict in pool.grade(cases)], dtype=np.float64)
    return [float(mean) for mean in correct.reshape(-1, SAMPLES).mean(axis=1)]


SETTINGS = ((1.0, 1.0), (1.0, 0.7), (0.6, 1.0), (0.6, 0.95))
"""Temperature and top-p: as in training, as DAPO, DelTA and RLVR-Directions evaluate, colder, and the paper's own."""
BASE = "base model"
_UNIT = "problems"


class SamplingSettings(Claim):
    """Accuracy of base model, diagnosed method and, where there is one, weighting method under each setting."""

    size = (7.0, 3.6)

    def rows(self, inputs: Inputs) -> Iterator[dict[str, Any]]:
        problems = inputs.problems()
        snapshots = [*inputs.snapshots(), *inputs.snapshots(Need.WEIGHTING_TABLES)]
        runs = {snapshot.run.run: snapshot.run for snapshot in snapshots}
        models: dict[Path, tuple[str, LocalRun]] = {run.base / "checkpoint": (BASE, run) for run in runs.values()}
        for name, run in runs.items():
            models[inputs.results / "runs" / name / "checkpoint"] = (run.method_name, run)
        with GradingPool(workers=1) as pool:
            for checkpoint, (model, run) in models.items():
                for temperature, top_p in SETTINGS:
                    sampling = SamplingParameters(
                        max_new_tokens=run.training.max_new_tokens, temperature=temperature, top_p=top_p
                    )
                    shares = accuracy_by_problem(checkpoint, run, problems, sampling, pool)
                    for problem, value in zip(problems, shares, strict=True):
                        condition = {"model": model, "temperature": temperature, "top_p": top_p}
                        yield {**condition, "problem": str(problem.id), "value": value}
                print(f"{checkpoint}: sampled", flush=True)

    def measurements(self, series: pd.DataFrame) -> Iterator[Measurement]:
        first, *others = trained_methods(series)
        for setting in SETTINGS:
            means = by_model(series, setting)
            yield measure(
                f"Training gains ({_words(setting)})",
                f"accuracy of {first} less that of the {BASE}",
                means[first] - means[BASE],
                _UNIT,
            )
        for setting in SETTINGS:
            means = by_model(series, setting)
            for name in (BASE, first, *others):
                yield beside(f"accuracy of {name} ({_words(setting)})", means[name], _UNIT)
            for other in others:
                yield beside(
                    f"accuracy of {other} less that of {first} ({_words(setting)})", means[other] - means[first], _UNIT
                )

    def panels(self, findings: Findings) -> Layout:
        names = (BASE, *trained_methods(findings.series))
        settings = {_words(setting).replace(", ", "\n"): by_model(findings.series, setting) for setting in SETTINGS}
        marks = []
        for number, (name, colour, marker) in enumerate(zip(names, SERIES, MARKERS, strict=False)):
            accuracies = {words: means[name] for words, means in settings.items()}
            marks.append(Estimates(accuracies, colour, marker, name, 0.1 * (number - (len(names) - 1) / 2)))
        return [[panel("Accuracy by sampling setting", *marks, y="accuracy")]]

    def title(self, findings: Findings) -> str:
        gains = [gain.estimate for gain in findings.measurements[: len(SETTINGS)]]
        return f"Training gains {100 * min(gains):.0f} to {100 * max(gains):.0f} points, by the sampling setting"


def load_local(models: Sequence[Checkpoint], run: LocalRun, sampling: SamplingParameters) -> Backend:
    """Load the study's own sampler of one model, or of two that decode together, in float32 on the CPU."""
    ends = list(end_tokens(models[0], run.prompt_form, run.chat_template_kwargs))
    return load_backend(
        "local", models, BackendSettings("float32", "cpu", models[0].context_length(None), ends, sampling)
    )


def accuracy_by_problem(
    checkpoint: Path, run: LocalRun, problems: Sequence[Problem], sampling: SamplingParameters, pool: GradingPool
) -> list[float]:
    """Return the share of right answers to each problem."""
    model, requests = Checkpoint(checkpoint), requests_for(run, problems, "settings")
    responses = load_local([model], run, sampling).generate(requests)
    return accuracies(model.tokenizer, problems, requests, responses, pool)


def by_model(series: pd.DataFrame, setting: tuple[float, float]) -> pd.DataFrame:
    """Return the accuracy of each problem (rows) and model (columns) under a setting, its runs' mean."""
    temperature, top_p = setting
    rows = select(series, temperature=temperature, top_p=top_p)
    return rows.pivot_table(index="problem", columns="model", values="value", aggfunc="mean", sort=False)


def trained_methods(series: pd.DataFrame) -> list[str]:
    """Return the methods in the order of the rows."""
    return [name for name in series["model"].unique() if name != BASE]


def _words(setting: tuple[float, float]) -> str:
    temperature, top_p = setting
    return f"temperature {temperature:g}, top-p {top_p:g}"
