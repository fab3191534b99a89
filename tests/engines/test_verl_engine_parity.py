"""On a recorded rollout batch the local engine and verl's, on one rank and on two, do the same to the model."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from evals.core.random import generator_for
from evals.core.training_settings import LocalTraining, Lora
from evals.generation.checkpoint import Checkpoint
from rlvr.engines.local.learner import OtherPolicies, Updater
from rlvr.engines.local.lora import adapted
from rlvr.engines.local.policy import Policy, TokenBatch, score_in_chunks, unpack
from rlvr.engines.verl.adapters import ADAPTERS, add_adapters
from rlvr.methods.assignments import mini_batch_ids
from rlvr.methods.method import Method
from rlvr.methods.rollout_batch import RolloutBatch
from tests.engines.recorded_batches import (
    ADAPTED,
    CASES,
    LEARNING_RATE,
    LEFT_OUT,
    METHODS,
    PROMPTS,
    SAMPLES,
    UPDATES,
    case_of,
    compute_by_verl,
    flat,
    found_by_verl,
    write_model,
)

pytest.importorskip("verl", reason="verl is not in this environment: make test-engines")


@pytest.fixture(scope="module")
def study_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("study")
    write_model(directory)
    return directory


def policy_of(checkpoint: Path, name: str) -> Policy:
    """The local engine's policy before a run, with the adapters of a case that has them."""
    model, lora = Checkpoint(checkpoint).model("cpu"), CASES[name].lora
    return model if lora is None else adapted(model, Checkpoint(checkpoint), Lora.parse(lora, "lora"), 1)


def by_local_engine(model: Policy, method: Method, batch: dict[str, Any]) -> dict[str, Any]:
    """Old log-probs, token weights, gradient norms and parameters as rlvr.engines.local has them.

    What is left out is not there.
    """
    rows = [row for row, counted in enumerate(batch["counted"]) if counted]
    place = {row: number for number, row in enumerate(rows)}
    parts = [[place[row] for row in part if row in place] for part in batch["mini_batches"]]
    of_rows = ("prompts", "responses", "advantages", "groups", "sampler", "reference")
    batch = {name: [batch[name][row] for row in rows] for name in of_rows} | {"mini_batches": parts}
    tokens = TokenBatch(batch["prompts"], batch["responses"])
    mask, hidden = tokens.response_mask, []
    log_probs, entropies = score_in_chunks(model, tokens, 1.0, 5, hidden.append)
    mini_batches = [torch.tensor(part) for part in batch["mini_batches"]]
    advantages, groups = torch.tensor(batch["advantages"]), torch.tensor(batch["groups"])
    old = unpack(log_probs, mask)
    weights = mask.float()
    if method.token_weights is not None:
        rollouts = RolloutBatch(
            advantages=advantages,
            old_log_probs=old,
            entropies=unpack(entropies, mask),
            response_mask=mask,
            mini_batch_ids=mini_batch_ids(mini_batches, len(groups)),
            group_ids=groups,
            token_ids=tokens.response_ids,
            temperature=1.0,
            generator=generator_for("token_weights", 1, 0),
            head_weight=model.head_weight.detach(),
            hidden_states=method.sketched(torch.cat(hidden), 1),
        )
        weights = method.token_weights(rollouts)[0]
    settings = LocalTraining(
        steps=1,
        prompts_per_step=PROMPTS,
        samples_per_prompt=SAMPLES,
        updates_per_step=UPDATES,
        micro_batch_size=5,
        max_new_tokens=20,
        temperature=1.0,
        sampling_batch_size=8,
        learning_rate=LEARNING_RATE,
        warmup_updates=0,
        weight_decay=0.1,
        gradient_clip=1.0,
    )
    updater = Updater(model, method, settings, 1)
    sampler, reference = (unpack(log_probs + flat(batch[name]), mask) for name in ("sampler", "reference"))
    bonus = method.entropy_bonus
    others = OtherPolicies(sampler, reference, 0.0 if bonus is None else bonus.coefficient_at(0.0, {})[0])
    norms, metrics = [], {}
    for number, part in enumerate(mini_batches):
        metrics = updater.update(tokens, old, advantages[:, None] * weights, groups, [part], 0, number, others)
        norms.append(metrics["grad_norm"])
    return {
        "log_probs": old[mask],
        "entropies": unpack(entropies, mask)[mask],
        "weights": weights[mask],
        "grad_norms": norms,
        "metrics": metrics,
        "state": dict(model.named_parameters()),
    }


