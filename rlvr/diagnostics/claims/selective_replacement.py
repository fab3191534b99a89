"""One run and its base model on a benchmark: their own responses, and the base model's with tokens replaced."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from evals.core.records import Problem
from evals.core.run_spec import LocalRun
from evals.decoding.draw import PairDraw
from evals.decoding.settings import Criterion, Decoding, Driver, Mode
from evals.generation.backend import BackendSettings, Request, load_backend
from evals.generation.checkpoint import Checkpoint, load_tokenizer
from evals.generation.sampler import Response, SamplingParameters
from evals.grading import Case, GradingPool
from evals.problems.problem_set import render_prompt
from rlvr.diagnostics.measures import log_prob_difference
from rlvr.diagnostics.policy import load_model
from rlvr.diagnostics.tokens.model_pair import ModelPair
from rlvr.engines.local.policy import TokenBatch

SAMPLES = 8
FRACTIONS = (0.01, 0.03, 0.1, 0.3)
CRITERIA = (Criterion.LOG_PROB_DIFFERENCE, Criterion.KL_TRAINED_BASE, Criterion.ENTROPY, Criterion.RANDOM)


class ReplacementOnBenchmark:
    """One run beside its base model on a benchmark.

    Attributes:
        tokens: the tokens of the "base" and of the "trained" model's responses, with both models' numbers.
    """

    def __init__(self, run: LocalRun, directory: Path, problems: Sequence[Problem], pool: GradingPool) -> None:
        """Sample both models alone; ``directory`` is the run's."""
        base, trained = run.base / "checkpoint", directory / "checkpoint"
        self._problems, self._pool = problems, pool
        self._tokenizer = load_tokenizer(base)
        training = run.training
        prompts = [self._tokenizer.encode(render_prompt(run.prompt, row.problem)).ids for row in problems]
        self._requests = [
            Request(tuple(prompt), f"direction/{row.id}/{number}", training.max_new_tokens)
            for row, prompt in zip(problems, prompts, strict=True)
            for number in range(SAMPLES)
        ]
        pair = Checkpoint(base), Checkpoint(trained)
        self._sampling = SamplingParameters(training.max_new_tokens, training.temperature)
        settings = BackendSettings("float32", "cpu", pair[0].context_length(None), pair[0].end_tokens, self._sampling)
        self._backend = load_backend("local", pair, settings)
        models = ModelPair(load_model(base), load_model(trained), training.temperature)
        self._alone = {driver.value: self._sample(Decoding.alone(driver)) for driver in Driver}
        self.tokens = {name: self._tokens_of(responses, models) for name, responses in self._alone.items()}

    def accuracies(self) -> Iterator[tuple[str, str, float]]:
        """Yield model, problem and accuracy of each model alone."""
        for name, responses in self._alone.items():
            for problem, value in self._graded(responses):
                yield name, problem, value

    def replaced(self) -> Iterator[tuple[str, float, float, str, float]]:
        """Yield criterion, fraction wanted, fraction replaced, problem and accuracy with tokens replaced."""
        for criterion in CRITERIA:
            for fraction in FRACTIONS:
                tau = _threshold(criterion, self.tokens["base"], fraction)
                decoding = Decoding(mode=Mode.REPLACEMENT, driver=Driver.BASE, criterion=criterion, tau=tau)
                made = self._sample(decoding)
                replaced = sum(each.replaced or 0 for each in made) / sum(len(each.tokens) for each in made)
                for problem, value in self._graded(made):
                    yield criterion.value, fraction, replaced, problem, value

    def _sample(self, decoding: Decoding) -> list[Response]:
        return self._backend.generate(self._requests, partial(PairDraw, decoding, self._sampling))

    def _graded(self, responses: Sequence[Response]) -> list[tuple[str, float]]:
        """Each problem's accuracy."""
        texts = self._tokenizer.decode_batch([each.tokens for each in responses], skip_special_tokens=True)
        cases = [
            Case(text, self._problems[place // SAMPLES].answer, truncated=not response.finished)
            for place, (text, response) in enumerate(zip(texts, responses, strict=True))
        ]
        correct = np.array([verdict.correct for verdict in self._pool.grade(cases)], dtype=np.float64)
        means = correct.reshape(-1, SAMPLES).mean(axis=1)
        return [(str(row.id), float(mean)) for row, mean in zip(self._problems, means, strict=True)]

    def _tokens_of(self, responses: Sequence[Response], models: ModelPair) -> pd.DataFrame:
        """Both models' numbers of the responses' tokens, with the problem of each."""
        batch = TokenBatch([list(each.prompt) for each in self._requests], [each.tokens for each in responses])
        frame = pd.DataFrame({name: values.numpy() for name, values in models.compare(batch).items()})
        lengths = [len(each.tokens) for each in responses]
        names = [self._problems[place // SAMPLES].id for place in range(len(responses))]
        return frame.assign(problem=np.repeat(names, lengths), difference=log_prob_difference(frame))


def _threshold(criterion: Criterion, tokens: pd.DataFrame, fraction: float) -> float:
    """The threshold that would replace ``fraction`` of the tokens of the base model's own responses."""
    if criterion is Criterion.RANDOM:
        return fraction
    if criterion is Criterion.LOG_PROB_DIFFERENCE:
        return float(tokens["difference"].quantile(fraction))
    column = "base_entropy" if criterion is Criterion.ENTROPY else "kl_trained_base"
    return float(tokens[column].quantile(1 - fraction))
