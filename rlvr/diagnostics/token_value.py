"""What a token is worth: the accuracy after it, less the accuracy had another been drawn (arXiv 2605.08666, eq. 20).

From V = pi Q + (1 - pi) V_without follows Q - V_without = (Q - V) / (1 - pi): the value of the token against its
alternatives is the gain over the prefix's own accuracy, divided by the probability of the alternatives.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

from evals.generation.qwen3 import Qwen3Decoder
from evals.generation.sampler import SamplingParameters, sample
from evals.grading import Case, GradingPool

MAX_PROBABILITY = 0.9
"""Tokens more probable than this are left out: the variance grows with 1 / (1 - pi)^2. The paper's bound is not known;
at 0.99, with 32 continuations, a value's standard error averaged 1.6 on the laptop model."""


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
        """Of ``value``, from the two binomials; with one sample more on each side of 0 and 1 it is never 0."""

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
        probability: of the token there.
        gold: the correct answer.
        name: unique among the places, and the key of their random numbers.
    """

    prompt: Sequence[int]
    before: Sequence[int]
    token: int
    probability: float
    gold: str
    name: str


def token_values(
    decoder: Qwen3Decoder,
    tokenizer: Tokenizer,
    places: Sequence[Place],
    parameters: SamplingParameters,
    end_token: int,
    samples: int,
    pool: GradingPool,
) -> list[TokenValue]:
    """The value of each place's token, from ``samples`` continuations with and as many without it forced.

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
        closed = [job for job in jobs if job not in open_jobs]
        responses: list[tuple[int, list[int], bool]] = [
            (job, list(_prefix(places, job)), not _open(places, job, end_token)) for job in closed
        ]
        if open_jobs:
            groups = sample(
                decoder,
                [[*places[job // 2].prompt, *_prefix(places, job)] for job in open_jobs],
                [
                    [f"value/{places[job // 2].name}/{job % 2}/{number}" for number in range(samples)]
                    for job in open_jobs
                ],
                SamplingParameters(
                    max_new_tokens=parameters.max_new_tokens - length,
                    temperature=parameters.temperature,
                    batch_size=parameters.batch_size,
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
    """Jobs are numbered in pairs: even ones force the token, odd ones do not."""
    place = places[job // 2]
    return [*place.before, place.token] if job % 2 == 0 else list(place.before)


def _open(places: Sequence[Place], job: int, end_token: int) -> bool:
    """Whether there is anything to continue: a forced end token ends the response."""
    return job % 2 == 1 or places[job // 2].token != end_token
