"""What `make status` says: whatever the configuration no longer asks for, and all that was made from it."""

from __future__ import annotations

import copy
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from evals.core import arithmetic
from evals.core.files import fingerprint, read_json, sha256_bytes, write_json, write_jsonl, write_text
from evals.core.intact import Comparison
from evals.core.manifest import Manifest, hash_files, installed_packages
from evals.core.yaml_file import read_yaml
from evals.generation import VERSION as SAMPLER_VERSION
from evals.generation.checkpoint import ServedModel
from evals.generation.plan import make_plan
from evals.generation.settings import EvaluationSettings
from evals.grading import INTEGER_VERSION as GRADER_VERSION
from evals.grading.code import VERIFIER_VERSION
from rlvr.base_model import VERSION as BASE_MODEL_VERSION
from rlvr.engines.local import VERSION as ENGINE_VERSION
from rlvr.study.evaluation import Evaluated, Machine, Prompting, Sampling, configuration
from rlvr.study.plan import Plan
from rlvr.study.sampled import SamplingJobs
from rlvr.study.source_files import REPOSITORY
from rlvr.study.status import describe, study_status
from rlvr.study.study import Study
from rlvr.study.trained import TrainingJobs
from tests.commands import rlvr_bench

CONFIG = Path(__file__).resolve().parents[3] / "config"


@pytest.fixture
def config() -> dict[str, Any]:
    content: dict[str, Any] = read_yaml(CONFIG / "smoke.yaml")
    content |= {"seeds": [1], "benchmarks": ["chain_3"], "methods": {"dapo": {}}}
    return content


def write(path: str, kind: str, parameters: Mapping[str, Any], outputs: Mapping[str, str], **inputs: str) -> None:
    """Files of the given contents with their manifest; ``inputs`` are named by their contents too."""
    named = {name: sha256_bytes(content.encode()) for name, content in inputs.items()}
    manifest = Path("results", path)
    for name, content in outputs.items():
        write_text(manifest.parent / name, content)
    Manifest(
        kind, named, hash_files(manifest.parent, *(manifest.parent / name for name in outputs)), parameters, "f"
    ).write(manifest)


