"""On a recorded rollout batch the local engine and verl's, on one rank and on two, do the same to the model."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from evals.core.random import generator_for
from evals.core.run_spec import LocalTraining
from evals.generation.checkpoint import Checkpoint
from rlvr.engines.local.policy import TokenBatch, score_in_chunks, unpack
from rlvr.engines.local.update import Updater
from rlvr.methods.assignments import mini_batch_ids
from rlvr.methods.method import Method, compose
from rlvr.methods.rollout_batch import RolloutBatch
from rlvr.study.catalogue import load_catalogue, resolve_method
from rlvr.study.study import Study

pytest.importorskip("verl", reason="verl is not in this environment: make test-engines")

ROOT = Path(__file__).parents[2]
VOCABULARY, PROMPTS, SAMPLES, UPDATES, LEARNING_RATE = 43, 6, 4, 2, 3e-4
ONE_ALONE = "dapo_sign_separated_one_alone"  # fewer rollouts in a mini-batch than ranks
# Token weights without hidden states are the trainer's, not the engine's: test_verl_methods.py.
METHODS: Mapping[str, Mapping[str, Any]] = {
    "dapo": {},
    "sapo": {},
    "gspo": {},
    "delta": {},
    "delta_within_side_only": {},
    "dapo_sign_separated": {},
    ONE_ALONE: {"extends": "dapo_sign_separated"},
    "delta_query_preserved": {"extends": "delta", "batching": {"assignment": {"name": "query_preserved"}}},
    "fipo": {},
    "dfpo_min_replace_query_preserved": {},
    "kl_cov": {},
}
READINGS = {"delta": 4, "delta_within_side_only": 9, "delta_top_k_hidden_gradient_proxy": 4, "delta_sketched": 4}
"""How often these read every hidden state; each is computed a second time as if no memory were left for them."""
NO_MEMORY = {"hidden_state_budget": 0, "hidden_state_host_budget": 0}
DTYPES = ("float32", "bfloat16")


class Variation(NamedTuple):
    """What is changed in the catalogue's entry and in cluster.json, and the type that the trainer computes in."""

    changes: Mapping[str, Any]
    cluster: Mapping[str, int] = {}
    dtype: str = "float32"


CASES: Mapping[str, Variation] = {
    **{name: Variation(changes) for name, changes in METHODS.items()},
    **{f"{name}_{dtype}": Variation({"extends": name}, {}, dtype) for name in READINGS for dtype in DTYPES},
    **{f"{name}_{dtype}_anew": Variation({"extends": name}, NO_MEMORY, dtype) for name in READINGS for dtype in DTYPES},
}


@pytest.fixture(scope="module")
def study_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model with its tokenizer, where a study keeps its base model."""
    from rlvr.base_model.tokenizer import build_tokenizer
    from rlvr.base_model.train import initial_model

    directory = tmp_path_factory.mktemp("study")
    checkpoint = directory / "results" / "base" / "tiny" / "checkpoint"
    architecture = dict(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=128,
        tie_word_embeddings=True,
    )
    tokenizer = build_tokenizer()
    initial_model(architecture, tokenizer, seed=3).save_pretrained(checkpoint)
    tokenizer.save_pretrained(checkpoint)
    return directory


class Case(NamedTuple):
    """A method: its name, its variation, as run.json has it, as it is called, the batch that is recorded for it."""

    name: str
    variation: Variation
    resolved: dict[str, Any]
    method: Method
    batch: dict[str, Any]


@cache
def case_of(name: str) -> Case:
    """The case of one of ``CASES``."""
    entry = resolve_method(name, CASES[name].changes, load_catalogue(), "test")
    pieces = ("version", "reward_shaping", "advantage", "token_weights", "loss", "batching")
    resolved = {piece: entry.get(piece) for piece in pieces}
    method = compose(resolved)
    batch = recorded(method)
    if name == ONE_ALONE:
        batch["mini_batches"] = [[0], list(range(1, len(batch["prompts"])))]
    return Case(name, CASES[name], resolved, method, batch)


def recorded(method: Method) -> dict[str, Any]:
    """Prompts, responses, rewards and the method's mini-batches, from a seed."""
    generator = torch.Generator().manual_seed(11)

    def tokens(longest: int) -> list[int]:
        length = int(torch.randint(2, longest + 1, (), generator=generator))
        return torch.randint(2, VOCABULARY, (length,), generator=generator).tolist()

    prompts = [tokens(9) for _ in range(PROMPTS) for _ in range(SAMPLES)]
    responses = [tokens(20) for _ in range(PROMPTS * SAMPLES)]
    groups = torch.arange(PROMPTS).repeat_interleave(SAMPLES)
    rewards = torch.randint(0, 2, (len(groups),), generator=generator).float()
    lengths = torch.tensor([len(response) for response in responses])
    parts = method.assignment(rewards, groups, lengths, UPDATES, generator_for("mini_batches", 1, 0))
    return {
        "prompts": prompts,
        "responses": responses,
        "groups": groups.tolist(),
        "advantages": method.advantage(rewards, groups, lengths).tolist(),
        "mini_batches": [part.tolist() for part in parts],
    }


