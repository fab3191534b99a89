"""Compare two Hugging Face checkpoints on every token of given responses."""

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyarrow
import pyarrow.parquet as parquet
import torch
from torch import Tensor

from evals.core.errors import InvalidInput, UserError
from evals.core.files import fingerprint, read_json, read_jsonl, replacing, sha256_file, write_json, write_parquet
from evals.core.manifest import Manifest, hash_files, verify_outputs
from evals.core.progress import Progress
from evals.core.record import read_rows
from evals.core.records import Grade
from evals.core.single_writer import single_writer
from evals.generation.chat import encoded_again, taught_end
from evals.generation.checkpoint import Checkpoint, checkpoint_files, load_tokenizer
from evals.generation.devices import claim_one
from evals.generation.evaluate import TOKEN_IDS
from evals.generation.plan import encode_prompts
from evals.problems.arithmetic import FAMILIES
from evals.problems.problem_set import render_prompt
from rlvr.engines.local.policy import Policy, TokenBatch, response_states
from rlvr.engines.local.transformers_policy import load
from rlvr.tokens.table import COMPARISON_COLUMNS, COMPARISON_KIND, MODEL_COLUMNS, classes_of
from rlvr_claims import VERSION
from rlvr_claims.decoding.draw import kl_divergence

_TOKEN_FILE = f"{TOKEN_IDS}.jsonl"
_CHUNK_ELEMENTS = 1 << 24
"""Logits of one model that are held at a time: 64 MiB in float32, and a few times that for their softmax."""
_RESOLUTION = 1e-7  # resolution of a sum of float32 probabilities: a smaller remainder cannot be told from 0
_NOTHING = -1e4  # finite stand-in for -inf, so that 0 * x stays 0


