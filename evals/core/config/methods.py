"""Training settings, and the changes that a study makes of a method."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from evals.core.config.settings import MethodName, Omittable, Settings, optional
from evals.core.numbers import BOUNDED, Count, Index, NotNegative, Positive, Share, ShareOrZero
from evals.core.training_settings import EarlyStop, Lora


class TrainingChanges(Settings):
    """Training settings. A method or a model may change any of them for itself."""

    steps: Omittable[Count] = optional("rollout steps")
    prompts_per_step: Omittable[Count] = optional("prompts in a rollout batch")
    samples_per_prompt: Omittable[Annotated[int, Field(ge=2), BOUNDED]] = optional(
        "responses to each prompt; a rollout batch is the product of both"
    )
    updates_per_step: Omittable[Count] = optional(
        "optimizer steps per rollout batch; with one, every clip and gate has the same gradient"
    )
    micro_batch_size: Omittable[Count] = optional(
        "rollouts in one forward pass of the trainer; changes rounding only; engine local"
    )
    micro_batch_tokens: Omittable[Count] = optional(
        "most tokens in such a pass, with prompts and padding; a longer rollout has a pass of its own; engine local"
    )
    share_prompts: Omittable[bool] = optional(
        "whether a pass computes a prompt once for all its rollouts, where the batched decoder computes the model; "
        "default false; changes rounding only; engine local"
    )
    lora: Omittable[Lora] = optional(
        "low-rank adapters, which are trained in place of the model's weights (docs/real_model.md)"
    )
    early_stop: Omittable[EarlyStop] = optional(
        "end of a training whose mean reward no longer rises (docs/evaluation.md); without it every training has all "
        "of its steps"
    )
    max_prompt_tokens: Omittable[Count] = optional("longer prompts are left out; engine verl")
    max_new_tokens: Omittable[Count] = optional("longest response in tokens")
    temperature: Omittable[Positive] = optional("of the rollouts")
    top_p: Omittable[Share] = optional(
        "share of the probability that rollouts are drawn from, the likeliest tokens first; 1, as without the key: all"
    )
    sampling_backend: Omittable[Literal["local", "vllm"]] = optional(
        "what draws rollouts: `local`, the trainer's own model; `vllm`, in the trainer's process, with the weights "
        "handed over in memory before each rollout batch (docs/real_model.md); default local; engine local"
    )
    sampling_batch_size: Omittable[Count] = optional("rollouts decoded at a time; engine local")
    learning_rate: Omittable[Positive] = optional("AdamW's, after warm-up")
    warmup_updates: Omittable[Index] = optional("optimizer steps over which the learning rate rises linearly")
    learning_rate_decay_from: Omittable[ShareOrZero] = optional(
        "fraction of the rollout steps after which the learning rate falls linearly, step by step, to 0; 1, as without "
        "the key: it stays constant"
    )
    weight_decay: Omittable[NotNegative] = optional("AdamW's")
    gradient_clip: Omittable[Positive] = optional("largest norm of the gradient")


class MethodChanges(Settings):
    """The changes of a method's catalogue entry; ``{}`` takes it as it is.

    Every other key is one of the catalogue's (config/methods.yaml).
    """

    model_config = ConfigDict(extra="allow")

    training: Omittable[TrainingChanges] = optional("training settings of this method alone")

    @property
    def of_entry(self) -> dict[str, Any]:
        """The changes of the catalogue's entry, which knows nothing of training settings."""
        return dict(self.model_extra or {})

    @property
    def of_training(self) -> dict[str, Any]:
        """The changes of the training settings."""
        return self.training.to_json() if self.training else {}


Methods = dict[MethodName, MethodChanges]
