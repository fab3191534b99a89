"""Sample a checkpoint's responses to a benchmark."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from evals.artifacts import fingerprint, sha256_bytes, sha256_file, write_jsonl
from evals.generation import VERSION
from evals.generation.checkpoint import end_token_id, load_decoder, load_tokenizer
from evals.generation.sampler import SamplingParameters, sample
from evals.generation.withheld import withheld
from evals.manifest import Manifest, hash_files, read_manifest, verify_outputs
from evals.problems.problem_set import load


@dataclass(frozen=True)
class EvaluationSettings:
    """How a benchmark is sampled.

    Attributes:
        samples_per_problem: the k of avg@k.
        seed: of the samples' random numbers; the same for every checkpoint of a study.
        prompt: template with ``{problem}`` in it.
        sampling: lengths, temperature, top-p.
    """

    samples_per_problem: int
    seed: int
    prompt: str
    sampling: SamplingParameters


def sample_benchmark(
    source: Path, source_kind: str, problems_directory: Path, settings: EvaluationSettings, out: Path, device: str
) -> None:
    """Write ``samples.jsonl`` and its manifest to ``out``.

    Args:
        source: directory of a run or base model, with ``checkpoint/`` and ``manifest.json``.
        source_kind: kind of that manifest, ``run`` or ``base_model``.
        problems_directory: directory of the benchmark's problems.
        settings: how to sample.
        out: directory of the samples.
        device: "cpu" or "cuda".

    Raises:
        UserError: an input is missing, damaged, or not of the architecture that the sampler knows.
    """
    checkpoint_manifest = verify_outputs(source / "manifest.json", source_kind)
    problem_set = load(problems_directory)
    problems = problem_set.rows
    problems_path = problems_directory / "problems.jsonl"
    checkpoint = source / "checkpoint"
    tokenizer = load_tokenizer(checkpoint)
    texts = problem_set.prompts(settings.prompt)
    stored = withheld if problem_set.gated else _whole
    count = settings.samples_per_problem
    started = time.monotonic()
    with tqdm(total=len(problems) * count, desc=f"{out.parent.name} on {out.name}", disable=None) as bar:
        groups = sample(
            load_decoder(checkpoint, device),
            [encoding.ids for encoding in tokenizer.encode_batch(texts)],
            [[f"evaluation/{settings.seed}/{row['id']}/{number}" for number in range(count)] for row in problems],
            settings.sampling,
            end_token_id(checkpoint),
            on_finished=lambda done: bar.update(done - bar.n),
        )
    seconds = time.monotonic() - started
    rows: list[Mapping[str, Any]] = [
        {
            "problem_id": problem["id"],
            "sample": number,
            **stored(tokenizer.decode(response.tokens, skip_special_tokens=True), not response.finished),
            "tokens": len(response.tokens),
            "finish_reason": "stop" if response.finished else "length",
        }
        for problem, group in zip(problems, groups, strict=True)
        for number, response in enumerate(group)
    ]
    path = out / "samples.jsonl"
    write_jsonl(path, rows)
    inputs = {
        str(checkpoint / "model.safetensors"): checkpoint_manifest.outputs["checkpoint/model.safetensors"],
        str(problems_path): sha256_file(problems_path),
    }
    parameters = {
        "engine": "local",
        "version": VERSION,
        "dtype": "float32",
        "prompt": settings.prompt,
        "prompts_sha256": sha256_bytes("\0".join(texts).encode("utf-8")),
        "samples_per_problem": count,
        "seed": settings.seed,
        **dataclasses.asdict(settings.sampling),
    }
    Manifest(
        kind="samples",
        inputs=inputs,
        outputs=hash_files(out, path),
        parameters=parameters,
        fingerprint=fingerprint({"parameters": parameters, "inputs": sorted(inputs.values())}),
        details={"rows": len(rows), "tokens": sum(int(row["tokens"]) for row in rows), "seconds": round(seconds, 3)},
    ).write(out / "manifest.json")


def _whole(text: str, _truncated: bool) -> dict[str, str]:
    """The fields of a sample that hold its text."""
    return {"text": text}


def source_kind(directory: Path) -> str:
    """Whether ``directory`` holds a trained run or a base model, from where it stands.

    Raises:
        UserError: its manifest is neither.
    """
    kind = "base_model" if directory.parent.name == "base" else "run"
    read_manifest(directory / "manifest.json", kind)
    return kind