def by_local_engine(checkpoint: Path, method: Method, batch: dict[str, Any]) -> dict[str, Any]:
    """Old log-probs, token weights, gradient norms and parameters as rlvr.engines.local has them."""
    model = Checkpoint(checkpoint).model("cpu")
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
            hidden_states=torch.cat(hidden),
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
    norms = []
    for number, part in enumerate(mini_batches):
        found = updater.update(tokens, old, advantages[:, None] * weights, groups, [part], 0, number)
        norms.append(found["grad_norm"])
    return {
        "log_probs": old[mask],
        "entropies": unpack(entropies, mask)[mask],
        "weights": weights[mask],
        "grad_norms": norms,
        "state": dict(model.named_parameters()),
    }


def write_batch(place: Path, study_directory: Path, case: Case, ranks: int) -> Path:
    """What a process that stands for one of verl's ranks reads."""
    study = Study.read(ROOT / "config" / "verl_smoke.yaml")
    content = study.resolved_run("tiny-dapo-s1")
    training = {
        **content["training"],
        "prompts_per_step": PROMPTS,
        "samples_per_prompt": SAMPLES,
        "updates_per_step": UPDATES,
        "learning_rate": LEARNING_RATE,
    }
    named = {"method": case.resolved, "method_name": case.name, "dtype": case.variation.dtype}
    run = {**content, **named, "training": training}
    # Few tokens in a forward pass, so that a mini-batch is several micro-batches.
    cluster = {**study.cluster("tiny-dapo-s1"), "gpus_per_node": ranks, "tokens_per_device": 100}
    cluster |= case.variation.cluster
    place.mkdir()
    (place / "run.json").write_text(json.dumps(run), encoding="utf-8")
    (place / "cluster.json").write_text(json.dumps(cluster), encoding="utf-8")
    (place / "batch.json").write_text(json.dumps({**case.batch, "study": str(study_directory)}), encoding="utf-8")
    return place / "batch.json"


