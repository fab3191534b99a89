"""The training settings of a run, as either engine has them."""

import math
from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import Field

from evals.core.errors import refuse
from evals.core.numbers import Count, Index, NotNegative, Positive, Several, Share, ShareOrZero
from evals.core.record import Record, setting

_Decay = Annotated[float, Field(ge=0, lt=1)]
_ROUNDING = 1e-9  # A difference of mean rewards that rounding may make
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
    for end in range(1, len(lengths)):
        is_full = most_tokens is not None and tokens_of_pass(lengths[start : end + 1], padded) > most_tokens
        if is_full or end - start == most:
            parts.append(range(start, end))
            start = end
    return [*parts, range(start, len(lengths))]


class Lora(Record):
    """Low-rank adapters (LoRA, arXiv 2106.09685): a weight is W + alpha / rank B A, and B and A alone are trained.

    There is no dropout: the trainer's log-probabilities would not be the sampler's.
    """

    rank: Count = setting("rows of A and columns of B")
    alpha: Positive = setting("the scale of what is added, times the rank")
    target_modules: Literal["all-linear"] | Annotated[tuple[str, ...], Field(min_length=1)] = setting(
        "adapted layers by the ends of their names, as `[q_proj, v_proj]`; `all-linear`: every linear layer but the "
        "head",
        "all-linear",
    )


class EarlyStop(Record):
    """The end of a run whose reward no longer rises.

    The mean reward of the last ``window`` rollout steps is compared with its highest value so far. The earliest step to
    end with is ``window + patience``.
    """

    window: Count = setting("rollout steps whose rewards are averaged")
    patience: Count = setting("steps that this average may have no new highest value")

    def last_step(self, rewards: Sequence[float]) -> int | None:
        """The step with which a run ends that had these mean rewards, one a step; None if it goes on."""
        highest, since = -math.inf, self.window
        for step in range(self.window, len(rewards) + 1):
            average = sum(rewards[step - self.window : step]) / self.window
            if average > highest + _ROUNDING:
                highest, since = average, step
            elif step - since >= self.patience:
                return step
        return None


Rounding = Literal["bfloat16", "int8", "int4", "int3"]  # A type that a sampler's weights are rounded to


class SamplerDose(Record):
    """A sampler that differs from the trainer by a known dose, as inference engines and older policies do unasked.

    Without one, the local engine's sampler and trainer are the same bit by bit in float32.
    """

    weights: Rounding | None = setting(
        "what the sampler's weights are rounded to; integers share a scale in each row", None
    )
    stale: Index = setting("rollout steps that the sampler's policy is behind", 0)
    top_p: Share = setting("share of the probability that is drawn from", 1.0)
    noise: NotNegative = setting("standard deviation of normal noise on every logit", 0.0)


