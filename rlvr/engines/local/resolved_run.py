"""A resolved run: everything that determines the outcome of one training, as one JSON file."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evals.core.files import read_json
from rlvr.engines.exact_keys import exact_keys


@dataclass(frozen=True)
class TrainingSettings:
    """How long, on how much, and with which optimizer; the same for every method of a study.

    Attributes:
        steps: rollout steps.
        prompts_per_step: prompts in a rollout batch.
        samples_per_prompt: responses to each prompt, the group.
        updates_per_step: optimizer steps per rollout batch, each on a mini-batch of its own.
        micro_batch_size: rollouts in one forward pass of the trainer.
        max_new_tokens: longest response in tokens.
        temperature: of the rollouts.
        sampling_batch_size: rollouts decoded at a time.
        learning_rate: AdamW's, after warm-up.
        warmup_updates: optimizer steps over which the learning rate rises linearly to its value.
        weight_decay: AdamW's.
        gradient_clip: largest norm of the gradient.
    """

    steps: int
    prompts_per_step: int
    samples_per_prompt: int
    updates_per_step: int
    micro_batch_size: int
    max_new_tokens: int
    temperature: float
    sampling_batch_size: int
    learning_rate: float
    warmup_updates: int
    weight_decay: float
    gradient_clip: float

    @property
    def rollouts_per_step(self) -> int:
        """Rollouts in a rollout batch."""
        return self.prompts_per_step * self.samples_per_prompt


@dataclass(frozen=True)
class ResolvedRun:
    """One training: which model, which method, which problems, which seed.

    Attributes:
        run: readable id, also the name of the run's directory.
        model: name of the base model.
        base: directory of the base model's artifact.
        problems: directory of the training problems' artifact.
        prompt: template with ``{problem}`` in it.
        method_name: the method's name in the study.
        method: the resolved catalogue entry.
        seed: of prompt order, rollouts and mini-batches.
        training: settings shared by all methods.
    """

    run: str
    model: str
    base: Path
    problems: Path
    prompt: str
    method_name: str
    method: Mapping[str, Any]
    seed: int
    training: TrainingSettings

    @classmethod
    def read(cls, path: Path) -> ResolvedRun:
        """Read ``run.json``.

        Raises:
            UserError: a key is unknown or missing.
        """
        content = read_json(path)
        values = exact_keys(cls, content, str(path))
        training = TrainingSettings(**exact_keys(TrainingSettings, values["training"], f"{path}: training"))
        return cls(
            **{**values, "base": Path(values["base"]), "problems": Path(values["problems"]), "training": training}
        )

    def parameters(self) -> dict[str, Any]:
        """What identifies the run, for its fingerprint and manifest; paths do not, the bytes behind them do."""
        values = dataclasses.asdict(self)
        del values["base"], values["problems"]
        return values
