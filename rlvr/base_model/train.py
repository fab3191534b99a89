"""Train the base model and save it as an ordinary Hugging Face checkpoint."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from evals.core.config.base_models import Architecture, BaseTraining
from evals.core.errors import InvalidInput
from evals.core.files import fingerprint, read_jsonl, sha256_file, write_parquet
from evals.core.manifest import Manifest, hash_files
from evals.core.progress import Progress
from evals.core.sampling import SamplingParameters
from evals.generation.checkpoint import Checkpoint
from evals.generation.plan import encode_prompts
from evals.generation.sampler import sample
from evals.generation.thinking import case_of
from evals.grading import GradingPool
from rlvr.base_model import VERSION
from rlvr.base_model.tokenizer import build_tokenizer, build_word_tokenizer
from rlvr.runs.job import save_when_due, termination
from rlvr.runs.state import StateStore, load_training_tensors, save_checkpoint, training_tensors

_IGNORED = -100  # cross_entropy's label for positions that carry no loss
_SAMPLES = 4  # responses to each held-out problem


class BaseModelSettings(BaseTraining):
    """Everything that determines the base model, given its corpus of ``steps * batch_size`` rows, each used once."""

    architecture: Architecture

    def parameters(self) -> dict[str, Any]:
        """The parameters of the manifest."""
        values = self.to_json()
        seed, architecture = values.pop("seed"), dict(sorted(values.pop("architecture").items()))
        return {"version": VERSION, "architecture": architecture, **values, "seed": seed}


def train_base_model(
    settings: BaseModelSettings,
    corpus_path: Path,
    directory: Path,
    checkpoint_interval: int,
    wait_seconds: float,
    held_out: Path | None = None,
) -> None:
    """Train on the corpus and leave checkpoint/, metrics.parquet and manifest.json in ``directory``.

    A training that was killed at any moment continues from its last state when it is started again, and ends with the
    same bytes. ``held_out`` are the problems by which it stops, if the settings say an accuracy.

    Raises:
        UserError: the corpus is damaged or too short, the directory cannot be written, or the accuracy is not reached.
        Interrupted: on SIGTERM, with the state saved.
    """
    parameters = settings.parameters()
    inputs = {str(path): sha256_file(path) for path in (corpus_path, *filter(None, [held_out]))}
    files_read = dict(zip(("corpus", "held_out"), inputs.values(), strict=False))
    identity = fingerprint({"parameters": parameters, **files_read})
    stop_at, problems = settings.stop_at, [] if held_out is None else read_jsonl(held_out, ("problem", "answer"))
    store = StateStore(directory / "state", identity)
    with store.single_writer(wait_seconds), termination() as asked_to_stop:
        rows = read_jsonl(corpus_path, required=("problem", "solution"))
        examples = [(row["problem"] + "\n", row["solution"]) for row in rows]
        if settings.tokens == "words":
            tokenizer = build_word_tokenizer(text for example in examples for text in example)
        else:
            tokenizer = build_tokenizer()
        prompts = tokenizer([prompt for prompt, _ in examples])["input_ids"]
        solutions = tokenizer([solution for _, solution in examples])["input_ids"]
        end = tokenizer.eos_token_id
        sequences = [_Sequence([*one, *rest, end], len(one)) for one, rest in zip(prompts, solutions, strict=True)]
        model = initial_model(settings.architecture.to_json(), tokenizer, settings.seed)
        optimizer = torch.optim.AdamW(model.parameters(), weight_decay=settings.weight_decay, betas=(0.9, 0.95))
        metrics: list[dict[str, float]] = []
        first = 0
        if saved := store.latest():
            load_training_tensors(model, optimizer, saved.tensors)
            first, metrics = saved.step, saved.values["metrics"]
        name = f"base model {directory.name}"
        progress = Progress(directory, name, settings.steps, first)

        def save() -> None:
            store.save(len(metrics), training_tensors(model, optimizer), {"metrics": metrics})

        def accuracy() -> float:
            return float(metrics[-1].get("accuracy", 0.0)) if metrics else 0.0

        for step in range(first, settings.steps):
            if stop_at is not None and accuracy() >= stop_at.accuracy:
                break
            started = time.monotonic()
            batch = sequences[step * settings.batch_size : (step + 1) * settings.batch_size]
            for group in optimizer.param_groups:
                group["lr"] = settings.learning_rate_at(step)
            loss = _loss(model, batch)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), settings.gradient_clip)
            optimizer.step()
            metrics.append({"step": step + 1, "loss": loss.item(), "seconds_step": time.monotonic() - started})
            if stop_at is not None and (step + 1) % stop_at.every == 0:
                metrics[-1]["accuracy"] = held_out_accuracy(model, tokenizer, problems, max(map(len, solutions)) + 1)
            progress.report(step + 1, loss=loss.item())
            save_when_due(step + 1, settings.steps, checkpoint_interval, asked_to_stop, save, name)
        if stop_at is not None and accuracy() < stop_at.accuracy:
            message = f"is {stop_at.accuracy}, and was not reached in {settings.steps} steps"
            raise InvalidInput(name, "training.stop_at.accuracy", message, "a lower one, or more training.steps")
        files = [*save_checkpoint(model, tokenizer, directory / "checkpoint"), directory / "metrics.parquet"]
        write_parquet(directory / "metrics.parquet", pd.DataFrame(metrics))
        outputs = hash_files(directory, *files)
        parameter_count = sum(tensor.numel() for tensor in model.parameters())
        details: dict[str, Any] = {"steps": len(metrics), "parameters": parameter_count}
        details |= {} if stop_at is None else {"accuracy": accuracy()}
        Manifest("base_model", inputs, outputs, parameters, identity, details).write(directory / "manifest.json")


class _Sequence(NamedTuple):
    """One worked solution as token ids; the first ``prompt_length`` are the problem and carry no loss."""

    tokens: list[int]
    prompt_length: int


def initial_model(architecture: Mapping[str, Any], tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    """An untrained model; ``architecture`` are arguments of ``Qwen3Config``, and ``seed`` draws the weights."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        **architecture,
    )
    return Qwen3ForCausalLM(config)