class TrainingSettings(Record):
    """Training settings. A method or a model may change any of them for itself.

    Rollouts are drawn from the smallest set of tokens whose probability reaches ``top_p``, but log-probabilities are
    those of the whole distribution, as in the code of RLVR-Directions (arXiv 2603.22117).
    """

    steps: Count = setting("rollout steps")
    prompts_per_step: Count = setting("prompts in a rollout batch")
    samples_per_prompt: Several = setting("responses to each prompt")
    updates_per_step: Count = setting("optimizer steps per rollout batch")
    max_new_tokens: Count = setting("longest response in tokens")
    temperature: Positive = setting("temperature of the rollouts")
    top_p: Share = setting("share of the probability that rollouts are drawn from; 1: all", 1.0)
    learning_rate: Positive = setting("learning rate of AdamW, after warm-up")
    warmup_updates: Index = setting("optimizer steps of linear warm-up")
    learning_rate_decay_from: ShareOrZero = setting(
        "fraction of the rollout steps after which the learning rate falls linearly to 0; 1: constant", 1.0
    )
    planned_steps: Count | None = setting(
        "rollout steps of the run whose beginning this one is, for the learning rate; default: `steps`", None
    )
    weight_decay: NotNegative = setting("weight decay of AdamW")
    adam_beta1: _Decay = setting("AdamW's decay of the mean gradient", 0.9)
    adam_beta2: _Decay = setting("AdamW's decay of the mean square", 0.999)
    adam_epsilon: Positive = setting("what AdamW adds to the root of the square", 1e-8)
    gradient_clip: Positive = setting("largest norm of the gradient")
    lora: Lora | None = setting("low-rank adapters in place of all weights (docs/real_model.md)", None)
    early_stop: EarlyStop | None = setting(
        "end of a run whose mean reward no longer rises; tables/main.md names such runs", None
    )
    unjudged: Literal["wrong", "left_out"] = setting(
        "worth of a response that could not be judged: `wrong`, or `left_out` of every mean (docs/grading.md)", "wrong"
    )
    unjudged_limit: ShareOrZero = setting(
        "share of a run's responses, beyond 10, on which the grader may fail before the run stops; 1: never", 0.1
    )

    def check_whole(self) -> None:
        updates, prompts, planned = self.updates_per_step, self.prompts_per_step, self.planned_steps
        accepted = f"at most prompts_per_step, {prompts}, so that every update has a prompt of its own"
        refuse(updates > prompts, f"is {updates}", accepted, "updates_per_step")
        accepted = f"a divisor of prompts_per_step * samples_per_prompt, {self.rollouts_per_step}"
        refuse(self.rollouts_per_step % updates, f"is {updates}", accepted, "updates_per_step")
        is_longer = planned is not None and self.steps > planned
        refuse(is_longer, f"is {planned}", f"at least steps, {self.steps}", "planned_steps")
        if self.falling_steps is not None:
            first, last = self.falling_steps
            found = f"is {self.learning_rate_decay_from}, which lowers the rate of none of {last} steps"
            refuse(last < first + 2, found, "less, or 1 for a constant rate", "learning_rate_decay_from")
            warmup, most = self.warmup_updates, first * updates
            accepted = f"at most {most}, the updates of the {first} steps before the learning rate falls"
            refuse(warmup > most, f"is {warmup}", accepted, "warmup_updates")

    @property
    def falling_steps(self) -> tuple[int, int] | None:
        """The numbers of steps after which the learning rate begins to fall, and is 0; None if it stays constant."""
        if self.learning_rate_decay_from == 1:
            return None
        planned = self.planned_steps or self.steps
        return round(self.learning_rate_decay_from * planned), planned

    def after(self, steps: int) -> Self:
        """The training that ends after ``steps`` steps, with the learning rate of this one in each of them."""
        planned = None if self.falling_steps is None else self.falling_steps[1]
        return self.model_copy(update={"steps": steps, "planned_steps": None if steps == planned else planned})

    def decay_factor(self, step: int) -> float:
        """The part of the learning rate that its decay leaves in the rollout step that follows ``step`` others."""
        if self.falling_steps is None:
            return 1.0
        first, last = self.falling_steps
        return min(1.0, max(0.0, (last - step) / (last - first)))

    def learning_rate_of(self, step: int, update: int) -> float:
        """The learning rate of the update that follows ``update`` others, after ``step`` whole rollout steps."""
        warmup = min(1.0, (update + 1) / max(1, self.warmup_updates))
        return self.learning_rate * warmup * self.decay_factor(step)

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
        """The line that says when a run stopped early, and why."""
        assert self.early_stop is not None
        rule = f"no new highest mean reward of {self.early_stop.window} steps for {self.early_stop.patience} steps"
        return f"stopped after step {step} of {self.steps}: {rule} (training.early_stop)"

    @property
    def rollouts_per_step(self) -> int:
        return self.prompts_per_step * self.samples_per_prompt

    @property
    def rollouts_per_update(self) -> int:
        """Rollouts in an optimizer mini-batch, where all have one size."""
        return self.rollouts_per_step // self.updates_per_step


class LocalTraining(TrainingSettings):
    """The training settings of the local engine."""

    micro_batch_size: Count = setting(
        "rollouts in one forward pass of the trainer; changes rounding only; engine local"
    )
    micro_batch_tokens: Count | None = setting(
        "most tokens in such a pass, with prompts and padding; a longer rollout has its own; engine local", None
    )
    share_prompts: bool = setting(
        "whether a pass computes a prompt once for its rollouts; changes rounding only; engine local", False
    )
    sampling_backend: Literal["local", "vllm"] = setting(
        "what draws rollouts: the trainer's model, or vLLM (docs/real_model.md); engine local", "local"
    )
    sampling_batch_size: Count = setting("rollouts decoded at a time; engine local")
    sampler: SamplerDose | None = setting(
        "a dose of difference between sampler and trainer (docs/methods/corrections.md); engine local", None
    )

    @property
    def sampler_dose(self) -> SamplerDose | None:
        """The difference between sampler and trainer; None if there is none."""
        return None if self.sampler == SamplerDose() else self.sampler

    def check_whole(self) -> None:
        super().check_whole()
        is_other = self.sampling_backend != "local" or self.lora is not None
        refuse(is_other and self.sampler_dose, "is given", "none with lora or sampling_backend vllm", "sampler")

    @property
    def scored_tokens(self) -> int | None:
        """The most tokens of several rollouts in a pass without gradients, which holds one layer's activations only."""
        return None if self.micro_batch_tokens is None else _SCORED * self.micro_batch_tokens


class VerlTraining(TrainingSettings):
    """The training settings of verl."""

    max_prompt_tokens: Count = setting("longer prompts are left out; engine verl")

    def check_whole(self) -> None:
        super().check_whole()
        updates, prompts = self.updates_per_step, self.prompts_per_step
        found = f"is {updates}; accepted by verl: a divisor of prompts_per_step, {prompts}"
        refuse(prompts % updates, found, key="updates_per_step")  # verl cuts a batch by whole prompts
