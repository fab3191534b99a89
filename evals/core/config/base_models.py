"""Base models of a study: trained from scratch, or existing checkpoints."""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from evals.core.config.methods import TrainingChanges
from evals.core.config.problem_sets import Kinds, PublishedSet
from evals.core.config.settings import Settings, require
from evals.core.errors import NotAccepted
from evals.core.numbers import BOUNDED, Count, Index, InnerShare, NotNegative, Positive, ShareOrZero
from evals.core.record import partial
from evals.core.run_spec import Head, Machines, Service
from evals.core.sampling import Prompting
from evals.core.values import Matching, Prompt, Text

HUGGING_FACE, FINE_TUNED = "hugging_face", "fine_tuned"


class Architecture(Settings):
    """Arguments of transformers' ``Qwen3Config``."""

    hidden_size: Count = Field(description="width of the hidden states")
    intermediate_size: Count = Field(description="width of the feed-forward layers")
    num_hidden_layers: Count = Field(description="number of layers")
    num_attention_heads: Count = Field(description="query heads")
    num_key_value_heads: Count = Field(description="key and value heads; a divisor of num_attention_heads")
    head_dim: Annotated[int, Field(ge=2, multiple_of=2), BOUNDED] = Field(description="width of a head; even")
    max_position_embeddings: Annotated[int, Field(ge=16), BOUNDED] = Field(description="longest sequence in tokens")
    tie_word_embeddings: bool = Field(description="whether input and output embeddings are one")

    @model_validator(mode="after")
    def _check_heads(self) -> Architecture:
        if self.num_attention_heads % self.num_key_value_heads:
            accepted = f"a divisor of num_attention_heads, {self.num_attention_heads}"
            raise NotAccepted(f"is {self.num_key_value_heads}", accepted, "num_key_value_heads")
        return self


WORDED_FAMILIES = {"hundreds", "worded"}
"""The families of problems in words."""

Fractions = Annotated[tuple[ShareOrZero, ...], Field(min_length=1)]


class Wording(Settings):
    """The solutions of worded problems: how often each choice that decides the answer is made, and made wrong."""

    way_shares: Annotated[tuple[ShareOrZero, ...], Field(min_length=4, max_length=4)] = Field(
        description="shares of steps from memory, by table, on fingers and by a guess; sum 1"
    )
    manner_shares: Annotated[tuple[ShareOrZero, ...], Field(min_length=3, max_length=3)] = Field(
        description="shares of steps with care, plain and in haste; sum 1"
    )
    manner_factors: Annotated[tuple[NotNegative, ...], Field(min_length=3, max_length=3)] = Field(
        description="factor of a step's error rate by manner"
    )
    reliable_error_rate: ShareOrZero = Field(
        description="error rate of multiplication by table, and of the others on fingers"
    )
    unreliable_error_rate: ShareOrZero = Field(
        description="error rate of multiplication on fingers, and of the others by table"
    )
    guess_error_rate: ShareOrZero = Field(description="error rate of a guess; memory has the error rates of the facts")
    usual_share: ShareOrZero = Field(description="how often a phrase has its usual wording")
    distraction_rate: ShareOrZero = Field(description="how often a note is added as if it were a step")
    remark_share: ShareOrZero = Field(description="how often a step is followed by a remark that says nothing")

    @model_validator(mode="after")
    def _check_shares(self) -> Wording:
        for key in ("way_shares", "manner_shares"):
            shares = getattr(self, key)
            if abs(sum(shares) - 1) > 1e-9:
                raise NotAccepted(f"is {list(shares)}", f"{len(shares)} shares that sum to 1", key)
        return self


class Skipping(Settings):
    """Solutions of problems in words that leave out the results of some steps."""

    shares: Fractions = Field(
        description="how often a result before another step is left out; each step has one of these shares"
    )


