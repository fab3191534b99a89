"""The training settings of a run, as either engine has them."""

import math
from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from evals.core.errors import NotAccepted
from evals.core.numbers import Count, Index, NotNegative, Positive, Share
from evals.core.record import Record

_ROUNDING = 1e-9
"""A difference of mean rewards that rounding may make."""
_SCORED = 4
"""Tokens in a pass without gradients for each of one with them; no model of more layers then takes more memory."""


def tokens_of_pass(lengths: Sequence[int], padded: bool) -> int:
    """Count the tokens in a pass over sequences of these lengths; if ``padded``, each is as long as the longest."""
    return len(lengths) * max(lengths) if padded else sum(lengths)


def cut_into_passes(lengths: Sequence[int], most: int, most_tokens: int | None, padded: bool) -> list[range]:
    """Cut sequences of these lengths into parts of at most ``most``, and ``most_tokens`` if it has several.

    In a ``padded`` pass padding counts too.
    """
    parts, start = [], 0
    for place in range(1, len(lengths)):
        is_full = most_tokens is not None and tokens_of_pass(lengths[start : place + 1], padded) > most_tokens
        if is_full or place - start == most:
            parts.append(range(start, place))
            start = place
    return [*parts, range(start, len(lengths))]


class LearningRateDecay(Record):
    """A linear fall of the learning rate to 0, in rollout steps; both engines keep one rate within a step.

    It is given in steps and not as a fraction of the training, so that a training's beginning does not depend on where
    the training ends.

    Attributes:
        from_step: number of steps after which the fall begins; the step that follows still has the full rate.
        to_step: number of steps after which the rate is 0.
    """

    from_step: Index
    to_step: Count

    @model_validator(mode="after")
    def _check_length(self) -> Self:
        if self.to_step < self.from_step + 2:
            accepted = f"at least 2 more than from_step, {self.from_step}, so that a step has a lower rate"
            raise NotAccepted(f"is {self.to_step}", accepted, "to_step")
        return self

    def factor(self, step: int) -> float:
        """The part of the learning rate that is left in the step that follows ``step`` others."""
        return min(1.0, max(0.0, (self.to_step - step) / (self.to_step - self.from_step)))


class Lora(Record):
    """Low-rank adapters (LoRA, arXiv 2106.09685): a weight is W + alpha / rank B A, and B and A alone are trained.

    There is no dropout: the trainer's log-probabilities would not be the sampler's.
    """

    rank: Count = Field(description="rows of A and columns of B")
    alpha: Positive = Field(description="the scale of what is added, times the rank")
    target_modules: Literal["all-linear"] | Annotated[tuple[str, ...], Field(min_length=1)] = Field(
        default="all-linear",
        description="the adapted layers by the ends of their names, as `[q_proj, v_proj]`; `all-linear`, the default: "
        "every linear layer but the head",
    )


class EarlyStop(Record):
    """The end of a training whose reward no longer rises.

    The mean reward of the last ``window`` rollout steps is compared with its highest value so far. The earliest step to
    end with is ``window + patience``.
    """

    window: Count = Field(description="rollout steps whose rewards are averaged")
    patience: Count = Field(description="steps that this average may stay without a new highest value")

    def last_step(self, rewards: Sequence[float]) -> int | None:
        """The step with which a training ends that had these mean rewards, one a step; None if it goes on."""
        highest, since = -math.inf, self.window
        for step in range(self.window, len(rewards) + 1):
            average = sum(rewards[step - self.window : step]) / self.window
            if average > highest + _ROUNDING:
                highest, since = average, step
            elif step - since >= self.patience:
                return step
        return None


