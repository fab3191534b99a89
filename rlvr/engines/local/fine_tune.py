"""Supervised fine-tuning of an existing model on worked solutions: a warm start for models that solve too little.

A method learns nothing from prompts that no rollout answers correctly, and a small pretrained model leaves most of them
so. The result lies where a base model does, and serves as one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from pydantic import Field

from evals.core.config.base_models import FINE_TUNED, FineTuning
from evals.core.errors import InvalidInput, UserError
from evals.core.files import fingerprint, read_jsonl, sha256_file, write_parquet
from evals.core.manifest import Manifest, hash_files, verify_outputs
from evals.core.progress import Progress
from evals.core.run_spec import Head
from evals.core.training_settings import tokens_of_pass
from evals.generation.chat import taught_end
from evals.generation.checkpoint import Checkpoint
from evals.generation.devices import claim_one
from evals.generation.plan import encode_prompts
from evals.problems.problem_set import render_prompt
from rlvr.engines.local import VERSION
from rlvr.engines.local.adamw import AdamW
from rlvr.engines.local.memory import check_memory, make_gradients
from rlvr.engines.local.policy import Policy, TokenBatch, load_policy, same_bytes, token_log_probs
from rlvr.engines.local.rollout import PromptOrder
from rlvr.runs.job import save_when_due, termination
from rlvr.runs.state import StateStore, load_training_tensors, save_trained, training_tensors


class FineTuningSettings(FineTuning, Head):
    """Everything that determines the fine-tuned model, given the bytes of the model and of the solutions."""

    dtype: Literal["float32", "bfloat16", "float16"]
    prompt_form: Literal["base", "chat"]
    chat_template_kwargs: dict[str, Any] = Field(default={})

    def parameters(self) -> dict[str, Any]:
        """The parameters of the manifest."""
        return {"source": FINE_TUNED, "version": VERSION, **self.identity()}


def fine_tune(
    settings: FineTuningSettings,
    base: Path,
    solutions: Sequence[Path],
    directory: Path,
    device: str,
    checkpoint_interval: int,
    wait_seconds: float,
) -> None:
    """Train ``base`` on files of solutions and leave checkpoint/, metrics.parquet and manifest.json in ``directory``.

    The loss is the mean negative log-probability of a batch's solution tokens, end token included. A job that was
    killed continues, and ends with the same bytes.

    Raises:
        Interrupted: on SIGTERM, with the state saved.
        UserError: a file is missing or damaged, or a solution too long.
    """
    outputs, parameters = verify_outputs(base / "manifest.json", "base_model").outputs, settings.parameters()
    inputs = {str(base / name): digest for name, digest in outputs.items()}
    inputs |= {str(path): sha256_file(path) for path in solutions}
    identity = fingerprint({"parameters": parameters, "inputs": list(inputs.values())})
    store = StateStore(directory / "state", identity)
    with store.single_writer(wait_seconds), termination() as asked_to_stop:
        claim_one(device)
        checkpoint = Checkpoint(base / "checkpoint")
        examples = [row for path in solutions for row in _examples_of(checkpoint, path, settings)]
        order = PromptOrder(examples, settings.seed)
        model = load_policy(checkpoint, device, settings.dtype, head_dtype=settings.head_dtype)
        optimizer = AdamW(model.parameters(), settings.weight_decay)
        metrics: list[dict[str, float]] = []
        first = 0
        if state := store.latest():
            load_training_tensors(model, optimizer, state.tensors)
            first, metrics = state.step, state.values["metrics"]
            state = None  # its tensors need no longer be held
        else:
            steps = range(settings.steps)
            parts = (part for step in steps for part in _passes(order, step, settings, model.padded))
            largest = max(parts, key=lambda part: tokens_of_pass(part.lengths, model.padded))
            check_memory(directory.name, checkpoint, device, {"warm start": partial(make_gradients, model, largest)})
        name = f"warm start {directory.name}"
        progress = Progress(directory, name, settings.steps, first)

        def save() -> None:
            is_last = len(metrics) == settings.steps
            tensors = training_tensors(model, None if is_last else optimizer)
            store.save(len(metrics), tensors, {"metrics": metrics}, is_last)

        for step in range(first, settings.steps):
            started = time.monotonic()
            batch = _passes(order, step, settings, model.padded)
            loss, scale = optimizer.add_gradients(partial(add_gradients, model, batch), model.dtype)
            norm = optimizer.clip(settings.gradient_clip, f"{directory.name}: step {step + 1}")
            optimizer.step(settings.learning_rate_at(step))
            seconds = time.monotonic() - started
            metrics.append({"step": step + 1, "loss": loss, "grad_norm": norm, **scale, "seconds_step": seconds})
            progress.report(step + 1, loss=loss)
            save_when_due(step + 1, settings.steps, checkpoint_interval, asked_to_stop, save, name)
        written = directory / "metrics.parquet"
        files = [*save_trained(model.weights(), base / "checkpoint", directory / "checkpoint"), written]
        write_parquet(written, pd.DataFrame(metrics))
        details = {"steps": settings.steps, "solutions": len(examples), "model_computed_by": model.backend}
        details["same_bytes"] = same_bytes(device, settings.dtype, model.backend)
        made = hash_files(directory, *files)
        Manifest("base_model", inputs, made, parameters, identity, details).write(directory / "manifest.json")
        store.link_to_checkpoint()


def add_gradients(model: Policy, parts: Sequence[TokenBatch], scale: float) -> float:
    """Add the gradients of ``scale`` times the mean over solution tokens; returns the mean."""
    loss, count = 0.0, sum(len(part.response_tokens) for part in parts)
    for part in parts:
        of_part = -token_log_probs(model, part, 1.0).sum() / count
        (of_part * scale).backward()
        loss += float(of_part.detach())
    return loss


def _passes(order: PromptOrder, step: int, settings: FineTuningSettings, padded: bool) -> list[TokenBatch]:
    """The passes over the examples of a step."""
    examples = order.take(step * settings.batch_size, settings.batch_size)
    batch = TokenBatch([example["prompt"] for example in examples], [example["solution"] for example in examples])
    return [batch.select(part) for part in batch.passes(settings.batch_size, settings.micro_batch_tokens, padded)]


def _examples_of(checkpoint: Checkpoint, solutions: Path, settings: FineTuningSettings) -> list[dict[str, Any]]:
    """Token ids of every problem's ``prompt`` and of its ``solution`` with the end token."""
    rows = read_jsonl(solutions, required=("problem", "solution"))
    if not rows:
        raise UserError(f"{solutions}: holds no solutions")
    texts = [render_prompt(settings.prompt, row["problem"]) for row in rows]
    told = settings.chat_template_kwargs
    prompts = encode_prompts(checkpoint, texts, settings.prompt_form, template=told)
    answers = checkpoint.tokenizer.encode_batch([row["solution"] for row in rows], add_special_tokens=False)
    end, context = taught_end(checkpoint, settings.prompt_form, told), checkpoint.context_length(None)
    print(f"each solution ends with {checkpoint.tokenizer.id_to_token(end)} ({end})", flush=True)
    examples = []
    for number, (prompt, answer) in enumerate(zip(prompts, answers, strict=True), start=1):
        if (length := len(prompt) + len(answer.ids) + 1) > context:
            message = f"has {length} tokens with its prompt and end token"
            raise InvalidInput(f"{solutions}: line {number}", "", message, f"at most {context}, the model's context")
        examples.append({"prompt": list(prompt), "solution": [*answer.ids, end]})
    return examples
