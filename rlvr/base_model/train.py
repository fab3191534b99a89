"""Train the base model and save it as an ordinary Hugging Face checkpoint, with a tokenizer of its own.

Tokens are characters for problems in formulas, and words for worded problems.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from evals.core.config.base_models import Architecture, BaseTraining
from evals.core.errors import InvalidInput
from evals.core.files import fingerprint, read_jsonl, sha256_file, sha256_lines, write_parquet
from evals.core.manifest import Manifest, hash_files
from evals.core.progress import Progress
from evals.core.sampling import SamplingParameters
from evals.generation.architecture import DecoderConfig
from evals.generation.checkpoint import Checkpoint
from evals.generation.decoder_model import DecoderModel
from evals.generation.plan import encode_prompts
from evals.generation.sampler import sample
from evals.generation.thinking import case_of
from evals.grading import GradingPool
from rlvr.base_model import VERSION
from rlvr.engines.local.adamw import AdamW
from rlvr.engines.local.fine_tune import add_gradients
from rlvr.engines.local.policy import TokenBatch
from rlvr.runs.job import save_when_due, termination
from rlvr.runs.state import StateStore, load_training_tensors, save_checkpoint, training_tensors

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
    files_read = {"corpus": corpus_path, **({} if held_out is None else {"held_out": held_out})}
    inputs = {str(path): sha256_file(path) for path in files_read.values()}
    lines_read = {name: sha256_lines(path) for name, path in files_read.items()}
    identity = fingerprint({"parameters": parameters, **lines_read})
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
        solutions = [[*solution, tokenizer.eos_token_id] for solution in solutions]
        name, room = f"base model {directory.name}", settings.architecture.max_position_embeddings
        if (longest := max(len(prompt) + len(text) for prompt, text in zip(prompts, solutions, strict=True))) > room:
            message = f"is {room}, and a text of the corpus has {longest} tokens"
            raise InvalidInput(name, "architecture.max_position_embeddings", message, f"{longest} or more")
        model = initial_model(settings.architecture.to_json(), tokenizer, settings.seed)
        trained = packed(model)
        optimizer = AdamW(trained.parameters(), settings.weight_decay, betas=(0.9, 0.95))
        metrics: list[dict[str, float]] = []
        first = 0
        if saved := store.latest():
            load_training_tensors(trained, optimizer, saved.tensors)
            first, metrics = saved.step, saved.values["metrics"]
        progress = Progress(directory, name, settings.steps, first)

        def accuracy() -> float:
            return float(metrics[-1].get("accuracy", 0.0)) if metrics else 0.0

        def is_over() -> bool:
            return len(metrics) == settings.steps or (stop_at is not None and accuracy() >= stop_at.accuracy)

        def save() -> None:
            tensors = training_tensors(trained, None if is_over() else optimizer)
            store.save(len(metrics), tensors, {"metrics": metrics}, is_over())

        while not is_over():
            step, started = len(metrics), time.monotonic()
            rows_of_step = slice(step * settings.batch_size, (step + 1) * settings.batch_size)
            batch = TokenBatch(prompts[rows_of_step], solutions[rows_of_step])
            loss, _ = optimizer.add_gradients(partial(add_gradients, trained, [batch]), trained.dtype)
            optimizer.clip(settings.gradient_clip, f"{name}: step {step + 1}")
            optimizer.step(settings.learning_rate_at(step))
            metrics.append({"step": step + 1, "loss": loss, "seconds_step": time.monotonic() - started})
            if stop_at is not None and (step + 1) % stop_at.every == 0:
                metrics[-1]["accuracy"] = held_out_accuracy(model, tokenizer, problems, max(map(len, solutions)))
            progress.report(step + 1, loss=loss)
            last = step + 1 if is_over() else settings.steps
            save_when_due(step + 1, last, checkpoint_interval, asked_to_stop, save, name)
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
        store.link_to_checkpoint()


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


def packed(model: Qwen3ForCausalLM) -> DecoderModel:
    """The batched decoder with the weights of ``model``, whose training changes them there too."""
    return DecoderModel(DecoderConfig.from_json(model.config.to_dict(), "base model"), dict(model.named_parameters()))


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


PHRASES = (
    "Compute ",
    " from left to right, modulo 10.",
    " from right to left, modulo 10.",
    " modulo 10.",
    "Let ",
    ". ",
    "\\boxed{",
)
"""Pieces of text that are one token each: they carry no arithmetic and would only make sequences longer."""

CHARACTERS = "0123456789+-*=;}\nabcdefghijklmnop"
PAD, END, UNKNOWN = "<|pad|>", "<|end|>", "<|unknown|>"

WORD = r" ?\\boxed\{| ?[A-Za-z]+| ?[0-9]|[^\sA-Za-z0-9]|\s"
"""A word, digit or opening box with the space before it, or any other character."""


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Build the tokenizer of characters: text is cut into phrases first and characters second."""
    # Some characters of a phrase mean something in a regular expression.
    escaped = [re.sub(r"([\\.{}()+*])", r"\\\1", phrase) for phrase in PHRASES]
    return _build([*PHRASES, *CHARACTERS], "|".join([*escaped, r"[\s\S]"]))


def build_word_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Build the tokenizer whose tokens are the words, digits and other characters that occur in ``texts``."""
    pieces = {piece for text in texts for piece in re.findall(WORD, text)}
    return _build(sorted(pieces), WORD)


def _build(pieces: Sequence[str], pattern: str) -> PreTrainedTokenizerFast:
    """Build a fast tokenizer that ``AutoTokenizer`` and vLLM load; decoding gives the text back exactly.

    Text is cut by ``pattern``. What is not in ``pieces`` becomes the unknown token. There is no beginning-of-sequence
    token.
    """
    tokens = [PAD, END, UNKNOWN, *pieces]
    tokenizer = Tokenizer(models.WordLevel({piece: index for index, piece in enumerate(tokens)}, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN,
        clean_up_tokenization_spaces=False,
        model_max_length=256,
    )
