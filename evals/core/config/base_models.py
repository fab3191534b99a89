"""Base models of a study: trained from scratch, or existing checkpoints."""

import math
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field

from evals.core.config.methods import TrainingChanges
from evals.core.config.problem_sets import Kinds, PublishedSet
from evals.core.errors import refuse
from evals.core.numbers import BOUNDED, Count, Index, InnerShare, NotNegative, Positive, ShareOrZero
from evals.core.record import Settings, partial, require, setting
from evals.core.run_spec import Head, Machines, Service
from evals.core.sampling import Prompting
from evals.core.values import Matching, Prompt, Text

HUGGING_FACE, FINE_TUNED = "hugging_face", "fine_tuned"


class Architecture(Settings):
    """Arguments of transformers' ``Qwen3Config``."""

    hidden_size: Count = setting("width of the hidden states")
    intermediate_size: Count = setting("width of the feed-forward layers")
    num_hidden_layers: Count = setting("number of layers")
    num_attention_heads: Count = setting("query heads")
    num_key_value_heads: Count = setting("key and value heads; a divisor of num_attention_heads")
    head_dim: Annotated[int, Field(ge=2, multiple_of=2), BOUNDED] = setting("width of a head; even")
    max_position_embeddings: Annotated[int, Field(ge=16), BOUNDED] = setting("longest sequence in tokens")
    tie_word_embeddings: bool = setting("whether input and output embeddings are one")

    def check_whole(self) -> None:
        heads, shared = self.num_attention_heads, self.num_key_value_heads
        refuse(heads % shared, f"is {shared}", f"a divisor of num_attention_heads, {heads}", "num_key_value_heads")


WORDED_FAMILIES = {"hundreds", "lists", "worded"}  # the families of problems in words

Fractions = Annotated[tuple[ShareOrZero, ...], Field(min_length=1)]


class Wording(Settings):
    """The solutions of worded problems: how often each choice that decides the answer is made, and made wrong."""

    way_shares: Annotated[tuple[ShareOrZero, ...], Field(min_length=4, max_length=4)] = setting(
        "shares of steps from memory, by table, on fingers and by a guess; sum 1"
    )
    manner_shares: Annotated[tuple[ShareOrZero, ...], Field(min_length=3, max_length=3)] = setting(
        "shares of steps with care, plain and in haste; sum 1"
    )
    manner_factors: Annotated[tuple[NotNegative, ...], Field(min_length=3, max_length=3)] = setting(
        "factor of a step's error rate by manner"
    )
    reliable_error_rate: ShareOrZero = setting("error rate of multiplication by table, and of the others on fingers")
    unreliable_error_rate: ShareOrZero = setting("error rate of multiplication on fingers, and of the others by table")
    guess_error_rate: ShareOrZero = setting("error rate of a guess; memory has the error rates of the facts")
    usual_share: ShareOrZero = setting("how often a phrase has its usual wording")
    distraction_rate: ShareOrZero = setting("how often a note is added as if it were a step")
    remark_share: ShareOrZero = setting("how often a step is followed by a remark that says nothing")

    def check_whole(self) -> None:
        for key in ("way_shares", "manner_shares"):
            shares = getattr(self, key)
            refuse(abs(sum(shares) - 1) > 1e-9, f"is {list(shares)}", f"{len(shares)} shares that sum to 1", key)


class Skipping(Settings):
    """Solutions of problems in words that leave out the results of some steps."""

    shares: Fractions = setting("how often a result before another step is left out; each step has one of these shares")


class Searching(Settings):
    """Solutions of Countdown that try expressions, in a random order, until one is right or they give up."""

    give_up: Fractions = setting(
        "how often it gives up after the first wrong attempt, the second ...; the last: all others"
    )


