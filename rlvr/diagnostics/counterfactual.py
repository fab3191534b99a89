"""The counterfactual value of a token: accuracy after it less accuracy after another (arXiv 2605.08666, eq. 20).

From V = pi Q + (1 - pi) V_without follows Q - V_without = (Q - V) / (1 - pi): the value of the token against its
alternatives is the gain over the prefix's own accuracy, divided by the probability of the alternatives.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor

from evals.core.files import read_jsonl
from evals.core.random import generator_for
from evals.generation.checkpoint import load_tokenizer
from evals.generation.qwen3 import Qwen3Config, Qwen3Decoder
from evals.generation.sampler import SamplingParameters, sample
from evals.grading import Case, GradingPool
from rlvr.diagnostics.policy import PolicySnapshot

MAX_PROBABILITY = 0.9
"""Tokens more probable than this are left out: the variance grows with 1 / (1 - pi)^2. The paper's bound is not known;
at 0.99, with 32 continuations, a value's standard error averaged 1.6 on the laptop model."""
SAMPLES = 32
PLACES_PER_SIDE = 40
"""2 sides x 40 tokens x 64 continuations of a snapshot: at most half a minute of one core on the laptop model."""
SIDES = {1: "rewarded", -1: "punished"}
_BATCH = 1024


@dataclass(frozen=True)
class TokenValue:
    """A Monte-Carlo estimate.

    Attributes:
        with_token: accuracy of continuations after the token, Q.
        of_prefix: accuracy of continuations before it, V.
        probability: pi of the token, below 1.
        samples: continuations behind each of the two.
    """

    with_token: float
    of_prefix: float
    probability: float
    samples: int

    @property
    def value(self) -> float:
        """(Q - V) / (1 - pi)."""
        return (self.with_token - self.of_prefix) / (1.0 - self.probability)

    @property
    def standard_error(self) -> float:
        """The error of ``value`` from the two binomials, with two more samples, one right, so that it is never 0."""

        def variance(accuracy: float) -> float:
            shrunk = (accuracy * self.samples + 1) / (self.samples + 2)
            return shrunk * (1 - shrunk) / self.samples

        return math.sqrt(variance(self.with_token) + variance(self.of_prefix)) / (1.0 - self.probability)


@dataclass(frozen=True)
class Place:
    """A token in its rollout.

    Attributes:
        prompt: token ids.
        before: token ids of the response before it.
        token: its id.
        probability: probability of the token there.
        gold: the correct answer.
        name: unique among the places, and the key of their random numbers.
    """

    prompt: Sequence[int]
    before: Sequence[int]
    token: int
    probability: float
    gold: str
    name: str


def value_tokens(snapshot: PolicySnapshot, pool: GradingPool) -> list[tuple[int, TokenValue]]:
    """Value tokens of rewarded and punished rollouts, drawn among those that had alternatives: (row, value) each."""
    chosen = _chosen(snapshot)
    if not len(chosen):
        return []
    checkpoint = snapshot.run.base / "checkpoint"
    golds = {row["id"]: row["answer"] for row in read_jsonl(snapshot.run.problems / "problems.jsonl")}
    weights = {name: value.detach() for name, value in snapshot.model.named_parameters()}
    config = Qwen3Config.from_json(snapshot.model.config.to_dict(), str(checkpoint))
    values = token_values(
        Qwen3Decoder(config, weights),
        load_tokenizer(checkpoint),
        [_place(snapshot, token, golds) for token in chosen.tolist()],
        SamplingParameters(snapshot.run.training.max_new_tokens, snapshot.temperature, batch_size=_BATCH),
        int(snapshot.model.config.eos_token_id),
        SAMPLES,
        pool,
    )
    return list(zip(chosen.tolist(), values, strict=True))


def _chosen(snapshot: PolicySnapshot) -> Tensor:
    """Rows of tokens of either side that had alternatives, at most :data:`PLACES_PER_SIDE` of each."""
    generator = generator_for("token_value", snapshot.unit)
    sides, probability = snapshot.column("side"), snapshot.column("old_log_prob").exp()
    parts = []
    for side in SIDES:
        members = ((sides == side) & (probability < MAX_PROBABILITY)).nonzero()[:, 0]
        parts.append(members[torch.randperm(len(members), generator=generator)[:PLACES_PER_SIDE]])
    return torch.cat(parts)


def _place(snapshot: PolicySnapshot, token: int, golds: Mapping[str, str]) -> Place:
    row, rollout = snapshot.rows.iloc[token], int(snapshot.rollout_of[token])
    return Place(
        prompt=snapshot.tokens.prompts[rollout],
        before=snapshot.tokens.responses[rollout][: row["position"]],
        token=int(row["token"]),
        probability=math.exp(row["old_log_prob"]),
        gold=golds[row["problem"]],
        name=f"{snapshot.unit}/{row['group']}/{row['sample']}/{row['position']}",
    )


def token_values(
    decoder: Qwen3Decoder,
    tokenizer: Tokenizer,
    places: Sequence[Place],
    parameters: SamplingParameters,
    end_token: int,
    samples: int,
    pool: GradingPool,
) -> list[TokenValue]:
    """Estimate the value of each place's token, from ``samples`` continuations with and as many without it forced.

    ``parameters.max_new_tokens`` is the longest whole response; continuations get what the prefix leaves of it. Every
    continuation has random numbers of its own.
    """
    accuracies = [0.0] * (2 * len(places))
    # Prefixes of equal length are continued together, so that all may grow to the same whole length.
    by_length: dict[int, list[int]] = {}
    for job in range(2 * len(places)):
        by_length.setdefault(len(_prefix(places, job)), []).append(job)
    for length, jobs in sorted(by_length.items()):
        open_jobs = [job for job in jobs if _open(places, job, end_token) and length < parameters.max_new_tokens]
        responses: list[tuple[int, list[int], bool]] = [
            (job, _prefix(places, job), not _open(places, job, end_token)) for job in jobs if job not in open_jobs
        ]
        if open_jobs:
            groups = sample(
                decoder,
                [[*places[job // 2].prompt, *_prefix(places, job)] for job in open_jobs],
                [[f"value/{places[job // 2].name}/{job % 2}/{each}" for each in range(samples)] for job in open_jobs],
                SamplingParameters(
                    parameters.max_new_tokens - length, parameters.temperature, batch_size=parameters.batch_size
                ),
                end_token,
            )
            responses += [
                (job, [*_prefix(places, job), *response.tokens], response.finished)
                for job, group in zip(open_jobs, groups, strict=True)
                for response in group
            ]
        texts = tokenizer.decode_batch([tokens for _, tokens, _ in responses], skip_special_tokens=True)
        verdicts = pool.grade(
            [
                Case(prediction=text, gold=places[job // 2].gold, truncated=not finished)
                for text, (job, _, finished) in zip(texts, responses, strict=True)
            ]
        )
        for job in jobs:
            own = [verdict.correct for verdict, each in zip(verdicts, responses, strict=True) if each[0] == job]
            accuracies[job] = sum(own) / len(own)
    return [
        TokenValue(accuracies[2 * number], accuracies[2 * number + 1], place.probability, samples)
        for number, place in enumerate(places)
    ]


def _prefix(places: Sequence[Place], job: int) -> list[int]:
    """The prefix of a job; jobs are numbered in pairs, and even ones force the token."""
    place = places[job // 2]
    return [*place.before, place.token] if job % 2 == 0 else list(place.before)


def _open(places: Sequence[Place], job: int, end_token: int) -> bool:
    """Return whether there is anything to continue: a forced end token ends the response."""
    return job % 2 == 1 or places[job // 2].token != end_token
