"""The contrast that a run measures: right to float64, and without any effect on the training."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from evals.core.random import generator_for
from evals.core.run_spec import LocalRun
from evals.grading import GradingPool
from rlvr.engines.local.contrast import ContrastLearner
from rlvr.engines.local.learner import Learner, PreparedStep
from rlvr.engines.local.train import train
from rlvr.methods.aggregation import Normaliser
from rlvr.methods.method import Method, compose
from rlvr.study.catalogue import load_catalogue, resolve_method
from tests.unit.engine.conftest import EXECUTION, MakeRun, checkpoint_hash, timeless

TRAINING = {"prompts_per_step": 32, "samples_per_prompt": 8, "updates_per_step": 4, "learning_rate": 0.003}
STEP = 2
COLUMNS = ["contrast_slope_degrees", "contrast_degrees", "contrast_floor_degrees"]


def entry(name: str) -> dict[str, Any]:
    return resolve_method(name, {}, load_catalogue(), name)


def measured(make_run: MakeRun, method: str, reference: str = "dapo", **training: Any) -> LocalRun:
    contrast = {"reference_method": reference, "method": entry(reference), "steps": [STEP]}
    return make_run({**TRAINING, **training}, method=entry(method), contrast=contrast)


def steps(learner: Learner) -> Iterator[PreparedStep]:
    """The prepared steps up to the measured one; the caller updates."""
    with GradingPool(workers=1) as pool:
        while learner.position.step < STEP:
            yield learner.prepare(pool)


def slow_degrees(a: Tensor, b: Tensor) -> float:
    cosine = float((a * b).sum() / math.sqrt(float((a * a).sum()) * float((b * b).sum())))
    return math.degrees(math.acos(min(1.0, cosine)))


def slow_gradient(
    model: Any, prepared: PreparedStep, method: Method, weighted: Tensor, stream: tuple[int, int], bonus: float = 0.0
) -> Tensor:
    """The gradient in float64 of the last mini-batch's loss, rollout by rollout without padding of prompts.

    From the loss of every token ``bonus`` times the entropy there is taken.
    """
    rows = prepared.mini_batches[-1]
    tokens = prepared.rollouts.tokens.select(rows)
    mask = tokens.response_mask
    log_probs, entropies = torch.zeros(2, *mask.shape, dtype=torch.float64)
    for number, (prompt, response) in enumerate(zip(tokens.prompts, tokens.responses, strict=True)):
        logits = model(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        chosen = logits[torch.arange(len(response)), torch.tensor(response)]
        places = torch.tensor(number), torch.arange(len(response))
        log_probs = log_probs.index_put(places, chosen)
        entropies = entropies.index_put(places, -(logits.exp() * logits).sum(-1))
    width = mask.shape[1]
    old = prepared.batch.old_log_probs[rows, :width].double()
    loss, _ = method.loss(
        log_probs,
        old,
        weighted[rows, :width].double(),
        mask,
        prepared.batch.group_ids[rows],
        generator_for("loss", *stream),
        method.aggregation,
    )
    model.zero_grad()
    method.aggregation(loss - bonus * entropies, mask, Normaliser.of(mask)).backward()
    return torch.cat([each.grad.flatten().clone() for each in model.parameters()])


@pytest.mark.parametrize("name", ["delta", "gspo", "dr_grpo", "low_probability", "rloo"])
def test_angles_are_those_of_float64_gradients(make_run: MakeRun, name: str) -> None:
    # A micro-batch of 5 cuts the mini-batches of 16 unevenly.
    run = measured(make_run, name, micro_batch_size=5)
    watched, plain = ContrastLearner(run, "cpu"), Learner(run, "cpu")
    for prepared in steps(watched):
        found = watched.update(prepared)
    for prepared in steps(plain):
        if plain.position.step + 1 < STEP:
            plain.update(prepared)
            continue
        reference = compose(entry("dapo"))
        advantages = reference.advantages(
            prepared.rewards, prepared.rollouts.group_ids, prepared.rollouts.lengths, run.training.max_new_tokens
        )[:, None]
        of_reference = advantages * prepared.batch.response_mask
        draws = torch.rand(
            int(prepared.batch.response_mask.sum()),
            generator=generator_for("token_weights", run.seed, STEP - 1),
            dtype=torch.float64,
        )
        weights = torch.zeros(of_reference.shape, dtype=torch.float64)
        weights[prepared.batch.response_mask] = 0.8 + 0.4 * draws
        own = prepared.batch.advantages[:, None] * prepared.weights
        stream = (run.seed, plain.position.updates + 3)
        plain.update(replace(prepared, mini_batches=prepared.mini_batches[:-1]))
        model = AutoModelForCausalLM.from_pretrained(run.base / "checkpoint", dtype=torch.float64)
        for weight, parameter in plain.model.named_parameters():
            model.get_parameter(weight).data.copy_(parameter)
        pairs = (plain.method, own), (reference, of_reference), (reference, of_reference * weights)
        gradients = [slow_gradient(model, prepared, method, weighted, stream) for method, weighted in pairs]
    assert found["contrast_degrees"] == pytest.approx(slow_degrees(*gradients[:2]), abs=0.05)
    assert found["contrast_floor_degrees"] == pytest.approx(slow_degrees(*gradients[1:]), abs=0.05)
    # One group of this mini-batch has mixed rewards: without others its advantages are DAPO's, up to a factor.
    assert found["contrast_degrees"] > 0.2 or name == "dr_grpo"
    assert found["contrast_floor_degrees"] > 0.2


def test_an_entropy_bonus_is_part_of_the_update_that_is_compared(make_run: MakeRun) -> None:
    """Of the reference method, at the coefficient that its own controller would have by then: 0.5, then 0.7."""
    bonus = {"name": "target", "target": 9.0, "start": 0.5, "step": 0.2}
    contrast = {"reference_method": "bonus", "method": entry("dapo") | {"entropy_bonus": bonus}, "steps": [STEP]}
    run = make_run(TRAINING, method=entry("dapo"), contrast=contrast)
    watched, plain = ContrastLearner(run, "cpu"), Learner(run, "cpu")
    for prepared in steps(watched):
        watched.position.metrics.append(watched.update(prepared))
    found = watched.position.metrics[-1]
    for prepared in steps(plain):
        last = plain.position.step + 1 == STEP
        plain.update(replace(prepared, mini_batches=prepared.mini_batches[:-1]) if last else prepared)
    model = AutoModelForCausalLM.from_pretrained(run.base / "checkpoint", dtype=torch.float64)
    for weight, parameter in plain.model.named_parameters():
        model.get_parameter(weight).data.copy_(parameter)
    weighted = prepared.batch.advantages[:, None] * prepared.weights
    gradients = [slow_gradient(model, prepared, plain.method, weighted, (run.seed, 7), factor) for factor in (0.0, 0.7)]
    assert found["contrast_degrees"] == pytest.approx(slow_degrees(*gradients), abs=0.05)
    # The slopes of the log-probabilities are the same; those of the entropies, 0 and c over a mini-batch's tokens, not.
    tokens = [float(prepared.batch.response_mask[rows].sum()) for rows in prepared.mini_batches]
    slopes = math.sqrt(sum(0.7**2 / count for count in tokens))
    of_log_probs = slopes / math.tan(math.radians(found["contrast_slope_degrees"]))
    pairs = zip(prepared.mini_batches, tokens, strict=True)
    bound = math.sqrt(sum(float((weighted[rows] ** 2).sum()) / count**2 for rows, count in pairs))
    assert of_log_probs == pytest.approx(bound, rel=0.2)  # ratios are near 1, and few tokens are clipped


def test_slopes_are_those_of_the_formulas(make_run: MakeRun) -> None:
    """CISPO against DAPO, by hand: -A clip(r) / N without a bound below, and -A r / N unless the ratio is clipped."""
    run = measured(make_run, "cispo", learning_rate=0.03)
    watched, plain = ContrastLearner(run, "cpu"), Learner(run, "cpu")
    with GradingPool(workers=1) as pool:
        found = watched.step(pool)
        prepared = plain.prepare(pool)
    plain.update(prepared)
    pairs: list[tuple[float, float]] = []
    lowest, highest = 1 - 0.2, 1 + 0.28
    for mini_batch in prepared.mini_batches:
        tokens = int(prepared.batch.response_mask[mini_batch].sum())
        for row in mini_batch.tolist():
            for position in range(int(prepared.rollouts.lengths[row])):
                old = float(prepared.batch.old_log_probs[row, position])
                ratio = math.exp(float(plain.updater.log_probs[row, position]) - old)
                advantage = float(prepared.batch.advantages[row])
                clipped = ratio > highest if advantage > 0 else ratio < lowest or ratio > 10
                capped = min(ratio, highest)
                pairs.append((-advantage * capped / tokens, 0.0 if clipped else -advantage * ratio / tokens))
    own, reference = torch.tensor(pairs, dtype=torch.float64).T
    assert found["contrast_slope_degrees"] == pytest.approx(slow_degrees(own, reference), abs=0.01)
    assert found["contrast_slope_degrees"] > 1


@pytest.mark.parametrize("method", ["dapo", "delta_random_lambda", "delta", "clip_cov"])
def test_measuring_changes_no_byte_of_the_checkpoint(make_run: MakeRun, tmp_path: Path, method: str) -> None:
    run = measured(make_run, method)
    train(run, tmp_path / "measured", EXECUTION)
    train(run.model_copy(update={"contrast": None}), tmp_path / "plain", EXECUTION)
    assert checkpoint_hash(tmp_path / "measured") == checkpoint_hash(tmp_path / "plain")
    frame, plain = timeless(tmp_path / "measured"), timeless(tmp_path / "plain")
    pd.testing.assert_frame_equal(frame.drop(columns=[*COLUMNS], errors="raise"), plain)
    assert frame["contrast_slope_degrees"].notna().all()
    assert frame.loc[frame["contrast_degrees"].notna(), "step"].tolist() == [STEP]
    row = frame.set_index("step").loc[STEP, COLUMNS]
    if method == "dapo":
        assert row.tolist()[:2] == [0.0, 0.0] and row["contrast_floor_degrees"] > 0.2
    # Random weights are the floor, to the last bit, and so never above it.
    assert (row["contrast_degrees"] == row["contrast_floor_degrees"]) == (method == "delta_random_lambda")


def test_a_reference_may_need_hidden_states(make_run: MakeRun, tmp_path: Path) -> None:
    train(measured(make_run, "dapo", "delta"), tmp_path, EXECUTION)
    train(measured(make_run, "delta", "dapo"), tmp_path / "b", EXECUTION)
    frame = pd.read_parquet(tmp_path / "metrics.parquet").set_index("step")
    assert frame["contrast_slope_degrees"].dropna().index.tolist() == [STEP]
    assert frame.loc[STEP, "contrast_degrees"] > 0.1