class Corpus(Settings):
    """The worked solutions that a base model is trained on."""

    seed: Index = setting("seed of the solutions and flawed facts")
    kinds: Kinds = setting("kinds of problems")
    error_rates: Fractions = setting("how often a fact is written wrong")
    shares: Fractions = setting("share of the facts with each error rate; sum 1")
    misconception_share: ShareOrZero = setting("share of mistakes that are the fact's usual wrong digit")
    wording: Wording | None = setting("solutions in words, of the family worded; default: formulas", None)
    skipping: Skipping | None = setting(
        "solutions with skipped steps, of the families worded, hundreds and lists",
        None,
        exclude_if=lambda skipping: skipping is None,  # manifests of corpora without it were made before
    )
    searching: Searching | None = setting(
        "solutions of the family countdown, which search", None, exclude_if=lambda searching: searching is None
    )

    def check_whole(self) -> None:
        others = len(self.shares) != len(self.error_rates) or abs(sum(self.shares) - 1) > 1e-9
        accepted = f"one share for each of error_rates, {len(self.error_rates)} in all, that sum to 1"
        refuse(others, f"is {list(self.shares)}", accepted, "shares")
        skips, families = self.skipping is not None, {kind.family for kind in self.kinds}
        refuse(skips and self.wording is not None, "is given beside wording", "one of both", "skipping")
        accepted = f"kinds of the families {' and '.join(sorted(WORDED_FAMILIES))} alone"
        found = f"is given with kinds of {', '.join(sorted(families))}"
        refuse(skips and families - WORDED_FAMILIES, found, accepted, "skipping")
        is_idle = self.searching is not None and "countdown" not in families
        refuse(is_idle, found, "kinds of which one at least has the family countdown", "searching")
        for family, key in (("hundreds", "skipping"), ("lists", "skipping"), ("countdown", "searching")):
            keys = ", ".join((Skipping if key == "skipping" else Searching).model_fields)
            lacks = getattr(self, key) is None and family in families
            refuse(lacks, "is missing", f"{keys}, because the corpus has problems of the family {family}", key)


class Schedule(Settings):
    """The optimizer and length of a supervised training."""

    seed: Index = setting("seed of the initial weights, or of the order of the solutions")
    steps: Count = setting("optimizer steps")
    batch_size: Count = setting("worked solutions in each step; from scratch each is used once")
    learning_rate: Positive = setting("peak of a cosine schedule after linear warm-up")
    warmup_steps: Index = setting("steps of the warm-up")
    weight_decay: NotNegative = setting("weight decay of AdamW")
    gradient_clip: Positive = setting("largest norm of the gradient")

    def learning_rate_at(self, step: int) -> float:
        """The learning rate of optimizer step ``step``, counted from 0: warm-up, then a cosine down to a tenth."""
        warmup = min(1.0, (step + 1) / max(1, self.warmup_steps))
        cosine = 0.5 * (1 + math.cos(math.pi * step / self.steps))
        return self.learning_rate * warmup * max(0.1, cosine)


class StopAt(Settings):
    """The accuracy at which a base model's training ends: models of several sizes then start alike."""

    accuracy: InnerShare = setting("share of right responses to the `validation` problems, 4 each")
    every: Count = setting("steps between two measurements")


class BaseTraining(Schedule):
    """The training of a base model from scratch."""

    tokens: Literal["characters", "words"] | None = setting(
        "characters and a few phrases (the default), or the corpus's own words", None
    )

    stop_at: StopAt | None = setting(
        "accuracy at which training ends, `{accuracy: 0.35, every: 100}`, an error if it is not reached", None
    )

    def check_whole(self) -> None:
        every = self.stop_at.every if self.stop_at else 0
        refuse(every > self.steps, f"is {every}", f"at most {self.steps}, the steps", "stop_at.every")

    @property
    def examples(self) -> int:
        """The number of worked solutions that the training uses up."""
        return self.steps * self.batch_size


class Reinforcement(Settings):
    """The training of one model by the methods of a study: a larger model takes a smaller rate."""

    learning_rate: Positive = setting("learning rate in place of that of `training`; a method's own overrides it")


class FromScratch(Settings):
    """A base model that the study trains from scratch."""

    source: Literal["from_scratch"] = setting("trained by the study")
    architecture: Architecture = setting("shape of the model")
    corpus: Corpus = setting("worked solutions")
    training: BaseTraining = setting("optimizer and length")
    reinforcement: Reinforcement | None = setting("how methods train this model", None)
    bases: Count = setting(
        "number of base models, from which training seeds start in turn; each has seeds one higher than the one before",
        1,
    )

    prompt_form: ClassVar[Literal["base"]] = "base"
    chat_template_kwargs: ClassVar[dict[str, Any]] = {}
    dtype: ClassVar[Literal["float32"]] = "float32"

    @property
    def numbers(self) -> list[int | None]:
        """The numbers of the base models; the only one has none."""
        return [None] if self.bases == 1 else list(range(1, self.bases + 1))

    def numbered(self, number: int | None) -> Self:
        """The settings of a base model alone."""
        later = (number or 1) - 1
        corpus = self.corpus.model_copy(update={"seed": self.corpus.seed + later})
        training = self.training.model_copy(update={"seed": self.training.seed + later})
        return self.model_copy(update={"corpus": corpus, "training": training, "bases": 1})

    def check_whole(self) -> None:
        in_words, tokens = {*WORDED_FAMILIES, "countdown"}, self.training.tokens
        has_words = any(kind.family in in_words for kind in self.corpus.kinds)
        found, accepted = f"is {tokens or 'missing'}", "words, because the corpus has problems in words"
        refuse(has_words and tokens != "words", found, accepted, "training.tokens")

    @property
    def method_training(self) -> dict[str, Any]:
        """The settings of the study's `training` that this model overrides."""
        return {} if self.reinforcement is None else self.reinforcement.to_json()

    def training_settings(self) -> dict[str, Any]:
        """Return the settings that decide the model, its corpus aside."""
        return {"architecture": self.architecture.to_json(), **self.training.to_json()}