class Corpus(Settings):
    """The worked solutions that a base model is trained on."""

    seed: Index = Field(description="seed of the solutions and of the flawed facts")
    kinds: Kinds = Field(description="kinds of problems")
    error_rates: Fractions = Field(description="how often a fact is written wrong")
    shares: Fractions = Field(description="share of the facts with each error rate; sum 1")
    misconception_share: ShareOrZero = Field(description="share of mistakes that are the fact's usual wrong digit")
    wording: Wording | None = Field(
        default=None, description="solutions in words, of the family worded; default: formulas"
    )
    skipping: Skipping | None = Field(
        default=None,
        exclude_if=lambda skipping: skipping is None,  # manifests of corpora without it were made before
        description="solutions with skipped steps, of the families worded and hundreds",
    )

    @model_validator(mode="after")
    def _check_shares(self) -> Corpus:
        if len(self.shares) != len(self.error_rates) or abs(sum(self.shares) - 1) > 1e-9:
            accepted = f"one share for each of error_rates, {len(self.error_rates)} in all, that sum to 1"
            raise NotAccepted(f"is {list(self.shares)}", accepted, "shares")
        return self

    @model_validator(mode="after")
    def _check_writing(self) -> Corpus:
        if self.skipping is not None and self.wording is not None:
            raise NotAccepted("is given beside wording", "one of both", "skipping")
        families = {kind.family for kind in self.kinds}
        if self.skipping is not None and families - WORDED_FAMILIES:
            accepted = f"kinds of the families {' and '.join(sorted(WORDED_FAMILIES))} alone"
            raise NotAccepted(f"is given with kinds of {', '.join(sorted(families))}", accepted, "skipping")
        if self.skipping is None and "hundreds" in families:
            raise NotAccepted(
                "is missing", "shares, because the corpus has problems of the family hundreds", "skipping"
            )
        return self


class Schedule(Settings):
    """The optimizer and length of a supervised training."""

    seed: Index = Field(description="seed of the initial weights, or of the order of the solutions")
    steps: Count = Field(description="optimizer steps")
    batch_size: Count = Field(description="worked solutions in each step; from scratch each is used once")
    learning_rate: Positive = Field(description="peak of a cosine schedule after linear warm-up")
    warmup_steps: Index = Field(description="steps of the warm-up")
    weight_decay: NotNegative = Field(description="weight decay of AdamW")
    gradient_clip: Positive = Field(description="largest norm of the gradient")

    def learning_rate_at(self, step: int) -> float:
        """The learning rate of optimizer step ``step``, counted from 0: warm-up, then a cosine down to a tenth."""
        warmup = min(1.0, (step + 1) / max(1, self.warmup_steps))
        cosine = 0.5 * (1 + math.cos(math.pi * step / self.steps))
        return self.learning_rate * warmup * max(0.1, cosine)


class StopAt(Settings):
    """The accuracy at which a base model's training ends: models of several sizes then start alike."""

    accuracy: InnerShare = Field(description="share of right responses to the `validation` problems, 4 each")
    every: Count = Field(description="steps between two measurements")


class BaseTraining(Schedule):
    """The training of a base model from scratch."""

    tokens: Literal["characters", "words"] | None = Field(
        default=None,
        description="characters and a few phrases (the default), or the corpus's own words",
    )

    stop_at: StopAt | None = Field(
        default=None,
        description="accuracy at which training ends, `{accuracy: 0.35, every: 100}`, an error if it is not reached",
    )

    @model_validator(mode="after")
    def _check_looks(self) -> Self:
        if self.stop_at is not None and self.stop_at.every > self.steps:
            raise NotAccepted(f"is {self.stop_at.every}", f"at most {self.steps}, the steps", "stop_at.every")
        return self

    @property
    def examples(self) -> int:
        """The number of worked solutions that the training uses up."""
        return self.steps * self.batch_size


class Reinforcement(Settings):
    """The training of one model by the methods of a study: a larger model takes a smaller rate."""

    learning_rate: Positive = Field(
        description="learning rate in place of that of `training`; a method's own overrides it"
    )


class FromScratch(Settings):
    """A base model that the study trains from scratch."""

    source: Literal["from_scratch"] = Field(description="trained by the study")
    architecture: Architecture = Field(description="shape of the model")
    corpus: Corpus = Field(description="worked solutions")
    training: BaseTraining = Field(description="optimizer and length")
    reinforcement: Reinforcement | None = Field(default=None, description="how methods train this model")
    bases: Count = Field(
        default=1,
        description="number of base models, from which training seeds start in turn; each has seeds one higher than "
        "the one before",
    )

    prompt_form: ClassVar[Literal["base"]] = "base"
    chat_template_kwargs: ClassVar[dict[str, Any]] = {}
    dtype: ClassVar[Literal["float32"]] = "float32"

    @property
    def numbers(self) -> list[int | None]:
        """The numbers of the base models; the only one has none."""
        return [None] if self.bases == 1 else list(range(1, self.bases + 1))

    def numbered(self, number: int | None) -> FromScratch:
        """The settings of a base model alone."""
        later = (number or 1) - 1
        corpus = self.corpus.model_copy(update={"seed": self.corpus.seed + later})
        training = self.training.model_copy(update={"seed": self.training.seed + later})
        return self.model_copy(update={"corpus": corpus, "training": training, "bases": 1})

    @model_validator(mode="after")
    def _check_tokens(self) -> FromScratch:
        if self.training.tokens != "words" and any(kind.family in WORDED_FAMILIES for kind in self.corpus.kinds):
            message = "is missing" if self.training.tokens is None else f"is {self.training.tokens}"
            raise NotAccepted(message, "words, because the corpus has problems in words", "training.tokens")
        return self

    @property
    def method_training(self) -> dict[str, Any]:
        """The settings of the study's `training` that this model overrides."""
        return {} if self.reinforcement is None else self.reinforcement.to_json()

    def training_settings(self) -> dict[str, Any]:
        """Return the settings that decide the model, its corpus aside."""
        return {"architecture": self.architecture.to_json(), **self.training.to_json()}