@dataclass(frozen=True)
class ModelPair:
    """A model before and after training, of one vocabulary; ``temperature`` divides their logits."""

    base: Policy
    trained: Policy
    temperature: float = 1.0

    @torch.no_grad()
    def compare(self, tokens: TokenBatch, top: int | None = None) -> dict[str, Tensor]:
        """Return :data:`~rlvr.tokens.table.MODEL_COLUMNS`, [N] float32 each, of the response tokens.

        Logits are made a chunk of tokens at a time; only the hidden states of all N tokens are held at once. With
        ``top`` entropies and divergences are summed over that many likeliest tokens of each model and one remainder
        (:func:`lumped`), not over the whole vocabulary. Log-probabilities are exact either way.
        """
        models = (self.base, self.trained)
        (base, targets), (trained, _) = (response_states(model, tokens) for model in models)
        vocabulary = self.base.head_weight.shape[0]
        rows = max(1, _CHUNK_ELEMENTS // vocabulary)
        whole = top is None or top >= vocabulary
        parts = []
        for first, second, chosen in zip(base.split(rows), trained.split(rows), targets.split(rows), strict=True):
            logits = [model.logits(part, self.temperature) for model, part in zip(models, (first, second), strict=True)]
            parts.append(over_vocabulary(logits, chosen) if whole else over_likeliest(logits, chosen, top or 0))
        return {name: torch.cat([part[name] for part in parts]).float().cpu() for name in MODEL_COLUMNS}


def over_vocabulary(logits: Sequence[Tensor], chosen: Tensor) -> dict[str, Tensor]:
    """Return :data:`MODEL_COLUMNS` of the tokens ``chosen`` [n] from both models' logits [n, V]."""
    q, p = (values.log_softmax(dim=-1) for values in logits)
    return _columns([values.gather(-1, chosen[:, None])[:, 0] for values in (q, p)], q, p)


def over_likeliest(logits: Sequence[Tensor], chosen: Tensor, top: int) -> dict[str, Tensor]:
    """Return the same over :func:`lumped` distributions: one pass over the vocabulary, and no copy of it."""
    largest = [values.max(dim=-1, keepdim=True) for values in logits]
    totals = []
    for values, (value, token) in zip(logits, largest, strict=True):
        # The largest term, which is 1, is added in float64: a small remainder is a difference of nearly equal numbers.
        others = (values - value).exp_().scatter_(-1, token, 0.0).sum(dim=-1, keepdim=True)
        totals.append(torch.log1p(others.double()))
    places = torch.cat([values.topk(top, dim=-1).indices for values in logits], dim=-1).sort(dim=-1).values
    repeated = torch.zeros_like(places, dtype=torch.bool)
    repeated[:, 1:] = places[:, 1:] == places[:, :-1]

    def log_probs(model: int, tokens: Tensor) -> Tensor:
        return (logits[model].gather(-1, tokens) - largest[model].values).double() - totals[model]

    sampled = [log_probs(model, chosen[:, None])[:, 0] for model in (0, 1)]
    known = [log_probs(model, places) for model in (0, 1)]
    q, p = (lumped(values, repeated) for values in known)
    return _columns(sampled, q, p)


def lumped(known: Tensor, repeated: Tensor) -> Tensor:
    """Return log-probabilities [n, K + 1]: the known ones [n, K] that are not ``repeated``, and the rest as one event.

    Lumping loses information: entropy and divergence can only shrink, and grow back with K.
    """
    left = known.masked_fill(repeated, _NOTHING)
    remainder = (1.0 - left.exp().sum(dim=-1, keepdim=True)).clamp(min=_RESOLUTION)
    return torch.cat([left, remainder.log()], dim=-1)


def _columns(sampled: Sequence[Tensor], q: Tensor, p: Tensor) -> dict[str, Tensor]:
    """Name the ``sampled`` log-probabilities [n], and what log-probabilities [n, K] of base and trained model give."""
    entropies = (-(values.exp() * values).sum(dim=-1) for values in (q, p))
    return dict(zip(MODEL_COLUMNS, (*sampled, *entropies, kl_divergence(p, q), kl_divergence(q, p)), strict=True))


_Rows = Sequence[Mapping[str, Any]]


def compare_checkpoints(
    base: Path,
    trained: Path,
    problems: Path,
    prompt: str,
    samples: Path,
    out: Path,
    temperature: float = 1.0,
    device: Literal["cpu", "cuda"] = "cpu",
    batch_size: int = 16,
    top: int | None = None,
    prompt_form: Literal["base", "chat"] = "base",
    grades: Path | None = None,
    threads: int = 1,
) -> None:
    """Measure what training did to each token of a sample file: any two Hugging Face checkpoints.

    Writes ``tokens.parquet`` with both models' numbers of every response token, and with --top ``top_error.json``. A
    killed command resumes after the last finished batch; grades can be added later without a forward pass.

    Args:
        base: checkpoint directory, before training.
        trained: checkpoint directory, after it.
        problems: problems.jsonl of the benchmark.
        prompt: template with {problem} in it.
        samples: file of samples of one of the two.
        out: directory for tokens.parquet; resumable.
        temperature: of the samples.
        device: that it runs on.
        batch_size: responses in one forward pass.
        prompt_form: plain text, or chat template.
        threads: that torch keeps to; of a run the same as in its training.
        grades: those of these samples, as a study's job of grades writes it: adds rewards.
        top: entropies and KL over each model's so many likeliest tokens and one remainder: less memory and time; the
            error on the first batch is reported; default: the whole vocabulary.

    Raises:
        UserError: a file does not fit, the vocabularies differ, or a number is out of range.
    """
    torch.set_num_threads(threads)
    for option, value in (("--batch-size", batch_size), ("--top", top)):
        if value is not None and value < 1:
            raise InvalidInput(option, "", f"is {value}", "1 or more")
    if not (math.isfinite(temperature) and temperature > 0):
        raise InvalidInput("--temperature", "", f"is {temperature}", "above 0")
    rows = read_jsonl(samples, required=("problem_id", "sample", "text", "finish_reason"))
    rewards = None if grades is None else _read_rewards(grades, samples, rows)
    tokens = _tokens(base, trained, problems, prompt, prompt_form, rows, samples)
    files = [samples, problems, *checkpoint_files(base), *checkpoint_files(trained), *samples.parent.glob(_TOKEN_FILE)]
    inputs = {str(path): sha256_file(path) for path in files}
    parameters = {"prompt": prompt, "prompt_form": prompt_form, "temperature": temperature, "batch_size": batch_size}
    parameters |= {"top": top, "version": VERSION}
    identity = fingerprint({"parameters": parameters, "inputs": list(inputs.values())})
    error = out / "top_error.json"
    with single_writer(out, "compares into this directory", 0.0):
        mark = out / "parts/identity.json"
        if not mark.is_file() or read_json(mark) != identity:  # finished parts are of another comparison
            for path in mark.parent.glob("*.parquet"):
                path.unlink()
            write_json(mark, identity)
        batches = torch.arange(len(rows)).split(batch_size)
        paths = [out / "parts" / f"{number:08d}.parquet" for number in range(len(batches))]
        if not all(path.is_file() for path in paths):
            claim_one(device)
            before, after = (
                load(model, model.dtype("auto"), device) for model in (Checkpoint(base), Checkpoint(trained))
            )
            pair = ModelPair(before, after, temperature)
            sizes = [model.head_weight.shape[0] for model in (pair.base, pair.trained)]
            if sizes[0] != sizes[1]:  # as after padding the vocabulary
                message = f"have logits of {sizes[0]} and of {sizes[1]} tokens"
                raise InvalidInput("--base, --trained", "", message, "two models of one vocabulary")
            texts = load_tokenizer(base)
            progress = Progress(out, "samples compared", len(paths), sum(path.is_file() for path in paths))
            for number, (path, batch) in enumerate(zip(paths, batches, strict=True), start=1):
                if not path.is_file():
                    chosen = tokens.select(batch)
                    numbers = pair.compare(chosen, top)
                    if top is not None and number == 1:
                        write_json(error, _error(numbers, pair.compare(chosen)))
                    write_parquet(path, _frame(numbers, chosen, [rows[i] for i in batch.tolist()], texts))
                progress.report(number)
        # Classes of tokens are known of generated kinds of problems.
        families = {row["id"]: row.get("family") for row in read_jsonl(problems, required=("id",))}
        classified = all(families.get(row["problem_id"]) in FAMILIES for row in rows)
        _write_table(out / "tokens.parquet", paths, rewards, classified)
        if grades is not None:
            inputs[str(grades)] = sha256_file(grades)
            identity = fingerprint({"comparison": identity, "grades": inputs[str(grades)]})
        outputs = [out / "tokens.parquet", *([] if top is None else [error])]
        Manifest(COMPARISON_KIND, inputs, hash_files(out, *outputs), parameters, identity).write(out / "manifest.json")
    if top is not None:
        errors = read_json(error)
        words = "{} {mean_error:.2g} (largest {largest_error:.2g}, its mean {mean:.2g})"
        found = [words.format(name, **of) for name, of in errors["columns"].items() if not name.endswith("log_prob")]
        print(f"--top {top}: mean error in nats over {errors['tokens']} tokens of the first batch: {', '.join(found)}")


def _read_rewards(grades: Path, samples: Path, rows: _Rows) -> dict[tuple[Any, int], float]:
    """Read the reward of each sample in ``rows``, by problem and number: 1 for a right response, 0 for a wrong one."""
    beside = grades.parent / "manifest.json"
    if beside.is_file():
        origin = verify_outputs(beside, "grades").inputs
        recorded = {digest for name, digest in origin.items() if Path(name).name == samples.name}
        if recorded and sha256_file(samples) not in recorded:
            raise UserError(f"{grades}: are not the grades of {samples}; grade these samples, or name their grades")
    rewards: dict[tuple[Any, int], float] = {}
    for grade in read_rows(grades, Grade):
        if (grade.problem_id, grade.sample) in rewards:
            raise UserError(f"{grades}: problem {grade.problem_id}, sample {grade.sample}: has two grades")
        rewards[grade.problem_id, grade.sample] = float(grade.correct)
    for problem, sample in ((row["problem_id"], row["sample"]) for row in rows):
        if (problem, sample) not in rewards:
            raise UserError(f"{grades}: has no grade of problem {problem}, sample {sample}, of {samples}")
    return rewards


def _tokens(
    base: Path, trained: Path, problems: Path, prompt: str, prompt_form: str, rows: _Rows, samples: Path
) -> TokenBatch:
    """The tokens of prompts, and of responses as they were sampled; by a text alone with a warning."""
    model = Checkpoint(trained)
    tokenizer = model.tokenizer
    if tokenizer.get_vocab() != load_tokenizer(base).get_vocab():
        raise UserError(f"{base}, {trained}: their tokenizers differ; accepted: two models of one vocabulary")
    statements = {row["id"]: row["problem"] for row in read_jsonl(problems, required=("id", "problem"))}
    if not rows:
        raise UserError(f"{samples}: holds no samples")
    if len({(row["problem_id"], row["sample"]) for row in rows}) != len(rows):
        raise UserError(f"{samples}: has a sample of one problem and number twice")
    if unknown := [row["problem_id"] for row in rows if row["problem_id"] not in statements]:
        raise UserError(f"{samples}: problem {unknown[0]} is not in {problems}")
    texts = [render_prompt(prompt, str(text)) for text in statements.values()]
    prompts = dict(zip(statements, encode_prompts(model, texts, prompt_form), strict=True))
    if any("text_sha256" in row for row in rows):
        raise UserError(f"{samples}: withholds the texts of a gated benchmark; accepted: samples with their texts")
    kept, token_file, end = {}, samples.with_name(_TOKEN_FILE), taught_end(model, prompt_form)
    if token_file.is_file():  # of each sample whose text does not give its tokens
        made = verify_outputs(samples.with_name("manifest.json"), "samples")
        sampled_from, now = made.parameters.get("prompt_tokens_sha256"), fingerprint(list(prompts.values()))
        if sha256_file(problems) in made.inputs.values() and sampled_from != now:
            message, accepted = "give other prompts than the samples have", "those of the samples, without turns before"
            raise InvalidInput("--prompt, --prompt-form", "", message, f"{accepted} or settings of the chat template")
        kept = {(row["problem_id"], row["sample"]): row[TOKEN_IDS] for row in read_jsonl(token_file)}
    responses = [
        kept.get((row["problem_id"], row["sample"])) or encoded_again(tokenizer, row["text"], row["finish_reason"], end)
        for row in rows
    ]
    if not token_file.is_file():  # and the end token is the tokenizer's, whichever of several was drawn
        other = sum(len(ids) != row.get("tokens", len(ids)) for row, ids in zip(rows, responses, strict=True))
        share = f"{other} of {len(rows)} responses ({other / len(rows):.1%})"
        print(
            f"warning: {samples}: has texts alone, which are encoded again: {share} become another number of tokens "
            "than were sampled, and others may become other tokens; samples with token_ids.jsonl beside them have them",
            flush=True,
        )
    return TokenBatch([prompts[row["problem_id"]] for row in rows], responses)


def _frame(numbers: Mapping[str, Tensor], tokens: TokenBatch, rows: _Rows, tokenizer: Any) -> pd.DataFrame:
    places = [
        (row["problem_id"], row["sample"], position, token, tokenizer.decode([token], skip_special_tokens=False))
        for row, response in zip(rows, tokens.responses, strict=True)
        for position, token in enumerate(response)
    ]
    frame = pd.DataFrame(places, columns=["problem", "sample", "position", "token", "text"])
    return frame.assign(**{name: numbers[name].numpy() for name in MODEL_COLUMNS}).astype(COMPARISON_COLUMNS)


def _write_table(
    path: Path, parts: Sequence[Path], rewards: Mapping[tuple[Any, int], float] | None, classified: bool
) -> None:
    """Put the parts, tables of whole samples, together to the table ``path``, one in memory at a time."""
    writer: parquet.ParquetWriter | None = None
    with replacing(path) as temporary, ExitStack() as closing:
        for part in parts:
            frame = pd.read_parquet(part)
            if rewards is not None:
                samples = zip(frame["problem"], frame["sample"], strict=True)
                frame["reward"] = np.array([rewards[sample] for sample in samples], dtype=np.float32)
            if classified:
                starts = (frame["position"].to_numpy() == 0).cumsum()
                frame["token_class"] = pd.array(classes_of(starts, list(frame["text"])), dtype="string")
            table = pyarrow.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata()
            writer = writer or closing.enter_context(parquet.ParquetWriter(temporary, table.schema))
            writer.write_table(table)


def _error(approximate: Mapping[str, Tensor], exact: Mapping[str, Tensor]) -> dict[str, Any]:
    """The distance of the first batch's numbers from those over the whole vocabulary, in nats."""
    columns = {}
    for name in MODEL_COLUMNS:
        errors, mean = (approximate[name] - exact[name]).double().abs(), float(exact[name].double().mean())
        columns[name] = {"mean": mean, "mean_error": float(errors.mean()), "largest_error": float(errors.max())}
    return {"tokens": len(exact[MODEL_COLUMNS[0]]), "columns": columns}
