"""Rollouts: prompts in the run's own order, sampled responses, and the grader's reward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from evals.generation.backend import Response, SamplingParameters
from evals.generation.qwen3 import Qwen3Decoder
from evals.generation.sampler import sample
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
    """Sampled responses; those of one prompt stand together."""

    tokens: TokenBatch
    cases: Sequence[Case]  # the responses' texts with the correct answers, to be graded
    group_ids: Tensor  # [B] int64, which prompt each rollout answers

    def select(self, indices: Tensor) -> Rollouts:
        """The rollouts at ``indices``."""
        cases = [self.cases[index] for index in indices.tolist()]
        return Rollouts(self.tokens.select(indices), cases, self.group_ids[indices])

    @property
    def lengths(self) -> Tensor:
        """[B] response lengths in tokens."""
        return torch.tensor([len(response) for response in self.tokens.responses])

    @property
    def truncated(self) -> Tensor:
        """[B] bool, whether each response was cut at its longest length."""
        return torch.tensor([case.truncated for case in self.cases])

    def rewards(self, pool: GradingPool) -> Tensor:
        """[B] rewards: 1 for a correct answer, 0 otherwise, by the grader that also scores evaluation."""
        return torch.tensor([float(verdict.correct) for verdict in pool.grade(self.cases)])

    @staticmethod
    def join(parts: Sequence[Rollouts]) -> Rollouts:
        """All rollouts of ``parts``; their group ids have to differ already."""
        prompts = [prompt for part in parts for prompt in part.tokens.prompts]
        responses = [response for part in parts for response in part.tokens.responses]
        cases = [case for part in parts for case in part.cases]
        return Rollouts(TokenBatch(prompts, responses), cases, torch.cat([part.group_ids for part in parts]))


@dataclass(frozen=True)
class RolloutSampler:
    """Samples the responses of a run."""

    tokenizer: Tokenizer
    prompt: str  # template
    samples_per_prompt: int
    parameters: SamplingParameters
    end_token: int

    def roll_out(self, decoder: Any, problems: Sequence[Mapping[str, str]], stream: str, first_group: int) -> Rollouts:
        """Sample a group of responses to every problem; groups are numbered from ``first_group``.

        ``stream`` names the rollouts' random numbers.
        """
        texts = [render_prompt(self.prompt, problem["problem"]) for problem in problems]
        prompts = self._encode(texts)
        numbers = range(self.samples_per_prompt)
        identities = [[f"{stream}/{first_group + row}/{number}" for number in numbers] for row in range(len(prompts))]
        groups = self._answer(decoder, prompts, identities)
        responses = [response for group in groups for response in group]
        rows = [row for row in range(len(prompts)) for _ in numbers]
        tokens = TokenBatch([prompts[row] for row in rows], [response.tokens for response in responses])
        predictions = self.tokenizer.decode_batch(tokens.responses, skip_special_tokens=True)
        cases = [
            Case(prediction=prediction, gold=problems[row]["answer"], truncated=not response.finished)
            for prediction, row, response in zip(predictions, rows, responses, strict=True)
        ]
        return Rollouts(tokens, cases, first_group + torch.tensor(rows))

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self.tokenizer.encode_batch(texts)]

    def _answer(
        self, decoder: Qwen3Decoder, prompts: Sequence[list[int]], identities: Sequence[Sequence[str]]
    ) -> Sequence[Sequence[Response]]:
        """Sample a response for each identity of each prompt."""
        return sample(decoder, prompts, identities, self.parameters, self.end_token)