def _loss(model: Qwen3ForCausalLM, batch: Sequence[_Sequence]) -> Tensor:
    """Mean cross-entropy over the solution tokens of a batch padded on the right."""
    width = max(len(sequence.tokens) for sequence in batch)
    tokens = torch.zeros(len(batch), width, dtype=torch.long)
    labels = torch.full((len(batch), width), _IGNORED)
    for row, sequence in enumerate(batch):
        ids = torch.tensor(sequence.tokens)
        tokens[row, : len(ids)] = ids
        labels[row, sequence.prompt_length : len(ids)] = ids[sequence.prompt_length :]
    # The padding is on the right, where a causal model's real tokens cannot see it: no attention mask is needed.
    logits = model(tokens[:, :-1], use_cache=False).logits
    return functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=_IGNORED)


def held_out_accuracy(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, problems: Sequence[Mapping[str, str]], longest: int
) -> float:
    """The share of right responses, of at most ``longest`` tokens each, drawn at temperature 1.

    A problem has the same random numbers at every look, so that looks differ by the model alone.
    """
    with TemporaryDirectory() as directory, GradingPool(1) as pool:
        save_checkpoint(model, tokenizer, Path(directory))
        checkpoint = Checkpoint.of(Path(directory))
        prompts = encode_prompts(checkpoint, [problem["problem"] + "\n" for problem in problems], "base")
        identities = [[f"base model/{row}/{number}" for number in range(_SAMPLES)] for row in range(len(problems))]
        parameters = SamplingParameters(max_new_tokens=longest, temperature=1.0)
        responses = sample(checkpoint.decoder("cpu"), prompts, identities, parameters, checkpoint.end_tokens)
        cases = [
            case_of(checkpoint.tokenizer, prompt, response.tokens, response.finished, problem["answer"])
            for problem, prompt, of_problem in zip(problems, prompts, responses, strict=True)
            for response in of_problem
        ]
        verdicts = pool.grade(cases)
    return sum(verdict.correct for verdict in verdicts) / len(verdicts)
