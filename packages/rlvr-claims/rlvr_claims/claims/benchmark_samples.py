"""Samples of a benchmark's problems that a claim takes of its own, and their grades."""

from collections.abc import Sequence

import numpy as np
from tokenizers import Tokenizer

from evals.core.records import Problem
from evals.core.run_spec import LocalRun
from evals.generation.checkpoint import Checkpoint
from evals.generation.plan import encode_prompts
from evals.generation.request import Request, Response
from evals.generation.thinking import case_of
from evals.grading import GradingPool
from evals.problems.problem_set import render_prompt

SAMPLES = 8


def requests_for(run: LocalRun, problems: Sequence[Problem], stream: str) -> list[Request]:
    """Ask for the samples of each problem with the run's prompt, in its form; ``stream`` names their random numbers."""
    texts = [render_prompt(run.prompt, problem.problem) for problem in problems]
    prompts = encode_prompts(
        Checkpoint(run.base / "checkpoint"), texts, run.prompt_form, template=run.chat_template_kwargs
    )
    return [
        Request(prompt, f"{stream}/{problem.id}/{number}", run.training.max_new_tokens)
        for problem, prompt in zip(problems, prompts, strict=True)
        for number in range(SAMPLES)
    ]


def accuracies(
    tokenizer: Tokenizer,
    problems: Sequence[Problem],
    requests: Sequence[Request],
    responses: Sequence[Response],
    pool: GradingPool,
) -> list[float]:
    """Return the share of right answers to each problem, of responses to :func:`requests_for`."""
    golds = [problem.answer for problem in problems for _ in range(SAMPLES)]
    cases = [
        case_of(tokenizer, request.prompt, response.tokens, response.finished, gold)
        for request, response, gold in zip(requests, responses, golds, strict=True)
    ]
    correct = np.array([verdict.correct for verdict in pool.grade(cases)], dtype=np.float64)
    return [float(mean) for mean in correct.reshape(-1, SAMPLES).mean(axis=1)]
