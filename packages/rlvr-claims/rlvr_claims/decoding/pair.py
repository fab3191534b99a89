"""Sampling a problem set with two models: one more plan of evals.generation, and the rule that draws from both."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evals.core.errors import InvalidInput
from evals.core.sampling import SamplingParameters
from evals.generation.backend import Backend
from evals.generation.checkpoint import Checkpoint
from evals.generation.evaluate import sample_plan
from evals.generation.plan import make_plan
from evals.generation.request import Request, Response
from evals.generation.settings import EvaluationSettings
from rlvr_claims.decoding import VERSION
from rlvr_claims.decoding.settings import Decoding

if TYPE_CHECKING:
    from rlvr_claims.decoding.draw import Observer, PairDraw


def read_pair(base: Path, trained: Path, dtype: str) -> tuple[Checkpoint, Checkpoint]:
    """Read two checkpoints, each a directory in Hugging Face format or of a base model or run of a study.

    Raises:
        UserError: one is missing or damaged, their vocabularies differ, or ``dtype`` is auto and means two things.
    """
    pair = Checkpoint.of(base), Checkpoint.of(trained)
    first, second = (set(checkpoint.tokenizer.get_vocab().items()) for checkpoint in pair)
    if differing := sorted({token for token, _ in first ^ second}):
        where = ", ".join(str(checkpoint.directory) for checkpoint in pair)
        message = f"their tokenizers differ in {len(differing)} tokens, such as {differing[0]!r}"
        raise InvalidInput(where, "", message, "two models of one vocabulary")
    widths = [checkpoint.config.get("vocab_size") for checkpoint in pair]
    if widths[0] != widths[1]:  # a table of embeddings may be wider than the vocabulary, by the size of the model
        raise InvalidInput(str(trained), "vocab_size", f"is {widths[1]}, and that of {base} {widths[0]}", "the same")
    dtypes = [checkpoint.dtype(dtype) for checkpoint in pair]
    if dtypes[0] != dtypes[1]:
        raise InvalidInput("", "dtype", f"auto is {dtypes[0]} for {base} and {dtypes[1]} for {trained}", "one of them")
    return pair


def identities(pair: tuple[Checkpoint, Checkpoint]) -> dict[str, Any]:
    """The parameters of samples that say which models decode them."""
    base, trained = pair
    return {"decoding_version": VERSION, "base": base.identity, "trained": trained.identity}


def pair_draw(decoding: Decoding, sampling: SamplingParameters, *batch: Any, **more: Any) -> PairDraw:
    """Make the rule of a batch; torch is imported by whoever has something to draw."""
    from rlvr_claims.decoding.draw import PairDraw

    return PairDraw(decoding, sampling, *batch, **more)


class PairSampler:
    """Samples one problem set with one pair of models, in any number of ways of decoding.

    The models are loaded once, when there is something to sample. Prompts, and a chat template, are the trained one's.
    """

    def __init__(self, pair: tuple[Checkpoint, Checkpoint], problems: Path, settings: EvaluationSettings) -> None:
        """Plan the sampling of the directory ``problems``.

        Raises:
            UserError: checkpoints or problems are missing or damaged, or the backend cannot decode with two models.
        """
        self.plan = make_plan(pair, problems, settings).with_parameters(**identities(pair))

    @cached_property
    def backend(self) -> Backend:
        return self.plan.load_backend()

    def generate(self, requests: Sequence[Request], decoding: Decoding, observer: Observer) -> list[Response]:
        """Answer each request, in order; both models read the same tokens."""
        draws = partial(pair_draw, decoding, self.plan.settings, observer=observer)
        return self.backend.generate(requests, draws)

    def sample(self, decoding: Decoding, out: Path) -> None:
        """Write ``samples.jsonl``, whose rows also have ``replaced``, and its manifest."""
        plan = self.plan.with_parameters(decoding=decoding.to_json())
        sample_plan(plan, lambda: self.backend, out, partial(pair_draw, decoding, plan.settings))
