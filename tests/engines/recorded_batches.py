"""Recorded rollout batches, and what verl's engine makes of them on so many ranks: a process each, no Ray, no vLLM."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from evals.core.random import generator_for
from rlvr.base_model.train import build_tokenizer, initial_model
from rlvr.methods.components import composition
from rlvr.methods.method import Method, compose
from rlvr.study.catalogue import load_catalogue, resolve_method
from rlvr.study.study import Study
from tests.random_model import architecture

ROOT = Path(__file__).parents[2]
VOCABULARY, PROMPTS, SAMPLES, UPDATES, LEARNING_RATE = 43, 6, 4, 2, 3e-4
ADAPTED = "delta_with_adapters"
LEFT_OUT = ("delta_left_out", "kl_cov_left_out")
# Token weights without hidden states are the trainer's, not the engine's: test_verl_methods.py.
METHODS: Mapping[str, Mapping[str, Any]] = {
    "dapo": {},
    "sapo": {},
    "gspo": {},
    "delta": {},
    "delta_within_side_only": {},
    "delta_top_k_hidden_gradient_proxy": {},
    "delta_sketched": {},
    "delta_query_preserved": {"extends": "delta", "batching": {"assignment": {"name": "query_preserved"}}},
    "fipo": {},
    "dfpo_min_replace_query_preserved": {},
    "kl_cov": {},
    "grpo": {},
    "dapo_sequence_tis": {},
    "dapo_mis": {},
    "dapo_off_policy_mask": {"correction": {"delta": 0.1}},
    "ipo": {},
    "dapo_entropy_bonus": {"entropy_bonus": {"coefficient": 0.1}},
    "scalerl": {},
    "kl_cov_with_all_terms": {
        "extends": "kl_cov",
        "kl": {"name": "loss_term", "coefficient": 0.1, "estimator": "unbiased_k3"},
        "entropy_bonus": {"name": "fixed", "coefficient": 0.1},
        "correction": {"name": "truncated", "level": "token", "cap": 1.2},
        "loss": {"aggregation": "prompt-mean"},
    },
}


class Variation(NamedTuple):
    """What is changed in the catalogue's entry, the adapters, and whether responses are left out."""

    changes: Mapping[str, Any]
    lora: Mapping[str, Any] | None = None
    leaves_out: bool = False


CASES: Mapping[str, Variation] = {
    **{name: Variation(changes) for name, changes in METHODS.items()},
    ADAPTED: Variation({"extends": "delta"}, lora={"rank": 3, "alpha": 6}),
    LEFT_OUT[0]: Variation({"extends": "delta"}, leaves_out=True),
    LEFT_OUT[1]: Variation({"extends": "kl_cov", "loss": {"aggregation": "prompt-mean"}}, leaves_out=True),
}


def write_model(directory: Path) -> None:
    """A small model with its tokenizer, where a study keeps its base model."""
    checkpoint = directory / "results" / "base" / "tiny" / "checkpoint"
    tokenizer = build_tokenizer()
    initial_model(architecture(32, 48, 2, 128), tokenizer, seed=3).save_pretrained(checkpoint)
    tokenizer.save_pretrained(checkpoint)


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
    resolved = {piece: entry.get(piece) for piece in ("version", *composition().model_fields)}
    method = compose(resolved)
    batch = recorded(method)
    if CASES[name].leaves_out:  # one of each prompt's, and the whole of the last prompt
        batch["counted"] = [row % SAMPLES != 1 and row < (PROMPTS - 1) * SAMPLES for row in range(PROMPTS * SAMPLES)]
        batch["advantages"] = [a * c for a, c in zip(batch["advantages"], batch["counted"], strict=True)]
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
    sampler, reference = (
        [(0.2 * torch.randn(len(response), generator=generator)).tolist() for response in responses] for _ in range(2)
    )
    return {
        # What their log-probs differ by from those of the policy before the update.
        "sampler": sampler,
        "reference": reference,
        "prompts": prompts,
        "responses": responses,
        "groups": groups.tolist(),
        "advantages": method.advantage(rewards, groups, lengths).tolist(),
        "mini_batches": [part.tolist() for part in parts],
        "counted": [True] * len(groups),
    }


def write_batch(place: Path, study_directory: Path, case: Case, ranks: int, shared: int) -> Path:
    """What a process that stands for one of verl's ranks reads; ``shared`` is how many share packed sequences, or 0."""
    study = Study.read(ROOT / "config" / "verl_smoke.yaml")
    content = study.resolved_run("tiny-dapo-s1")
    training = {
        **content["training"],
        "prompts_per_step": PROMPTS,
        "samples_per_prompt": SAMPLES,
        "updates_per_step": UPDATES,
        "learning_rate": LEARNING_RATE,
    }
    if case.variation.lora is not None:
        training["lora"] = case.variation.lora
    named = {"method": case.resolved, "method_name": case.name, "dtype": "float32"}
    run = {**content, **named, "training": training}
    # Few tokens in a forward pass, so that a mini-batch is several micro-batches.
    cluster = {**study.cluster("tiny-dapo-s1"), "gpus_per_node": ranks, "tokens_per_device": 100}
    cluster |= {"sequence_parallel": max(1, shared)}
    place.mkdir()
    (place / "run.json").write_text(json.dumps(run), encoding="utf-8")
    (place / "cluster.json").write_text(json.dumps(cluster), encoding="utf-8")
    (place / "batch.json").write_text(
        json.dumps({**case.batch, "study": str(study_directory), "packed": shared > 0}), encoding="utf-8"
    )
    return place / "batch.json"


def compute_by_verl(directory: Path, study_directory: Path, asked: Sequence[tuple[str, int]], ranks: int) -> None:
    """Let verl's engine work through batches; each has its results, or the ranks' logs say why not.

    Beside the name of each is 0 where sequences are padded, or how many ranks share each packed one (Ulysses).
    """
    batches = [
        write_batch(directory / f"{name}-{shared}", study_directory, case_of(name), ranks, shared)
        for name, shared in asked
    ]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    words = [sys.executable, str(Path(__file__).with_name("verl_rank.py")), *map(str, batches)]
    common = {**os.environ, "PYTHONPATH": str(ROOT), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    common |= {"WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1"}
    processes = []
    for rank in range(ranks):
        with (directory / f"rank-{rank}.log").open("w") as log:
            processes.append(subprocess.Popen(words, env={**common, "RANK": str(rank)}, stdout=log, stderr=log))
    for process in processes:
        process.wait(timeout=1200)


def found_by_verl(directory: Path, name: str, shared: int) -> dict[str, Any]:
    """Read what all ranks found for a batch, and where it is."""
    file = directory / f"{name}-{shared}" / "found.pt"
    assert file.exists(), "\n".join(log.read_text()[-3000:] for log in directory.glob("rank-*.log"))
    return {**torch.load(file, weights_only=True), "place": file.parent}


def flat(rows: list[list[float]]) -> Tensor:
    """[N] of ragged rows."""
    return torch.tensor([value for row in rows for value in row])