@pytest.fixture
def finished(config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The manifests of a finished study of one run, in the working directory; returns its configuration."""
    monkeypatch.chdir(tmp_path)
    for name, value in arithmetic.CODE_PATHS.items():
        monkeypatch.setenv(name, value)
    study = Study.resolve(config)
    model, problems = config["models"]["tiny"], config["problems"]
    corpus = {"version": BASE_MODEL_VERSION, "count": 150 * 64, **model["corpus"]}
    write("base/tiny/corpus.manifest.json", "corpus", corpus, {"corpus.jsonl": "c"})
    base = {"version": BASE_MODEL_VERSION, "architecture": model["architecture"], **model["training"]}
    weights = {"checkpoint/model.safetensors": "w"}
    write("base/tiny/manifest.json", "base_model", base, weights, **{"results/base/tiny/corpus.jsonl": "c"})
    drawn = {"name": "train", "split": "train", **{key: problems[key] for key in ("kinds", "count", "seed")}}
    write("problems/train/manifest.json", "problems", drawn, {"problems.jsonl": "t"})
    chain = {"kinds": [{"family": "chain", "operands": 3}], "count": 30, "seed": study.benchmarks["chain_3"].entry.seed}
    write("problems/chain_3/manifest.json", "problems", chain, {"problems.jsonl": "b"})
    run = {key: value for key, value in study.resolved_run("tiny-dapo-s1").items() if key not in ("base", "problems")}
    run["versions"] = {"engine": ENGINE_VERSION, "sampler": SAMPLER_VERSION, "grader": GRADER_VERSION}
    inputs = {"results/base/tiny/checkpoint/model.safetensors": "w", "results/problems/train/problems.jsonl": "t"}
    write("runs/tiny-dapo-s1/manifest.json", "run", run, weights, **inputs)
    sampling = {key: value for key, value in config["evaluation"].items() if key != "sampling_batch_size"}
    sampling |= {"batch_size": config["evaluation"]["sampling_batch_size"], "version": SAMPLER_VERSION}
    sampling |= {"prompt": study.benchmarks["chain_3"].entry.prompt}
    for name in ("tiny-base", "tiny-dapo-s1"):
        write(f"samples/{name}/chain_3/manifest.json", "samples", sampling, {"samples.jsonl": "s"})
    return config


def stale(config: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    return {status.result: status.reasons for status in study_status(Study.resolve(config)) if not status.current}


def test_a_finished_study_is_current(finished: dict[str, Any]) -> None:
    assert stale(finished) == {}
    assert describe(study_status(Study.resolve(finished))) == ["7 of 7 results are current"]


def test_a_fine_tuned_model_follows_its_solutions(
    finished: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuning = {"prompt": "{problem}", "seed": 1, "steps": 2, "batch_size": 2, "micro_batch_tokens": 9}
    tuning |= {"learning_rate": 0.1, "warmup_steps": 0, "weight_decay": 0.0, "gradient_clip": 1.0}
    steps = {"source": "gsm8k_steps", "path": "steps.jsonl"}
    model = {"source": "fine_tuned", "path": "model", "prompt": "base", "dtype": "float32", "fine_tuning": tuning}
    config = {**finished, "models": {"warm": {**model, "solutions": [steps, "own.jsonl"]}}, "diagnostics": None}
    study = Study.resolve({key: value for key, value in config.items() if value is not None})
    read = {key: value for key, value in study.solution_settings["gsm8k_steps"].items() if key != "path"}
    write("solutions/gsm8k_steps/manifest.json", "problems", read, {"problems.jsonl": "s"})
    own = str(REPOSITORY / "own.jsonl")
    inputs = {"results/base/warm-pretrained/w": "w", "results/solutions/gsm8k_steps/problems.jsonl": "s", own: "o"}
    parameters = {"source": "fine_tuned", "version": ENGINE_VERSION, **tuning}
    write("base/warm/manifest.json", "base_model", parameters, {"checkpoint/model.safetensors": "w"}, **inputs)

    def reasons(of: Study) -> tuple[str, ...]:
        (status,) = (each for each in study_status(of) if each.result == "fine-tuned model warm")
        return status.reasons

    assert study.solutions("warm") == list(inputs)[1:] and reasons(study) == ()
    turned = dict(config, models={"warm": {**model, "solutions": ["own.jsonl", steps]}}, diagnostics=None)
    (reason,) = reasons(Study.resolve({key: value for key, value in turned.items() if value is not None}))
    assert reason.startswith(
        f"solutions are {own}, results/solutions/gsm8k_steps/problems.jsonl; made with results/sol"
    )
    write("solutions/gsm8k_steps/manifest.json", "problems", {**read, "revision": "b" * 40}, {"problems.jsonl": "s"})
    assert reasons(study) == ("made from solutions gsm8k_steps, which is not current",)


def test_a_check_ends_by_the_state(finished: dict[str, Any]) -> None:
    write_json(Path("study.json"), finished)
    words = ["--config", "study.json", "--check"]
    assert rlvr_bench("status")(words) == 0
    Path("results/problems/chain_3/manifest.json").unlink()
    with pytest.raises(SystemExit) as stopped:
        rlvr_bench("status")(words)
    assert stopped.value.code == 1
    assert rlvr_bench("status")(words[:2]) == 0


def test_results_without_portable_digits_are_named(finished: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path("results/runs/tiny-dapo-s1/manifest.json")
    content = read_json(path)
    content["environment"]["arithmetic"] |= {"processor": "Old", "code_paths": "the machine's own"}
    rewrite(path, content)
    monkeypatch.setattr(arithmetic, "processor", lambda: ("Old", "it has no AVX2"))
    mixed, obstacle, count = describe(study_status(Study.resolve(finished)))
    assert mixed.startswith("Arithmetic is mixed") and "1 of 4 results with the code paths of Old" in mixed
    assert "it has no AVX2" in obstacle and count == "7 of 7 results are current"


def test_what_was_never_made_is_missing_and_not_stale(finished: dict[str, Any]) -> None:
    study = Study.resolve(finished)
    Path("results/samples/tiny-dapo-s1/chain_3/manifest.json").unlink()
    missing, count = describe(study_status(study))
    assert missing.startswith("missing  samples of run tiny-dapo-s1 on chain_3: not made yet")
    assert count == "6 of 7 results are current"
    shutil.rmtree("results")
    missing, count = describe(study_status(study))
    assert missing.count(", ") == 3 and " and 4 more: not made yet" in missing
    assert count == "0 of 7 results are current"


def test_a_verifier_whose_bytes_are_others_makes_its_runs_stale(finished: dict[str, Any]) -> None:
    mine = Path("mine.py").resolve()
    mine.write_text("1")
    finished["problems"]["verifier"] = str(mine)
    del finished["diagnostics"]
    name = "verifier of the training problems"
    assert "no such file" in stale(finished)[name][0]
    parameters = {"version": VERIFIER_VERSION, "sha256": sha256_bytes(b"1")}
    write("verifiers/train/manifest.json", "verifier", parameters, {"verifier.py": "1"})
    assert name not in stale(finished)
    mine.write_text("2")
    reasons = stale(finished)
    assert reasons[name] == (f"sha256: {sha256_bytes(b'1')} -> {sha256_bytes(b'2')}",)
    assert f"made from {name}, which is not current" in reasons["run tiny-dapo-s1"]
    assert not any("base model tiny-base" in result for result in reasons)


def rewrite(path: Path, content: dict[str, Any]) -> None:
    """Write a manifest with its checksum, as its command would have."""
    rest = {key: value for key, value in content.items() if key != "sha256"}
    write_json(path, rest | {"sha256": fingerprint(rest)})


def test_results_of_other_versions_than_are_installed_are_named(finished: dict[str, Any]) -> None:
    path = Path("results/runs/tiny-dapo-s1/manifest.json")
    content = read_json(path)
    content["environment"]["packages"]["torch"] = "1.0"
    rewrite(path, content)
    lines = describe(study_status(Study.resolve(finished)))
    now = installed_packages()["torch"]
    assert any(f"other versions than this environment has: 1 results (torch 1.0, now {now})" in line for line in lines)
    assert lines[-1] == "7 of 7 results are current"  # said, and not computed again


FILES = {
    "base/tiny/corpus.jsonl": "corpus of base model tiny",
    "base/tiny/checkpoint/model.safetensors": "base model tiny",
    "problems/train/problems.jsonl": "training problems",
    "problems/chain_3/problems.jsonl": "benchmark chain_3",
    "runs/tiny-dapo-s1/checkpoint/model.safetensors": "run tiny-dapo-s1",
    "samples/tiny-base/chain_3/samples.jsonl": "samples of base model tiny-base on chain_3",
}


def damaged(config: dict[str, Any], result: str, every_byte: bool = False, cache: Path | None = None) -> list[str]:
    files = Comparison(every_byte, cache)
    statuses = study_status(Study.resolve(config), files)
    files.keep()
    (found,) = [status.reasons for status in statuses if status.result == result]
    return list(found)


@pytest.mark.parametrize(("name", "result"), FILES.items())
def test_a_missing_or_changed_file_is_named_with_what_to_delete(
    finished: dict[str, Any], tmp_path: Path, name: str, result: str
) -> None:
    path, cache = Path("results", name), tmp_path / "hashes.json"
    known, content = path.stat(), path.read_text()
    assert damaged(finished, result, True, cache) == []
    path.write_text("x" * len(content))  # newer than its manifest: read, though it has the size
    (reason,) = damaged(finished, result)
    owner = "corpus.manifest.json" if "corpus" in name else "manifest.json"
    assert reason.startswith(f"{path}: was changed") and f"/{owner} to make it again" in reason
    os.utime(path, ns=(known.st_atime_ns, known.st_mtime_ns))  # a forged time is found by reading it all
    assert damaged(finished, result) == []
    (reason,) = damaged(finished, result, True, cache)
    assert reason.startswith(f"{path}: was changed")
    path.write_text(content + "more")
    os.utime(path, ns=(known.st_atime_ns, known.st_mtime_ns))
    (reason,) = damaged(finished, result)
    assert reason.startswith(f"{path}: was changed")
    path.unlink()
    (reason,) = damaged(finished, result)
    assert reason.startswith(f"{path}: is missing; delete ")


def test_a_copy_without_times_is_read_once_and_current(finished: dict[str, Any], tmp_path: Path) -> None:
    for manifest in Path("results").rglob("*manifest.json"):
        os.utime(manifest, (1, 1))
    for _ in range(2):
        files = Comparison(cache=tmp_path / "hashes.json")
        assert all(status.current for status in study_status(Study.resolve(finished), files))
        files.keep()
    assert files.bytes_read == 0
    (tmp_path / "hashes.json").write_text("[")  # what is broken is computed again
    assert all(
        status.current for status in study_status(Study.resolve(finished), Comparison(cache=tmp_path / "hashes.json"))
    )


def test_an_edited_manifest_is_named(finished: dict[str, Any]) -> None:
    path = Path("results/runs/tiny-dapo-s1/manifest.json")
    path.write_text(path.read_text() + " ")
    assert damaged(finished, RUN) == [f"{path}: was changed after it was written; delete it to make the result again"]


RUN = "run tiny-dapo-s1"
SAMPLES = "samples of run tiny-dapo-s1 on chain_3"
BASE_SAMPLES = "samples of base model tiny-base on chain_3"


@pytest.mark.parametrize(
    ("key", "value", "source", "following"),
    [
        (
            "models.tiny.corpus.misconception_share",
            0.5,
            "corpus of base model tiny: misconception_share: 0.7 -> 0.5",
            {"base model tiny", RUN, SAMPLES, BASE_SAMPLES},
        ),
        ("models.tiny.training.steps", 500, "base model tiny: steps: 150 -> 500", {RUN, SAMPLES, BASE_SAMPLES}),
        ("problems.seed", 9, "training problems: seed: 1 -> 9", {RUN, SAMPLES}),
        ("training.steps", 9, "run tiny-dapo-s1: training.steps: 4 -> 9", {SAMPLES}),
        ("evaluation.top_p", 0.7, f"{SAMPLES}: top_p: 1.0 -> 0.7", set()),
    ],
)
def test_a_change_makes_stale_what_follows_from_it(
    finished: dict[str, Any], key: str, value: Any, source: str, following: set[str]
) -> None:
    config = copy.deepcopy(finished)
    *parents, last = key.split(".")
    place = config
    for parent in parents:
        place = place[parent]
    place[last] = value
    found = stale(config)
    lines = describe(study_status(Study.resolve(config)))
    assert f"stale    {source}" in lines
    assert {result for result, reasons in found.items() if reasons[0].startswith("made from ")} == following
    assert any("results that are made from these" in line for line in lines) == bool(following)


def test_inputs_that_changed_under_a_result_are_named(finished: dict[str, Any]) -> None:
    corpus = {"version": BASE_MODEL_VERSION, "count": 150 * 64, **finished["models"]["tiny"]["corpus"]}
    write("base/tiny/corpus.manifest.json", "corpus", corpus, {"corpus.jsonl": "other"})
    (reason,) = stale(finished)["base model tiny"]
    before, after = (sha256_bytes(content.encode())[:12] for content in ("c", "other"))
    assert reason == f"results/base/tiny/corpus.jsonl: {before} -> {after}"
    Path("results/problems/chain_3/manifest.json").unlink()
    assert stale(finished)[SAMPLES][-1] == "made from benchmark chain_3, which is not current"


def test_samples_of_a_server_are_current(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    evaluated = Evaluated("small", ["chain_3"], ["2"], server="http://127.0.0.1:8000/v1")
    content = configuration(evaluated, Prompting(), Sampling(max_model_len=4096), Machine())
    study = Plan.read(content, "eval")
    rows = [{"id": "a", "problem": "1+2", "answer": "3"}]
    write_jsonl(Path("results/problems/chain_3/problems.jsonl"), rows)
    write("problems/chain_3/manifest.json", "problems", {}, {})
    write("base/small/manifest.json", "base_model", {}, {"server.json": TrainingJobs(study).service("small")})
    given = SamplingJobs(study).evaluation("small-base", "chain_3")
    given |= {"batch_size": given.pop("sampling_batch_size"), "threads": 1}
    settings = EvaluationSettings.parse(given | {"prompt": SamplingJobs(study).prompt("small-base", "chain_3")}, "")
    plan = make_plan([ServedModel(Path("results/base/small"))], Path("results/problems/chain_3"), settings)
    write("samples/small-base/chain_3/manifest.json", "samples", plan.parameters, {"samples.jsonl": "s"})
    result = "samples of base model small-base on chain_3"
    own = [reason for reason in stale(content)[result] if not reason.startswith("made from")]
    assert own == []
    content["evaluation"]["top_p"] = 0.5
    assert stale(content)[result][0].startswith("top_p: ")
