"""Sample a benchmark with two models: the same files as with one, resumable in the same way."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from evals.core.errors import UserError
from evals.decoding import VERSION
from evals.decoding.checkpoints import CheckpointPair
from evals.decoding.pair import BACKENDS, BoundPair, Pair, PairResponse, load_pair
from evals.decoding.settings import Decoding
from evals.generation.backend import Backend
from evals.generation.checkpoint import load_tokenizer
from evals.generation.evaluate import sample_plan
from evals.generation.plan import EvaluationSettings, Plan, make_plan
from evals.generation.sampler import Response


class PairSampler:
    """Samples one problem set with one pair of models, in as many ways of decoding as are asked for.

    The models are loaded when there is something to sample, once.

    Raises:
        UserError: checkpoints or problems are missing or damaged, or the backend cannot decode with two models.
    """

    def __init__(self, checkpoints: CheckpointPair, problems: Path, settings: EvaluationSettings) -> None:
        if settings.backend not in BACKENDS:
            raise UserError(f"--backend: is {settings.backend!r}; accepted: {', '.join(BACKENDS)} (docs/decoding.md)")
        self._checkpoints = checkpoints
        self._settings = settings
        self._tokenizer: Tokenizer = load_tokenizer(checkpoints.trained.directory)
        self._plan = _pair_plan(checkpoints, problems, settings, self._tokenizer)
        self._pair: Pair | None = None

    @property
    def plan(self) -> Plan:
        """What is sampled, whatever the way of decoding."""
        return self._plan

    def pair(self) -> Pair:
        """The loaded models."""
        if self._pair is None:
            self._pair = load_pair(
                self._checkpoints.base.directory,
                self._checkpoints.trained.directory,
                self._plan.backend_settings(self._settings),
                self._settings.sampling,
                self._plan.end_tokens,
            )
        return self._pair

    def sample(self, decoding: Decoding, out: Path, name: str) -> None:
        """Write ``samples.jsonl``, whose rows have ``replaced`` beside the usual fields, and its manifest.

        Args:
            decoding: how to decode.
            out: directory of the samples.
            name: for the progress bar.
        """
        load: Callable[[], Backend] = lambda: BoundPair(self.pair(), decoding)  # noqa: E731
        parameters = {**self._plan.parameters, "decoding": decoding.as_json()}
        plan = dataclasses.replace(self._plan, parameters=parameters)
        sample_plan(plan, self._settings, load, self._tokenizer, out, None, 1, name, _replaced)


def _replaced(response: Response) -> Mapping[str, Any]:
    assert isinstance(response, PairResponse)
    return {"replaced": response.replaced}


def _pair_plan(checkpoints: CheckpointPair, problems: Path, settings: EvaluationSettings, tokenizer: Tokenizer) -> Plan:
    """The plan of the trained model alone, with the base model's files, ends and context."""
    base, trained = checkpoints.base, checkpoints.trained
    plan = make_plan(trained.directory, trained.hashes, problems, settings, tokenizer)
    length = checkpoints.context_length(settings.max_model_len)
    limit = settings.sampling.max_new_tokens
    return dataclasses.replace(
        plan,
        room=[max(0, min(limit, length - len(prompt))) for prompt in plan.prompts],
        inputs={**base.hashes, **plan.inputs},
        parameters={
            **plan.parameters,
            "decoding_version": VERSION,
            "base": base.identity,
            "trained": trained.identity,
            "end_tokens": checkpoints.end_tokens,
        },
        end_tokens=checkpoints.end_tokens,
        context_length=length,
    )
