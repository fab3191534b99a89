"""A sampler that differs from the trainer by a dose, and what corrections and terms of the loss make of a training."""

from pathlib import Path
from typing import Any

import pytest
import torch

from evals.core.errors import InvalidInput
from evals.core.run_spec import LocalRun
from evals.core.sampling import SamplingParameters
from evals.core.training_settings import SamplerDose
from evals.grading import GradingPool
from rlvr.engines.local.learner import Learner
from rlvr.engines.local.sampler_dose import DosedDraw, rounded
from rlvr.runs.state import StateStore
from rlvr.study.catalogue import entry_of_run, load_catalogue, resolve_method
from tests.unit.engine.conftest import MakeRun

DOSES: dict[str, dict[str, Any]] = {
    "int4": {"weights": "int4"},
    "bfloat16": {"weights": "bfloat16"},
    "stale": {"stale": 1},
    "top_p": {"top_p": 0.8},
    "noise": {"noise": 0.5},
}


def entry(name: str) -> dict[str, Any]:
    """The part of a catalogue entry that a run has."""
    return entry_of_run(resolve_method(name, {}, load_catalogue(), "test"))


def train(run: LocalRun, steps: int, learner: Learner | None = None) -> Learner:
    learner = learner or Learner(run, "cpu")
    with GradingPool(workers=1) as pool:
        for _ in range(steps):
            learner.position.metrics.append(learner.step(pool))
    return learner


def resumed_after(steps: int, run: LocalRun, directory: Path) -> Learner:
    """A training that was saved after so many steps, continued by one."""
    store, resumed = StateStore(directory, "a" * 64), Learner(run, "cpu")
    train(run, steps).save(store)
    state = store.latest()
    assert state is not None
    resumed.restore(state)
    return train(run, 1, resumed)


def weights_of(learner: Learner) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in learner.model.parameters()]


def same(left: Learner, right: Learner) -> bool:
    return all(torch.equal(a, b) for a, b in zip(weights_of(left), weights_of(right), strict=True))


@pytest.mark.parametrize(("precision", "levels"), [("int8", 127), ("int3", 3)])
def test_integers_are_the_nearest_of_a_rows_levels(precision: str, levels: int) -> None:
    weights = torch.randn(5, 40, generator=torch.Generator().manual_seed(1))
    weights[2] = 0.0
    found = rounded(weights, precision)
    steps = weights.abs().amax(dim=1, keepdim=True) / levels
    assert bool(((found - weights).abs() <= steps / 2 * (1 + 1e-5)).all()) and len(found[0].unique()) <= 2 * levels + 1
    torch.testing.assert_close(rounded(found, precision), found)
    assert torch.equal(rounded(weights[0], precision), weights[0])  # a vector, as of a norm
    assert torch.equal(rounded(weights, "bfloat16"), weights.bfloat16().float())


def test_the_samplers_log_probs_are_those_of_what_it_draws_from() -> None:
    """Of the likeliest tokens that reach one half, renormalised; with noise, of a distribution of every draw's own."""
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    names, running = [f"s/{i}" for i in range(200)], torch.arange(200)
    rows = torch.zeros(200, dtype=torch.int64)
    for dose, expected in (({"top_p": 0.5}, [4 / 7, 3 / 7]), ({}, [0.4, 0.3, 0.2, 0.1])):
        parameters = SamplingParameters(max_new_tokens=1, temperature=1.0, top_p=1.0)
        draw = DosedDraw(parameters, names, 1, torch.device("cpu"), SamplerDose(**dose))
        drawn = draw([logits], rows, running, 0)
        assert sorted(set(drawn.tolist())) == list(range(len(expected)))
        torch.testing.assert_close(draw.log_probs[:, 0].exp(), torch.tensor(expected)[drawn])
    noisy = DosedDraw(parameters, names, 1, torch.device("cpu"), SamplerDose(noise=0.5))
    noisy([logits], rows, running, 0)
    assert len(noisy.log_probs.unique()) > 190


def test_dose_zero_has_the_bytes_of_no_dose(make_run: MakeRun) -> None:
    assert same(train(make_run(), 2), train(make_run(training={"sampler": {"stale": 0, "noise": 0.0}}), 2))


@pytest.mark.parametrize("name", DOSES)
def test_a_dose_sets_sampler_and_trainer_apart(name: str, make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(method=entry("dapo_icepop"), training={"sampler": DOSES[name]})
    whole = train(run, 3)
    apart = [row["rollout_kl"] for row in whole.position.metrics]
    assert (apart[0] < 1e-9) == (name == "stale") and all(value > 1e-9 for value in apart[1:])
    assert all(0 < row["correction_weight"] <= 5 for row in whole.position.metrics)
    resumed = resumed_after(2, run, tmp_path)
    assert same(resumed, whole)
    assert resumed.position.metrics[-1]["rollout_kl"] == apart[-1]


def test_a_dose_is_refused_where_the_sampler_is_no_copy_of_the_trainer(make_run: MakeRun) -> None:
    with pytest.raises(InvalidInput) as error:
        make_run(training={"sampler": {"stale": 1}, "lora": {"rank": 2, "alpha": 4.0}})
    assert "lora" in error.value.accepted


@pytest.mark.parametrize("name", ["grpo", "grpo_kl_in_reward", "dapo_entropy_target"])
def test_terms_are_measured_timed_and_resumed(name: str, make_run: MakeRun, tmp_path: Path) -> None:
    method = entry(name)
    if name == "dapo_entropy_target":
        method["entropy_bonus"] = {"name": "target", "target": 9.0, "start": 0.1, "step": 0.01}
    run = make_run(method=method)
    whole = train(run, 2)
    first, second = whole.position.metrics
    if name == "dapo_entropy_target":
        assert [row["entropy_coefficient"] for row in (first, second)] == pytest.approx([0.1, 0.11])
    else:
        assert first["seconds_reference"] > 0 and "seconds_reference" not in train(make_run(), 1).position.metrics[0]
    if name == "grpo":
        assert 0 < first["reference_kl"] < second["reference_kl"]
    assert same(resumed_after(1, run, tmp_path), whole)
