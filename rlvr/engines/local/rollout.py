"""Rollouts: prompts in the run's own order, sampled responses, and the grader's reward."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from evals.core.errors import UserError
from evals.core.run_spec import LocalRun
from evals.core.sampling import SamplingParameters
from evals.core.training_settings import LocalTraining
from evals.generation.checkpoint import Checkpoint
from evals.generation.plan import encode_prompts
from evals.generation.sampler import OwnDraw, Sampler, kept_tokens
from evals.generation.thinking import case_of
from evals.grading import Case, GradingPool, Verdict
from evals.problems.problem_set import render_prompt
from rlvr.engines.local.policy import TokenBatch


@dataclass(frozen=True)
class PromptOrder:
    """The endless order in which a run uses its training problems: every pass is a new permutation.

    The position alone determines what comes next, so that a resumed run needs nothing but the position.
    """

    problems: Sequence[Mapping[str, Any]]
    seed: int

    def take(self, position: int, count: int) -> list[Mapping[str, Any]]:
        """The ``count`` problems after the first ``position`` ones."""
        size = len(self.problems)
        passes = range(position // size, (position + count - 1) // size + 1)
        order = np.concatenate([np.random.default_rng([self.seed, number]).permutation(size) for number in passes])
        offset = position - passes.start * size
        return [self.problems[index] for index in order[offset : offset + count]]


def encode_problems(
    checkpoint: Checkpoint, run: LocalRun, problems: Sequence[Mapping[str, str]]
) -> dict[str, Sequence[int]]:
    """Map every problem's text to the token ids of its prompt; UserError names one that leaves no room."""
    texts = list(dict.fromkeys(problem["problem"] for problem in problems))
    rendered = [render_prompt(run.prompt, text) for text in texts]
    encoded = encode_prompts(checkpoint, rendered, run.prompt_form, template=run.chat_template_kwargs)
    prompts: dict[str, Sequence[int]] = dict(zip(texts, encoded, strict=True))
    context, longest = checkpoint.context_length(None), run.training.max_new_tokens
    for problem in problems:
        if (length := len(prompts[problem["problem"]])) + longest > context:
            raise UserError(
                f"{run.run}: the prompt of problem {problem['id']} has {length} tokens; accepted: at most "
                f"{context - longest}, the model's context of {context} without training.max_new_tokens, {longest} "
                "(problems.exclude leaves problems out)"
            )
    return prompts


def sampling_of(training: LocalTraining) -> SamplingParameters:
    """The parameters that a run's rollouts are drawn with."""
    return SamplingParameters(**training.model_dump(include=set(SamplingParameters.model_fields)))


class ScoredDraw(OwnDraw):
    """Draws as the base class does, and keeps what the policy says of the tokens."""

    def __init__(
        self, sampling: SamplingParameters, identities: Sequence[str], length: int, device: torch.device
    ) -> None:
        super().__init__(sampling, identities, length, device)
        self._temperature = sampling.temperature
        self.log_probs = torch.zeros(len(identities), length, device=device)
        self.entropies = torch.zeros_like(self.log_probs)
        self.drawn_entropies = self.entropies if sampling.top_p == 1 else torch.zeros_like(self.log_probs)

    def keep_entropies(self, log_distribution: Tensor, row_of: Tensor, running: Tensor, step: int) -> None:
        """Keep the entropies of the distributions of ``log_distribution`` [P, V], and of what top-p leaves of them."""
        probabilities = log_distribution.exp()
        self.entropies[running, step] = -(probabilities * log_distribution).sum(dim=-1)[row_of]
        if self.drawn_entropies is not self.entropies:
            kept, _ = kept_tokens(probabilities, self._sampling)
            drawn_from = torch.special.entr(kept / kept.sum(dim=-1, keepdim=True))
            self.drawn_entropies[running, step] = drawn_from.sum(dim=-1)[row_of]

    def __call__(self, logits: Sequence[Tensor], row_of: Tensor, running: Tensor, step: int) -> Tensor:
        drawn = super().__call__(logits, row_of, running, step)
        log_distribution = (logits[0].float() / self._temperature).log_softmax(dim=-1)
        self.log_probs[running, step] = log_distribution[row_of, drawn]
        self.keep_entropies(log_distribution, row_of, running, step)
        return drawn


_OF_TOKENS = ("log_probs", "entropies", "drawn_entropies")


