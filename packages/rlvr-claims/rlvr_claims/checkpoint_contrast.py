"""The contrast of methods on any Hugging Face checkpoint and any problems, without a study."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Option

from evals.core.errors import InvalidInput, UserError
from evals.core.run_spec import LocalRun


@dataclass(frozen=True)
class Rollouts:
    """The way in which a checkpoint is rolled out and updated in memory; a run by the local engine has the same.

    Attributes:
        prompt: checkpoint: template with {problem} in it.
        prompt_form: checkpoint: plain text, or a user's turn.
        prompts: checkpoint: problems of a rollout batch.
        samples: checkpoint: responses to each.
        updates: checkpoint: optimizer steps per rollout batch.
        max_new_tokens: checkpoint: longest response.
        temperature: of the samples.
        learning_rate: checkpoint: AdamW's.
    """

    prompt: str = "{problem}\n"
    prompt_form: Literal["base", "chat"] = "base"
    prompts: int = 8
    samples: int = 8
    updates: int = 4
    max_new_tokens: int = 256
    temperature: float = 1.0
    learning_rate: float = 1e-6
    micro_batch: Annotated[int, Option("--batch-size", help="checkpoint: rollouts in one pass")] = 8
    seed: int = 1


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
        "prompt_form": given.prompt_form,
        "method_name": reference,
        "method": dict(entry),
        "seed": given.seed,
        "training": training,
    }
    return LocalRun.parse(content, "options")