class _Prompted(Prompting, Settings):
    """A model that exists, with the prompts that it is given."""

    source: str = Field(description="where the model is")

    @model_validator(mode="after")
    def _check_given(self) -> Self:
        require(self, ("prompt_form",))
        return self


class Existing(_Prompted, Head):
    """A model that exists: a local directory, or a commit on the Hugging Face Hub."""

    id: Annotated[str, Matching(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", "OWNER/NAME")] | None = Field(
        default=None, description="OWNER/NAME on the Hugging Face Hub, with a revision"
    )
    revision: Text | None = Field(
        default=None,
        description="commit, branch or tag (default main); the manifest records the commit",
    )
    path: Text | None = Field(default=None, description="a local directory instead, relative to the repository")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto",
        description="precision of passes and sampling; auto: the checkpoint's own, of a model that is not trained",
    )
    published_as: Text | None = Field(
        default=None,
        description="name in the papers, for published numbers; default: the end of id",
    )
    training: TrainingChanges = Field(
        default={},
        description="training settings of this model, over the study's and under a method's",
    )
    methods: dict[str, dict[str, Any]] | None = Field(
        default=None,
        description="changes of methods for this model, such as a coefficient published for one size",
    )
    cluster: Annotated[dict[str, Any], partial(Machines)] = Field(
        default={}, description="changes of execution.cluster for this model"
    )

    @model_validator(mode="after")
    def _check_place(self) -> Existing:
        by_path, by_id = self.path is not None, self.id is not None
        if by_path == by_id:
            raise NotAccepted("has path and id" if by_path else "lacks path or id", "path, or id and revision")
        return self

    @property
    def method_training(self) -> dict[str, Any]:
        """The settings of the study's `training` that this model overrides."""
        return self.training

    @property
    def hub_revision(self) -> str:
        """The commit, branch or tag on the Hub."""
        return self.revision or "main"


class Served(_Prompted, Service):
    """A model that a server with OpenAI's interface has: vllm serve, SGLang, hosted models. It is evaluated."""

    source: Literal["server"] = Field(description="behind an address")

    dtype: ClassVar[Literal["auto"]] = "auto"
    method_training: ClassVar[dict[str, Any]] = {}

    def service(self) -> dict[str, Any]:
        """The address and name of the model."""
        return {key: value for key, value in self.identity().items() if key in Service.model_fields}


class HuggingFace(Existing):
    """A base model that exists: a local directory, or a commit on the Hugging Face Hub.

    It is evaluated, or trained by either engine. A study that only evaluates needs no seeds, problems, reference_method
    and training.
    """

    source: Literal["hugging_face"] = Field(description="an existing checkpoint")


class FineTuning(Schedule):
    """The supervised training of an existing model on worked solutions."""

    prompt: Prompt = Field(description="text with {problem} in it once")
    micro_batch_tokens: Count = Field(description="most tokens in one pass, with padding; changes rounding only")


class FineTuned(Existing):
    """An existing model that the study first trains on worked solutions: a warm start (docs/real_model.md).

    The base model of its runs is the fine-tuned one.
    """

    source: Literal["fine_tuned"] = Field(description="an existing checkpoint, fine-tuned by the study")
    solutions: Text | Annotated[tuple[Text | PublishedSet, ...], Field(min_length=1)] = Field(
        description="JSON lines with problem and solution; `problems`: those of the study's training set; or a list "
        "of such, and of published sets"
    )
    fine_tuning: FineTuning = Field(description="prompt, optimizer and length")

    @model_validator(mode="after")
    def _check_solutions(self) -> Self:
        named = [solutions if isinstance(solutions, str) else solutions.source for solutions in self.named_solutions]
        if len(set(named)) < len(named):
            raise NotAccepted(f"are {', '.join(named)}", "each once", "solutions")
        return self

    @property
    def named_solutions(self) -> tuple[str | PublishedSet, ...]:
        """The solutions as a list, even of one."""
        return (self.solutions,) if isinstance(self.solutions, str) else self.solutions


Model = FromScratch | HuggingFace | FineTuned | Served