class _Prompted(Prompting, Settings):
    """A model that exists, with the prompts that it is given."""

    source: str = setting("where the model is")

    def check_whole(self) -> None:
        super().check_whole()
        require(self, ("prompt_form",))


class Existing(_Prompted, Head):
    """A model that exists: a local directory, or a commit on the Hugging Face Hub."""

    id: Annotated[str, Matching(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", "OWNER/NAME")] | None = setting(
        "OWNER/NAME on the Hugging Face Hub, with a revision", None
    )
    revision: Text | None = setting("commit, branch or tag (default main); the manifest records the commit", None)
    path: Text | None = setting("a local directory instead, relative to the repository", None)
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = setting(
        "precision of passes and sampling; auto: the checkpoint's own, of a model that is not trained", "auto"
    )
    published_as: Text | None = setting("name in the papers, for published numbers; default: the end of id", None)
    training: TrainingChanges = setting("training settings of this model, over the study's and under a method's", {})
    methods: dict[str, dict[str, Any]] | None = setting(
        "changes of methods for this model, such as a coefficient published for one size", None
    )
    cluster: Annotated[dict[str, Any], partial(Machines)] = setting("changes of execution.cluster for this model", {})

    def check_whole(self) -> None:
        super().check_whole()
        by_path, by_id = self.path is not None, self.id is not None
        refuse(by_path == by_id, "has path and id" if by_path else "lacks path or id", "path, or id and revision")

    @property
    def method_training(self) -> dict[str, Any]:
        return self.training

    @property
    def hub_revision(self) -> str:
        return self.revision or "main"


class Served(_Prompted, Service):
    """A model that a server with OpenAI's interface has: vllm serve, SGLang, hosted models. It is evaluated."""

    source: Literal["server"] = setting("behind an address")

    dtype: ClassVar[Literal["auto"]] = "auto"
    method_training: ClassVar[dict[str, Any]] = {}

    def service(self) -> dict[str, Any]:
        return {key: value for key, value in self.identity().items() if key in Service.model_fields}


class HuggingFace(Existing):
    """A base model that exists: a local directory, or a commit on the Hugging Face Hub.

    It is evaluated, or trained by either engine. A study that only evaluates needs no seeds, problems, reference_method
    and training.
    """

    source: Literal["hugging_face"] = setting("an existing checkpoint")


class FineTuning(Schedule):
    """The supervised training of an existing model on worked solutions."""

    prompt: Prompt = setting("text with {problem} in it once")
    micro_batch_tokens: Count = setting("most tokens in one pass, with padding; changes rounding only")


class FineTuned(Existing):
    """An existing model that the study first trains on worked solutions: a warm start (docs/real_model.md).

    The base model of its runs is the fine-tuned one.
    """

    source: Literal["fine_tuned"] = setting("an existing checkpoint, fine-tuned by the study")
    solutions: Text | Annotated[tuple[Text | PublishedSet, ...], Field(min_length=1)] = setting(
        "JSON lines with problem and solution; `problems`: those of the study's training set; or a list of such, and "
        "of published sets"
    )
    fine_tuning: FineTuning = setting("prompt, optimizer and length")

    def check_whole(self) -> None:
        super().check_whole()
        named = [solutions if isinstance(solutions, str) else solutions.source for solutions in self.named_solutions]
        refuse(len(set(named)) < len(named), f"are {', '.join(named)}", "each once", "solutions")

    @property
    def named_solutions(self) -> tuple[str | PublishedSet, ...]:
        """The solutions as a list, even of one."""
        return (self.solutions,) if isinstance(self.solutions, str) else self.solutions


Model = FromScratch | HuggingFace | FineTuned | Served