@pytest.fixture(scope="module")
def by_verl(study_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], dict[str, Any]]:
    """What verl's engine finds for a method on so many ranks, which work through all cases once."""

    @cache
    def compute(ranks: int) -> Path:
        directory = tmp_path_factory.mktemp(f"ranks-{ranks}")
        compute_by_verl(directory, study_directory, list(CASES), ranks)
        return directory

    return lambda name, ranks: {**found_by_verl(compute(ranks), name), "place": compute(ranks) / name}


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", [*METHODS, ADAPTED, *LEFT_OUT])
def test_both_engines_do_the_same(
    name: str,
    ranks: int,
    study_directory: Path,
    by_verl: Callable[[str, int], dict[str, Any]],
    report_measured: Callable[[str, str], None],
) -> None:
    case, checkpoint = case_of(name), study_directory / "results" / "base" / "tiny" / "checkpoint"
    model = policy_of(checkpoint, name)
    before = {parameter: values.detach().clone() for parameter, values in model.named_parameters()}
    ours, verls = by_local_engine(model, case.method, case.batch), by_verl(name, ranks)
    for values in ("log_probs", "entropies", "weights"):
        of_counted = [row for row, counted in zip(verls[values], case.batch["counted"], strict=True) if counted]
        torch.testing.assert_close(flat(of_counted), ours[values], rtol=0, atol=1e-5)
    assert verls["grad_norms"] == pytest.approx(ours["grad_norms"], rel=1e-3)
    assert verls["metrics"] == pytest.approx(
        {metric: ours["metrics"][metric] for metric in verls["metrics"]}, rel=1e-3, abs=1e-5
    )
    of_terms = {"correction": "correction_weight", "kl": "reference_kl"}
    for part, metric in of_terms.items():
        assert (metric in verls["metrics"]) == (getattr(case.method, part) is not None)
    state = {_own_name(parameter): values for parameter, values in verls["state"].items()}
    names = [parameter for parameter in ours["state"] if parameter in state]
    assert len(names) >= 20
    if name == ADAPTED:  # A and B beside seven weights in each of two layers, and nothing else
        assert set(names) == set(before) and len(names) == 28
        assert all(
            torch.equal(state[each], values) for each, values in load_file(checkpoint / "model.safetensors").items()
        )
    apart = torch.cat([(state[each] - ours["state"][each].detach()).abs().flatten() for each in names])
    moved = torch.cat([(ours["state"][each] - before[each]).detach().abs().flatten() for each in names])
    report_measured(
        f"verl's engine, {name}, {ranks} rank(s)",
        f"parameters apart by {float(apart.mean() / moved.mean()):.1e} of what two updates moved them",
    )
    # Adam divides by the gradient's size: where that is next to nothing, rounding decides the step's sign.
    assert float(apart.mean()) < 1e-4 * float(moved.mean())


def _own_name(parameter: str) -> str:
    """A parameter's name without what peft adds."""
    return parameter.removeprefix("base_model.model.").replace(".default.", ".").replace(".base_layer.", ".")


@pytest.mark.parametrize("ranks", [1, 2])
def test_vllm_is_sent_what_the_checkpoint_has(
    ranks: int, study_directory: Path, tmp_path: Path, by_verl: Callable[[str, int], dict[str, Any]]
) -> None:
    """Weights with what adapters add to them: by verl of its shards, by us of the base model and a saved state."""
    found = by_verl(ADAPTED, ranks)
    state, base = found["place"] / "state", study_directory / "results" / "base" / "tiny" / "checkpoint"
    add_adapters(base, state / "actor" / ADAPTERS, Lora.parse(CASES[ADAPTED].lora, "lora"), tmp_path / "checkpoint")
    merged, before = (load_file(place / "model.safetensors") for place in (tmp_path / "checkpoint", base))
    assert merged.keys() == before.keys()
    for name, weights in merged.items():
        # Both are rounded to bfloat16, from sums that differ in their last bits.
        torch.testing.assert_close(found["sent"][name].float(), weights.float(), rtol=2**-7, atol=1e-6)
    changed = {name for name in merged if not torch.equal(merged[name], before[name].to(merged[name].dtype))}
    assert changed == {name for name in merged if "_proj" in name} and len(changed) == 14


@pytest.mark.parametrize("name", METHODS)
def test_two_ranks_train_on_the_batches_of_one(name: str, by_verl: Callable[[str, int], dict[str, Any]]) -> None:
    one, two = by_verl(name, 1), by_verl(name, 2)
    groups = case_of(name).batch["groups"]
    assert one["mini_batches"] == two["mini_batches"] == [sorted(part) for part in case_of(name).batch["mini_batches"]]
    torn = {groups[row] for row in one["mini_batches"][0]} & {groups[row] for row in one["mini_batches"][1]}
    assert bool(torn) != name.endswith("query_preserved")
    torch.testing.assert_close(flat(two["weights"]), flat(one["weights"]), rtol=0, atol=1e-5)
    weighted = case_of(name).method.token_weights is not None
    assert (flat(one["weights"]).std() > 1e-4) == weighted
    assert two["grad_norms"] == pytest.approx(one["grad_norms"], rel=1e-4)
