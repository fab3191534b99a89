"""The counterfactual value of a token: accuracy after it less accuracy after another (arXiv 2605.08666, eq. 20).

From V = pi Q + (1 - pi) V_without follows Q - V_without = (Q - V) / (1 - pi): the value of the token against its
alternatives is the gain over the prefix's own accuracy, divided by the probability of the alternatives.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from tokenizers import Tokenizer

from evals.core.random import generator_for
from evals.core.record import read_rows
from evals.core.records import Gold
from evals.core.sampling import SamplingParameters
from evals.generation.chat import end_tokens
from evals.generation.checkpoint import Checkpoint
from evals.generation.sampler import OwnDraw, Sampler
from evals.generation.thinking import case_of
from evals.grading import GradingPool
from rlvr_claims.policy import PolicySnapshot

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
    """A Monte-Carlo estimate."""

    with_token: float  # accuracy of continuations after the token, Q
    of_prefix: float  # accuracy of continuations before it, V
    probability: float  # pi of the token, below 1
    samples: int  # continuations behind each of the two

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
    """A token in its rollout."""

    prompt: Sequence[int]
    before: Sequence[int]  # token ids of the response before it
    token: int
    probability: float  # probability of the token there
    gold: str  # the correct answer
    name: str  # unique among the places, and the key of their random numbers


def value_tokens(snapshot: PolicySnapshot, pool: GradingPool) -> list[tuple[int, TokenValue]]:
    """Value tokens of rewarded and punished rollouts, drawn among those that had alternatives: (row, value) each."""
    generator = generator_for("token_value", snapshot.unit)
    sides, probability = snapshot.column("side"), snapshot.column("old_log_prob").exp()
    chosen: list[int] = []
    for side in SIDES:
        members = ((sides == side) & (probability < MAX_PROBABILITY)).nonzero()[:, 0]
        chosen += members[torch.randperm(len(members), generator=generator)[:PLACES_PER_SIDE]].tolist()
    if not chosen:
        return []
    checkpoint = Checkpoint(snapshot.run.base / "checkpoint")
    golds = {gold.id: gold.answer for gold in read_rows(snapshot.run.problems / "problems.jsonl", Gold)}
    places = []
    for token in chosen:
        row, rollout = snapshot.rows.iloc[token], int(snapshot.rollout_of[token])
        prompt, before = snapshot.tokens.prompts[rollout], snapshot.tokens.responses[rollout][: row["position"]]
        name = f"{snapshot.unit}/{row['group']}/{row['sample']}/{row['position']}"
        token_probability, gold = math.exp(row["old_log_prob"]), golds[row["problem"]]
        places.append(Place(prompt, before, int(row["token"]), token_probability, gold, name))
    parameters = SamplingParameters(
        max_new_tokens=snapshot.run.training.max_new_tokens,
        temperature=snapshot.temperature,
        sampling_batch_size=_BATCH,
    )
    sampler, tokenizer = snapshot.model.sampler(), checkpoint.tokenizer
    run = snapshot.run
    ends = list(end_tokens(checkpoint, run.prompt_form, run.chat_template_kwargs))
    values = token_values(sampler, tokenizer, places, parameters, ends, SAMPLES, pool)
    return list(zip(chosen, values, strict=True))


def token_values(
    sampler: Sampler,
    tokenizer: Tokenizer,
    places: Sequence[Place],
    parameters: SamplingParameters,
    end_tokens: Sequence[int],
    samples: int,
    pool: GradingPool,
) -> list[TokenValue]:
    """Estimate the value of each place's token, from ``samples`` continuations with and as many without it forced.

    ``parameters.max_new_tokens`` is the longest whole response; continuations get what the prefix leaves of it. Every
    continuation has random numbers of its own.
    """
    # Two jobs a place: the even one forces the token.
    prefixes = [
        prefix for occurrence in places for prefix in ([*occurrence.before, occurrence.token], [*occurrence.before])
    ]
    accuracies = [0.0] * len(prefixes)
    # Prefixes of equal length are continued together, so that all may grow to the same whole length.
    for length in sorted(set(map(len, prefixes))):
        jobs = [job for job, prefix in enumerate(prefixes) if len(prefix) == length]
        # A forced end token ends the response.
        ended = {job for job in jobs if job % 2 == 0 and places[job // 2].token in end_tokens}
        open_jobs = [job for job in jobs if job not in ended and length < parameters.max_new_tokens]
        responses = {job: [(prefixes[job], job in ended)] for job in jobs}
        if open_jobs:
            prompts = [[*places[job // 2].prompt, *prefixes[job]] for job in open_jobs]
            keys = [f"value/{places[job // 2].name}/{job % 2}" for job in open_jobs]
            names = [[f"{key}/{continuation}" for continuation in range(samples)] for key in keys]
            left = parameters.model_copy(update={"max_new_tokens": parameters.max_new_tokens - length})
            groups = sampler(prompts, names, left, end_tokens, partial(OwnDraw, left))
            for job, group in zip(open_jobs, groups, strict=True):
                responses[job] = [
                    ([*prefixes[job], *continuation.tokens], continuation.finished) for continuation in group
                ]
        cases = [
            case_of(tokenizer, places[job // 2].prompt, tokens, finished, places[job // 2].gold)
            for job, answers in responses.items()
            for tokens, finished in answers
        ]
        verdicts = iter(pool.grade(cases))
        for job, answers in responses.items():
            accuracies[job] = sum(next(verdicts).correct for _ in answers) / len(answers)
    return [
        TokenValue(after, before, occurrence.probability, samples)
        for occurrence, after, before in zip(places, accuracies[::2], accuracies[1::2], strict=True)
    ]
