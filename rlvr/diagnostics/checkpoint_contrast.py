"""The contrast of methods on any Hugging Face checkpoint and any problems, without a study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import torch
from transformers import PreTrainedModel

from evals.core.errors import InvalidInput, UserError
from evals.core.run_spec import LocalRun
from evals.generation.backend import Request, Response, in_order
from evals.generation.checkpoint import Checkpoint
from evals.generation.plan import encode_prompts
from evals.generation.sampler import Draws
from evals.generation.transformers_backend import generate_in_step, load_model
from rlvr.diagnostics.transformers_policy import TransformersPolicy
from rlvr.engines.local.learner import HiddenStateBudget, Learner
from rlvr.engines.local.rollout import RolloutSampler


@dataclass(frozen=True)
class Rollouts:
    """The way in which a checkpoint is rolled out and updated in memory; a training by the local engine has the same.

    Attributes:
        prompt: template with ``{problem}`` in it once.
        updates: optimizer steps per rollout batch; gradients are compared before the last.
        micro_batch: rollouts in one pass of the model.
    """

    prompt: str
    prompt_form: Literal["base", "chat"]
    prompts: int
    samples: int
    updates: int
    max_new_tokens: int
    temperature: float
    learning_rate: float
    micro_batch: int
    seed: int


class CheckpointLearner(Learner):
    """A learner whose policy is any model of transformers, which also samples."""

    def __init__(self, run: LocalRun, device: str, budget: HiddenStateBudget, prompt_form: str) -> None:
        checkpoint = Checkpoint.of(run.base / "checkpoint")
        if not list(checkpoint.directory.glob("*.safetensors")):
            raise UserError(f"{checkpoint.directory}: has no *.safetensors; other formats of weights are not read")
        super().__init__(run, device, budget)
        self._sampler = _ModelSampler(**vars(self._sampler), checkpoint=checkpoint, prompt_form=prompt_form)

    def _load(self, checkpoint: Checkpoint, device: str) -> TransformersPolicy:
        return TransformersPolicy(cast("PreTrainedModel", load_model(checkpoint.directory, "float32", device)))


@dataclass(frozen=True)
class _ModelSampler(RolloutSampler):
    checkpoint: Checkpoint
    prompt_form: str

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [list(ids) for ids in encode_prompts(self.checkpoint, texts, self.prompt_form)]

    def _answer(
        self, decoder: Any, prompts: Sequence[list[int]], identities: Sequence[Sequence[str]], draws: Draws
    ) -> list[list[Response]]:
        longest, size = self.parameters.max_new_tokens, self.parameters.batch_size
        requests = [
            Request(tuple(prompt), name, longest)
            for prompt, names in zip(prompts, identities, strict=True)
            for name in names
        ]
        ends, responses = torch.tensor(self.checkpoint.end_tokens, device=decoder.device), []
        for start in range(0, len(requests), size):
            batch = requests[start : start + size]
            draw = draws([each.identity for each in batch], longest, decoder.device)
            responses += in_order(generate_in_step([decoder], batch, ends, draw))
        answers = iter(responses)
        return [[next(answers) for _ in names] for names in identities]


def checkpoint_run(
    model: Path, problems: Path, reference: str, entry: Mapping[str, Any], steps: int, given: Rollouts, scratch: Path
) -> LocalRun:
    """The run that trains the checkpoint ``model`` by the method ``reference`` for ``steps`` steps, in memory.

    ``problems`` is a JSON lines file with id, problem and answer. ``scratch`` is an empty directory for links to both.
    """
    if not problems.is_file():
        raise UserError(f"--problems: {problems}: no such file")
    if given.updates < 1 or (given.prompts * given.samples) % given.updates:
        accepted = f"a divisor of --prompts times --samples, {given.prompts * given.samples}"
        raise InvalidInput("--updates", "", f"is {given.updates}", accepted)
    (scratch / "checkpoint").symlink_to(model.resolve(), target_is_directory=True)
    (scratch / "problems.jsonl").symlink_to(problems.resolve())
    training = {
        "steps": steps,
        "prompts_per_step": given.prompts,
        "samples_per_prompt": given.samples,
        "updates_per_step": given.updates,
        "micro_batch_size": given.micro_batch,
        "sampling_batch_size": given.micro_batch,
        "max_new_tokens": given.max_new_tokens,
        "temperature": given.temperature,
        "learning_rate": given.learning_rate,
        "warmup_updates": 0,
        "weight_decay": 0.0,
        "gradient_clip": 1.0,
    }
    content = {
        "run": model.name,
        "model": model.name,
        "base": str(scratch),
        "problems": str(scratch),
        "prompt": given.prompt,
        "method_name": reference,
        "method": dict(entry),
        "seed": given.seed,
        "training": training,
    }
    return LocalRun.parse(content, "options")