class TrainingSettings(Record):
    """The length, sizes and optimizer of a training (:class:`evals.core.config.methods.TrainingChanges` says more).

    Verl raises the learning rate once per rollout step, the local engine with every one of ``warmup_updates``. Without
    ``learning_rate_decay`` the rate stays constant then. Rollouts are drawn from the smallest set of tokens whose
    probability reaches ``top_p``, but log-probabilities are those of the whole distribution, as in the code of
    RLVR-Directions (arXiv 2603.22117).
    """

    steps: Count
    prompts_per_step: Count
    samples_per_prompt: Count
    updates_per_step: Count
    max_new_tokens: Count
    temperature: Positive
    top_p: Share = Field(default=1.0, exclude_if=lambda top_p: top_p == 1)
    learning_rate: Positive
    warmup_updates: Index
    learning_rate_decay: LearningRateDecay | None = Field(default=None, exclude_if=lambda decay: decay is None)
    weight_decay: NotNegative
    gradient_clip: Positive
    lora: Lora | None = Field(default=None, exclude_if=lambda lora: lora is None)
    early_stop: EarlyStop | None = Field(default=None, exclude_if=lambda stop: stop is None)

    @model_validator(mode="after")
    def _check_decay(self) -> Self:
        if (decay := self.learning_rate_decay) is None:
            return self
        if self.steps > decay.to_step:
            accepted = f"at most learning_rate_decay.to_step, {decay.to_step}, after which the learning rate is 0"
            raise NotAccepted(f"is {self.steps}", accepted, "steps")
        if self.warmup_updates > (most := decay.from_step * self.updates_per_step):
            accepted = f"at most {most}, the updates of the {decay.from_step} steps before the learning rate falls"
            raise NotAccepted(f"is {self.warmup_updates}", accepted, "warmup_updates")
        return self

    def decay_factor(self, step: int) -> float:
        """The part of the learning rate that its decay leaves in the rollout step that follows ``step`` others."""
        return 1.0 if self.learning_rate_decay is None else self.learning_rate_decay.factor(step)

    def last_step(self, rewards: Sequence[float]) -> int:
        """The step with which the training ends, as far as the mean rewards of its steps so far tell."""
        stopped = None if self.early_stop is None else self.early_stop.last_step(rewards)
        return self.steps if stopped is None else stopped

    @property
    def least_steps(self) -> int:
        """The steps that the training has in any case."""
        stop = self.early_stop
        return self.steps if stop is None else min(self.steps, stop.window + stop.patience)

    def stopped_after(self, step: int) -> str:
        """The line that says when a training stopped early, and why."""
        assert self.early_stop is not None
        rule = f"no new highest mean reward of {self.early_stop.window} steps for {self.early_stop.patience} steps"
        return f"stopped after step {step} of {self.steps}: {rule} (training.early_stop)"

    @property
    def rollouts_per_step(self) -> int:
        """Rollouts in a rollout batch."""
        return self.prompts_per_step * self.samples_per_prompt

    @property
    def rollouts_per_update(self) -> int:
        """Rollouts in an optimizer mini-batch, where all have one size."""
        return self.rollouts_per_step // self.updates_per_step


class LocalTraining(TrainingSettings):
    """The training settings of the local engine."""

    micro_batch_size: Count
    micro_batch_tokens: Count | None = Field(default=None, exclude_if=lambda tokens: tokens is None)
    share_prompts: bool = Field(default=False, exclude_if=lambda share: not share)
    sampling_backend: Literal["local", "vllm"] = Field(default="local", exclude_if=lambda backend: backend == "local")
    sampling_batch_size: Count

    @property
    def scored_tokens(self) -> int | None:
        """The most tokens of several rollouts in a pass without gradients, which holds one layer's activations only."""
        return None if self.micro_batch_tokens is None else _SCORED * self.micro_batch_tokens

    def learning_rate_of(self, step: int, update: int) -> float:
        """The learning rate of the update that follows ``update`` others, after ``step`` whole rollout steps."""
        warmup = min(1.0, (update + 1) / max(1, self.warmup_updates))
        return self.learning_rate * warmup * self.decay_factor(step)


class VerlTraining(TrainingSettings):
    """The training settings of verl."""

    max_prompt_tokens: Count

    @model_validator(mode="after")
    def _check_updates(self) -> Self:
        updates = self.updates_per_step
        if self.prompts_per_step % updates:  # verl cuts a batch into mini-batches by whole prompts
            accepted = f"accepted by verl: a divisor of prompts_per_step, {self.prompts_per_step}"
            raise NotAccepted(f"is {updates}; {accepted}", key="updates_per_step")
        if self.warmup_updates % updates:
            accepted = "accepted by verl, whose learning rate changes between rollout steps: a multiple of"
            raise NotAccepted(f"is {self.warmup_updates}; {accepted} updates_per_step, {updates}", key="warmup_updates")
        return self
