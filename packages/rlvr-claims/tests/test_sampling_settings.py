"""Accuracies by sampling setting, on rows made by hand, and of a model's own samples."""

import shutil
from itertools import product
from pathlib import Path

import pandas as pd
import pytest

from evals.core.files import write_text
from evals.core.record import read_rows
from evals.core.records import Problem
from evals.core.run_spec import LocalRun
from evals.core.sampling import SamplingParameters
from evals.generation.checkpoint import load_tokenizer
from evals.grading import GradingPool
from rlvr_claims.claims.sampling_settings import (
    BASE,
    SAMPLES,
    SETTINGS,
    SamplingSettings,
    accuracy_by_problem,
    requests_for,
)
from tests.unit.engine.conftest import llama

__all__ = ["llama"]

ACCURACIES = {BASE: (0.2, 0.4), "dapo": (0.5, 0.9), "delta": (0.6, 0.6)}
"""Of two problems at the first setting; each later setting adds 0.1 to trained models, and dapo has two runs."""


def test_gains_and_differences_by_hand() -> None:
    rows = []
    for (temperature, top_p), (model, values) in product(SETTINGS, ACCURACIES.items()):
        for spread in (-0.05, 0.05) if model == "dapo" else (0.0,):
            for problem, value in zip("pq", values, strict=True):
                found = value + spread + 0.1 * SETTINGS.index((temperature, top_p)) * (model != BASE)
                rows.append((model, temperature, top_p, problem, found))
    series = pd.DataFrame(rows, columns=["model", "temperature", "top_p", "problem", "value"])
    measured = list(SamplingSettings().measurements(series))
    assert [each.estimate for each in measured[:4]] == [pytest.approx(0.4 + 0.1 * number) for number in range(4)]
    assert all(each.units == 2 for each in measured)
    by_quantity = {each.quantity: each.estimate for each in measured}
    assert by_quantity["accuracy of delta less that of dapo (temperature 0.6, top-p 0.95)"] == pytest.approx(-0.1)
    assert by_quantity["accuracy of base model (temperature 1, top-p 0.7)"] == pytest.approx(0.3)


def test_a_chat_models_samples_answer_its_own_template(trained_run: Path, llama: Path, tmp_path: Path) -> None:
    shutil.copytree(llama / "checkpoint", tmp_path / "base" / "checkpoint")
    template = "{% for turn in messages %}[{{ turn['role'] }}]{{ turn['content'] }}{% endfor %}="
    write_text(tmp_path / "base" / "checkpoint" / "chat_template.jinja", template)
    plain = LocalRun.read(trained_run).model_copy(update={"base": tmp_path / "base"})
    problems = read_rows(plain.problems / "problems.jsonl", Problem)[:1]
    tokenizer, text = load_tokenizer(tmp_path / "base" / "checkpoint"), f"{problems[0].problem}\n"
    for run, expected in ((plain, text), (plain.model_copy(update={"prompt_form": "chat"}), f"[user]{text}=")):
        requests = requests_for(run, problems, "stream")
        assert {request.prompt for request in requests} == {tuple(tokenizer.encode(expected).ids)}
        assert len({request.identity for request in requests}) == SAMPLES


def test_one_sample_decides_where_sampling_is_greedy(trained_run: Path) -> None:
    """At temperature 0 all samples of a problem are one, right or wrong."""
    run = LocalRun.read(trained_run)
    problems = read_rows(run.problems / "problems.jsonl", Problem)[:6]
    with GradingPool(workers=1) as pool:
        found = accuracy_by_problem(
            run.base / "checkpoint", run, problems, SamplingParameters(max_new_tokens=24, temperature=0.0), pool
        )
    assert len(found) == 6 and set(found) <= {0.0, 1.0}
