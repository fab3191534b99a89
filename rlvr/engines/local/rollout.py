"""Rollouts: prompts in the run's own order, sampled responses, and the grader's reward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from evals.generation.qwen3 import Qwen3Decoder
from evals.generation.sampler import Response, SamplingParameters, sample
from evals.grading import Case, GradingPool
from evals.problems.problem_set import render_prompt
from rlvr.engines.local.policy import TokenBatch


@dataclass(frozen=True)
class PromptOrder:
    """The endless order in which a run uses its training problems: every pass is a new permutation.

    The position alone determines what comes next, so that a resumed run needs nothing but the position.
    """

    problems: Sequence[Mapping[str, str]]
    seed: int

    def take(self, position: int, count: int) -> list[Mapping[str, str]]:
        """The ``count`` problems after the first ``position`` ones."""
        size = len(self.problems)
        passes = range(position // size, (position + count - 1) // size + 1)
        order = np.concatenate([np.random.default_rng([self.seed, number]).permutation(size) for number in passes])
        offset = position - passes.start * size
        return [self.problems[index] for index in order[offset : offset + count]]


@dataclass(frozen=True)
class Rollouts:
    """Sampled responses with their rewards; rollouts of one prompt stand together.

    Attributes:
        tokens: prompts and responses.
        texts: the responses as text.
        golds: the correct answers.
        truncated: whether each response was cut at its longest length.
        group_ids: [B] int64, which prompt each rollout answers.
    """

    tokens: TokenBatch
    texts: Sequence[str]
    golds: Sequence[str]
    truncated: Sequence[bool]
    group_ids: Tensor

    def select(self, indices: Tensor) -> Rollouts:
        """The rollouts at ``indices``."""
        chosen = indices.tolist()
        return Rollouts(
            self.tokens.select(indices),
            [self.texts[i] for i in chosen],
            [self.golds[i] for i in chosen],
            [self.truncated[i] for i in chosen],
            self.group_ids[indices],
        )

    @property
    def lengths(self) -> Tensor:
        """[B] response lengths in tokens."""
        return torch.tensor([len(response) for response in self.tokens.responses])

    @staticmethod
    def join(parts: Sequence[Rollouts]) -> Rollouts:
        """All rollouts of ``parts``; their group ids have to differ already."""
        return Rollouts(
            TokenBatch(
                [prompt for part in parts for prompt in part.tokens.prompts],
                [response for part in parts for response in part.tokens.responses],
            ),
            [text for part in parts for text in part.texts],
            [gold for part in parts for gold in part.golds],
            [truncated for part in parts for truncated in part.truncated],
            torch.cat([part.group_ids for part in parts]),
        )


def roll_out(
    decoder: Qwen3Decoder,
    tokenizer: Tokenizer,
    problems: Sequence[Mapping[str, str]],
    prompt_template: str,
    samples_per_prompt: int,
    parameters: SamplingParameters,
    end_token: int,
    stream: str,
    first_group: int,
) -> Rollouts:
    """Sample ``samples_per_prompt`` responses to every problem.

    ``stream`` names the rollouts' random numbers; groups are numbered from ``first_group``.
    """
    texts = [render_prompt(prompt_template, problem["problem"]) for problem in problems]
    prompts = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
    identities = [
        [f"{stream}/{first_group + row}/{number}" for number in range(samples_per_prompt)]
        for row in range(len(prompts))
    ]
    groups = sample(decoder, prompts, identities, parameters, end_token)
    responses: list[Response] = [response for group in groups for response in group]
    rows = [row for row in range(len(prompts)) for _ in range(samples_per_prompt)]
    return Rollouts(
        tokens=TokenBatch([prompts[row] for row in rows], [response.tokens for response in responses]),
        texts=tokenizer.decode_batch([response.tokens for response in responses], skip_special_tokens=True),
        golds=[problems[row]["answer"] for row in rows],
        truncated=[not response.finished for response in responses],
        group_ids=first_group + torch.tensor(rows),
    )


def reward(rollouts: Rollouts, pool: GradingPool) -> Tensor:
    """[B] rewards: 1 for a correct answer, 0 otherwise, by the grader that also scores evaluation."""
    verdicts = pool.grade(
        [
            Case(prediction=text, gold=gold, truncated=truncated)
            for text, gold, truncated in zip(rollouts.texts, rollouts.golds, rollouts.truncated, strict=True)
        ]
    )
    return torch.tensor([float(verdict.correct) for verdict in verdicts])