@pytest.fixture(scope="module")
def by_verl(study_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], dict[str, Any]]:
    """What verl's engine finds for a method on so many ranks: a process each, which work through all cases once."""

    @cache
    def compute(ranks: int) -> Path:
        directory = tmp_path_factory.mktemp(f"ranks-{ranks}")
        batches = [write_batch(directory / name, study_directory, case_of(name), ranks) for name in CASES]
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        words = [sys.executable, str(Path(__file__).with_name("verl_rank.py")), *map(str, batches)]
        shared = {**os.environ, "PYTHONPATH": str(ROOT), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        shared |= {"WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1"}
        processes = []
        for rank in range(ranks):
            with (directory / f"rank-{rank}.log").open("w") as log:
                processes.append(subprocess.Popen(words, env={**shared, "RANK": str(rank)}, stdout=log, stderr=log))
        for process in processes:
            process.wait(timeout=1200)
        return directory

    def found(name: str, ranks: int) -> dict[str, Any]:
        directory = compute(ranks)
        file = directory / name / "found.pt"
        assert file.exists(), "\n".join(log.read_text()[-3000:] for log in directory.glob("rank-*.log"))
        loaded: dict[str, Any] = torch.load(file, weights_only=True)
        return loaded

    return found


def packed(rows: list[list[float]]) -> Tensor:
    """[N] of ragged rows."""
    return torch.tensor([value for row in rows for value in row])


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", METHODS)
def test_both_engines_do_the_same(
    name: str,
    ranks: int,
    study_directory: Path,
    by_verl: Callable[[str, int], dict[str, Any]],
    report_measured: Callable[[str, str], None],
) -> None:
    case, checkpoint = case_of(name), study_directory / "results" / "base" / "tiny" / "checkpoint"
    ours, verls = by_local_engine(checkpoint, case.method, case.batch), by_verl(name, ranks)
    torch.testing.assert_close(packed(verls["log_probs"]), ours["log_probs"], rtol=0, atol=1e-5)
    torch.testing.assert_close(packed(verls["entropies"]), ours["entropies"], rtol=0, atol=1e-5)
    torch.testing.assert_close(packed(verls["weights"]), ours["weights"], rtol=0, atol=1e-5)
    if not case.method.assignment.equal_sizes:  # one call of the engine, which returns the mean of its updates
        ours["grad_norms"] = [sum(ours["grad_norms"]) / UPDATES]
    assert verls["grad_norms"] == pytest.approx(ours["grad_norms"], rel=1e-3)
    before = dict(AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).named_parameters())
    names = [parameter for parameter in ours["state"] if parameter in verls["state"]]
    assert len(names) >= 20
    apart = torch.cat([(verls["state"][each] - ours["state"][each].detach()).abs().flatten() for each in names])
    moved = torch.cat([(ours["state"][each] - before[each]).detach().abs().flatten() for each in names])
    report_measured(
        f"verl's engine, {name}, {ranks} rank(s)",
        f"parameters apart by {float(apart.mean() / moved.mean()):.1e} of what two updates moved them",
    )
    # Adam divides by the gradient's size: where that is next to nothing, rounding decides the step's sign.
    assert float(apart.mean()) < 1e-4 * float(moved.mean())


@pytest.mark.parametrize("name", METHODS)
def test_two_ranks_train_on_the_mini_batches_and_token_weights_of_one(
    name: str, by_verl: Callable[[str, int], dict[str, Any]]
) -> None:
    one, two = by_verl(name, 1), by_verl(name, 2)
    groups = case_of(name).batch["groups"]
    assert one["mini_batches"] == two["mini_batches"] == [sorted(part) for part in case_of(name).batch["mini_batches"]]
    torn = {groups[row] for row in one["mini_batches"][0]} & {groups[row] for row in one["mini_batches"][1]}
    assert bool(torn) != name.endswith("query_preserved")
    torch.testing.assert_close(packed(two["weights"]), packed(one["weights"]), rtol=0, atol=1e-5)
    weighted = case_of(name).method.token_weights is not None
    assert (packed(one["weights"]).std() > 1e-4) == weighted
    assert two["grad_norms"] == pytest.approx(one["grad_norms"], rel=1e-4)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", READINGS)
def test_hidden_states_that_fit_nowhere_are_computed_anew_and_weigh_the_same(
    name: str, dtype: str, ranks: int, by_verl: Callable[[str, int], dict[str, Any]]
) -> None:
    kept, anew = (by_verl(f"{name}_{dtype}{end}", ranks) for end in ("", "_anew"))
    assert kept["weight_metrics"]["hidden_state_recomputations"] == 0
    assert anew["weight_metrics"]["hidden_state_recomputations"] == READINGS[name]
    for expected, found in zip(kept["weights"], anew["weights"], strict=True):
        assert found == pytest.approx(expected, abs=1e-6)
    assert any(abs(weight - 1) > 1e-4 for row in anew["weights"] for weight in row)
    assert anew["log_probs"] == kept["log_probs"]
    assert anew["grad_norms"] == pytest.approx(kept["grad_norms"], rel=1e-5)
