"""Tokens of a moment drawn from either side, and their counterfactual values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from evals.core.files import read_jsonl
from evals.core.random import generator_for
from evals.generation.checkpoint import load_tokenizer
from evals.generation.qwen3 import Qwen3Config, Qwen3Decoder
from evals.generation.sampler import SamplingParameters
from evals.grading import GradingPool
from rlvr.diagnostics.moment import Moment
from rlvr.diagnostics.token_value import MAX_PROBABILITY, Place, TokenValue, token_values

SAMPLES = 32
PLACES_PER_SIDE = 40
"""The budget: 2 sides x 40 tokens x 64 continuations of a moment, at most half a minute of one core on this model."""
SIDES = {1: "rewarded", -1: "punished"}
_BATCH = 1024


@dataclass(frozen=True)
class ValuedToken:
    """One token.

    Attributes:
        row: its row of the moment's table.
        value: what it is worth against its alternatives.
    """

    row: int
    value: TokenValue


def value_tokens(moment: Moment, pool: GradingPool) -> list[ValuedToken]:
    """Values of tokens of rewarded and punished rollouts, drawn at random among those that had alternatives."""
    chosen = _chosen(moment)
    if not len(chosen):
        return []
    checkpoint = moment.run.base / "checkpoint"
    golds = {row["id"]: row["answer"] for row in read_jsonl(moment.run.problems / "problems.jsonl")}
    weights = {name: value.detach() for name, value in moment.model.named_parameters()}
    config = Qwen3Config.from_json(moment.model.config.to_dict(), str(checkpoint))
    training = moment.run.training
    values = token_values(
        Qwen3Decoder(config, weights),
        load_tokenizer(checkpoint),
        [_place(moment, token, golds) for token in chosen.tolist()],
        SamplingParameters(training.max_new_tokens, training.temperature, batch_size=_BATCH),
        int(moment.model.config.eos_token_id),
        SAMPLES,
        pool,
    )
    return [ValuedToken(row, value) for row, value in zip(chosen.tolist(), values, strict=True)]


def _chosen(moment: Moment) -> Tensor:
    """Tokens of either side that had alternatives: as many of each as there are, or as are wanted."""
    generator = generator_for("token_value", moment.unit)
    sides, probability = moment.column("side"), moment.column("old_log_prob").exp()
    parts = []
    for side in SIDES:
        members = ((sides == side) & (probability < MAX_PROBABILITY)).nonzero()[:, 0]
        parts.append(members[torch.randperm(len(members), generator=generator)[:PLACES_PER_SIDE]])
    return torch.cat(parts)


def _place(moment: Moment, token: int, golds: Mapping[str, str]) -> Place:
    row, rollout = moment.rows.iloc[token], int(moment.rollout_of[token])
    response = moment.tokens.responses[rollout]
    return Place(
        prompt=moment.tokens.prompts[rollout],
        before=response[: row["position"]],
        token=int(row["token"]),
        probability=math.exp(row["old_log_prob"]),
        gold=golds[row["problem"]],
        name=f"{moment.unit}/{row['group']}/{row['sample']}/{row['position']}",
    )
