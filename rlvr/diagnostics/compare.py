"""What training did to every token of given responses: any two Hugging Face checkpoints, any sample file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from evals.artifacts import fingerprint, read_json, read_jsonl, sha256_file, write_json, write_parquet
from evals.errors import UserError
from evals.generation.checkpoint import end_token_ids, load_tokenizer
from evals.generation.prompts import encode_prompts, special_token_id
from evals.manifest import Manifest, hash_files
from evals.problems.problem_set import render_prompt
from evals.single_writer import single_writer
from rlvr.diagnostics import VERSION
from rlvr.diagnostics.comparison_parts import read_rewards, write_comparison
from rlvr.diagnostics.comparison_table import COLUMNS, KIND, TYPES
from rlvr.diagnostics.direction import ModelPair
from rlvr.engines.local.policy import TokenBatch
from rlvr.progress import Progress


def compare_checkpoints(
    base: Path,
    trained: Path,
    problems: Path,
    prompt: str,
    samples: Path,
    out: Path,
    temperature: float,
    device: str,
    batch_size: int,
    top: int | None = None,
    prompt_form: str = "base",
    grades: Path | None = None,
) -> None:
    """Write ``tokens.parquet`` to ``out``: a row per response token with what both models say about it.

    :mod:`rlvr.diagnostics.comparison_table` has its columns. Killed and started again it goes on after the last batch
    of samples that was finished; grades may come later, they cost no forward pass. With ``top`` the first batch is
    computed over the whole vocabulary too, and ``top_error.json`` says how far the two are apart.

    Args:
        base: checkpoint directory, before training.
        trained: checkpoint directory, after it.
        problems: ``problems.jsonl`` with id and problem.
        prompt: template with ``{problem}``.
        samples: ``samples.jsonl`` with problem_id, sample, text and finish_reason.
        out: directory.
        temperature: that logits are divided by.
        device: "cpu" or "cuda".
        batch_size: responses in one forward pass.
        top: likeliest tokens of each model that entropies and divergences are summed over; None for all.
        prompt_form: "base" for plain text, "chat" for the user's turn of the trained model's chat template.
        grades: ``grades.jsonl`` of these samples; None leaves the table without a reward.

    Raises:
        UserError: a file is missing, a sample's problem or grade is not there, or the vocabularies differ.
    """
    if top is not None and top < 1:
        raise UserError(f"--top: is {top}; accepted: 1 or more")
    rows = read_jsonl(samples, required=("problem_id", "sample", "text", "finish_reason"))
    rewards = None if grades is None else read_rewards(grades, samples, rows)
    tokens = _tokens(base, trained, problems, prompt, prompt_form, rows, str(samples))
    inputs = {str(path): sha256_file(path) for path in (samples, problems, *_weights(base), *_weights(trained))}
    parameters: Mapping[str, Any] = {
        "prompt": prompt, "prompt_form": prompt_form, "temperature": temperature, "batch_size": batch_size, "top": top,
        "version": VERSION,
    }  # fmt: skip
    identity = fingerprint({"parameters": parameters, "inputs": list(inputs.values())})
    parts, error = out / "parts", out / "top_error.json"
    with single_writer(out, "compares into this directory", 0.0):
        _start_parts(parts, identity)
        batches = torch.arange(len(rows)).split(batch_size)
        paths = [parts / f"{number:08d}.parquet" for number in range(len(batches))]
        if not all(path.is_file() for path in paths):
            pair = ModelPair(_load(base, device), _load(trained, device), temperature)
            texts = load_tokenizer(base)
            done = sum(path.is_file() for path in paths)
            progress = Progress(out, "samples compared", len(paths), done)
            for number, (path, batch) in enumerate(zip(paths, batches, strict=True), start=1):
                if not path.is_file():
                    chosen = tokens.select(batch)
                    found = pair.compare(chosen, top)
                    if top is not None and number == 1:
                        write_json(error, _error(found, pair.compare(chosen)))
                    write_parquet(path, _frame(found, chosen, [rows[i] for i in batch.tolist()], texts))
                progress.report(number)
        families = {row["id"]: row.get("family") for row in read_jsonl(problems, required=("id",))}
        write_comparison(out / "tokens.parquet", paths, rewards, families)
        if grades is not None:
            inputs[str(grades)] = sha256_file(grades)
            identity = fingerprint({"comparison": identity, "grades": inputs[str(grades)]})
        outputs = [out / "tokens.parquet", *([] if top is None else [error])]
        Manifest(KIND, inputs, hash_files(out, *outputs), parameters, identity).write(out / "manifest.json")
    if top is not None:
        print(_error_in_words(read_json(error), top))


def _error(found: Mapping[str, Tensor], exact: Mapping[str, Tensor]) -> dict[str, Any]:
    """How far entropies and divergences of the first batch are from those over the whole vocabulary, in nats."""
    columns = {}
    for name in COLUMNS:
        difference = (found[name] - exact[name]).double().abs()
        columns[name] = {
            "mean": float(exact[name].double().mean()),
            "mean_error": float(difference.mean()),
            "largest_error": float(difference.max()),
        }
    return {"tokens": len(exact[COLUMNS[0]]), "columns": columns}


def _error_in_words(error: Mapping[str, Any], top: int) -> str:
    parts = [
        f"{name} {each['mean_error']:.2g} (largest {each['largest_error']:.2g}, its mean {each['mean']:.2g})"
        for name, each in error["columns"].items()
        if not name.endswith("log_prob")
    ]
    return f"--top {top}: mean error in nats over {error['tokens']} tokens of the first batch: {', '.join(parts)}"


def _tokens(
    base: Path,
    trained: Path,
    problems: Path,
    prompt: str,
    prompt_form: str,
    rows: Sequence[Mapping[str, Any]],
    source: str,
) -> TokenBatch:
    """Prompts and responses as tokens; a response that ended has the end token at its end, as when it was sampled."""
    tokenizer = load_tokenizer(trained)
    if tokenizer.get_vocab() != load_tokenizer(base).get_vocab():
        raise UserError(f"{base}, {trained}: their tokenizers differ; accepted: two models of one vocabulary")
    statements = {row["id"]: row["problem"] for row in read_jsonl(problems, required=("id", "problem"))}
    unknown = [row["problem_id"] for row in rows if row["problem_id"] not in statements]
    if not rows or unknown:
        raise UserError(f"{source}: {f'problem {unknown[0]} is not in {problems}' if unknown else 'holds no samples'}")
    texts = [render_prompt(prompt, str(text)) for text in statements.values()]
    prompts = dict(zip(statements, encode_prompts(trained, tokenizer, texts, prompt_form), strict=True))
    # Samples do not say which of several end tokens was drawn: the one that the tokenizer names ends a turn.
    named = special_token_id(trained, tokenizer, "eos_token")
    end = end_token_ids(trained)[0] if named is None else named
    responses = [
        tokenizer.encode(row["text"], add_special_tokens=False).ids + ([end] if row["finish_reason"] == "stop" else [])
        for row in rows
    ]
    return TokenBatch([prompts[row["problem_id"]] for row in rows], responses)


def _weights(checkpoint: Path) -> list[Path]:
    return sorted(checkpoint.glob("*.safetensors"))


def _load(checkpoint: Path, device: str) -> PreTrainedModel:
    """A checkpoint, in the type that it was saved in; code that came with it is never run."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(checkpoint, dtype="auto", trust_remote_code=False)
    model.to(device)  # type: ignore[arg-type]
    return model


def _start_parts(parts: Path, identity: str) -> None:
    """Forget finished parts of another comparison."""
    mark = parts / "identity.json"
    if not mark.is_file() or read_json(mark) != identity:
        for path in parts.glob("*.parquet"):
            path.unlink()
        write_json(mark, identity)


def _frame(
    found: Mapping[str, Tensor], tokens: TokenBatch, rows: Sequence[Mapping[str, Any]], tokenizer: Any
) -> pd.DataFrame:
    frame = pd.DataFrame(list(_places(tokens, rows)), columns=["problem", "sample", "position", "token"])
    frame["text"] = [tokenizer.decode([token], skip_special_tokens=False) for token in frame["token"]]
    return frame.assign(**{name: found[name].numpy() for name in COLUMNS}).astype(TYPES)


def _places(tokens: TokenBatch, rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, int, int, int]]:
    for row, response in zip(rows, tokens.responses, strict=True):
        for position, token in enumerate(response):
            yield row["problem_id"], row["sample"], position, token