@dataclass(frozen=True)
class Rollouts:
    """Sampled responses; those of one prompt stand together. L is the length limit, and 0 stands after a response."""

    tokens: TokenBatch
    log_probs: Tensor  # [B, L] of the sampled tokens, at the sampling temperature
    entropies: Tensor  # [B, L] of the whole distributions at that temperature, in nats; 0 where vLLM drew
    drawn_entropies: Tensor  # [B, L] of what top-p leaves of these, which they were drawn from
    cases: Sequence[Case]  # the responses' texts with the correct answers, to be graded
    group_ids: Tensor  # [B] int64, which prompt each rollout answers

    def select(self, indices: Tensor) -> Rollouts:
        """The rollouts at ``indices``."""
        cases = [self.cases[index] for index in indices.tolist()]
        of_tokens = {name: getattr(self, name)[indices] for name in _OF_TOKENS}
        return Rollouts(self.tokens.select(indices), **of_tokens, cases=cases, group_ids=self.group_ids[indices])

    @property
    def lengths(self) -> Tensor:
        """[B] response lengths in tokens."""
        return torch.tensor([len(response) for response in self.tokens.responses])

    @property
    def truncated(self) -> Tensor:
        """[B] bool, whether each response was cut at its longest length."""
        return torch.tensor([case.truncated for case in self.cases])

    def verdicts(self, pool: GradingPool) -> list[Verdict]:
        """The verdicts of the grader of evaluation, or of a verifier."""
        return pool.grade(self.cases)

    @staticmethod
    def join(parts: Sequence[Rollouts]) -> Rollouts:
        """All rollouts of ``parts``; their group ids have to differ already."""
        prompts = [prompt for part in parts for prompt in part.tokens.prompts]
        responses = [response for part in parts for response in part.tokens.responses]
        cases = [case for part in parts for case in part.cases]
        joined = {name: torch.cat([getattr(part, name) for part in parts]) for name in (*_OF_TOKENS, "group_ids")}
        return Rollouts(TokenBatch(prompts, responses), cases=cases, **joined)


@dataclass(frozen=True)
class RolloutSampler:
    """Samples the responses of a run."""

    tokenizer: Tokenizer
    prompts: Mapping[str, Sequence[int]]  # a problem's text -> the token ids of its prompt
    samples_per_prompt: int
    parameters: SamplingParameters
    end_tokens: Sequence[int]
    draw: Callable[[SamplingParameters, Sequence[str], int, torch.device], ScoredDraw] = ScoredDraw

    def roll_out(
        self, sampler: Sampler, problems: Sequence[Mapping[str, str]], stream: str, first_group: int
    ) -> Rollouts:
        """Sample a group of responses to every problem; groups are numbered from ``first_group``.

        ``stream`` names the rollouts' random numbers.
        """
        prompts = [self.prompts[problem["problem"]] for problem in problems]
        numbers = range(self.samples_per_prompt)
        identities = [[f"{stream}/{first_group + row}/{number}" for number in numbers] for row in range(len(prompts))]
        parts: list[ScoredDraw] = []

        def draws(names: Sequence[str], length: int, device: torch.device) -> ScoredDraw:
            parts.append(self.draw(self.parameters, names, length, device))
            return parts[-1]

        groups = sampler(prompts, identities, self.parameters, self.end_tokens, draws)
        responses = [response for group in groups for response in group]
        rows = [row for row in range(len(prompts)) for _ in numbers]
        tokens = TokenBatch([prompts[row] for row in rows], [response.tokens for response in responses])
        cases = [
            case_of(self.tokenizer, prompts[row], made.tokens, made.finished, problems[row]["answer"], problems[row])
            for row, made in zip(rows, responses, strict=True)
        ]
        if parts:
            of_tokens = {name: torch.cat([getattr(part, name) for part in parts]) for name in _OF_TOKENS}
        else:  # an engine that draws by itself
            zeros = torch.zeros(len(responses), self.parameters.max_new_tokens)
            of_tokens = dict.fromkeys(_OF_TOKENS, zeros) | {"log_probs": zeros.clone()}
            for row, response in zip(of_tokens["log_probs"], responses, strict=True):
                row[: len(response.tokens)] = torch.tensor(response.log_probs)
        return Rollouts(tokens, **of_tokens, cases=cases, group_ids=first_group + torch.tensor(rows))
