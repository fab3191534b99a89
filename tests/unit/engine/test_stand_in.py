"""Everything that a run does runs on a device that is not the CPU: a stand-in, for no GPU is needed to see it."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig

from evals.core.files import write_json, write_jsonl
from rlvr.methods.components import composition
from rlvr.study.catalogue import load_catalogue, resolve_method
from tests.unit.engine import stand_in
from tests.unit.engine.conftest import DAPO, import_pretrained, run_content
from tests.unit.engine.test_fine_tune import SETTINGS

ROOT = Path(__file__).parents[3]
SMALL = {"steps": 2, "prompts_per_step": 4, "max_new_tokens": 5, "samples_per_prompt": 4, "sampling_batch_size": 16}
PARTS = ("version", *composition().model_fields)

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="a compiler makes what torch asks for a GPU")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stand_in.compile_guard(tmp_path_factory.mktemp("guard"))


def on_stand_in(library: Path, jobs: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """Make the jobs; their losses by name, or their errors."""
    write_json(directory / "jobs.json", jobs)
    words = [sys.executable, "-m", "tests.unit.engine.stand_in", str(library), str(directory / "jobs.json")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    answer = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    lines = (json.loads(line) for line in answer.stdout.splitlines() if line.startswith('{"name"'))
    return {line["name"]: line.get("losses", line.get("error")) for line in lines}


@pytest.fixture
def run_of(study_files: Path, llama: Path, tmp_path: Path) -> Any:
    """Writes a run.json and names it."""

    def write(name: str, training: Mapping[str, Any] | None = None, **changes: Any) -> str:
        content = run_content(study_files, {**SMALL, **(training or {})})
        content |= {"run": name, "base": str(llama), "model": "other", **changes}
        write_json(tmp_path / name / "run.json", content)
        return str(tmp_path / name / "run.json")

    return write


def test_a_tensor_of_the_cpu_is_not_let_in(library: Path, tmp_path: Path) -> None:
    assert "on the same device" in on_stand_in(library, {"it": {"kind": "mixture"}}, tmp_path)["it"]


def test_every_method_trains(library: Path, run_of: Any, tmp_path: Path) -> None:
    catalogue = load_catalogue()
    base = str(import_pretrained(tmp_path, LlamaConfig, num_key_value_heads=2, num_hidden_layers=1))
    jobs = {}
    for name in catalogue:
        entry = resolve_method(name, {}, catalogue, name)
        method = {key: entry[key] for key in PARTS if key in entry}
        run = run_of(name, {"share_prompts": True}, base=base, method=method, dtype="bfloat16")
        # Token weights may look at the step before.
        jobs[name] = {"kind": "steps", "run": run, "steps": 2 if method.get("token_weights") else 1}
    found = on_stand_in(library, jobs, tmp_path)
    assert len(found) == len(catalogue) > 60
    assert {name: said for name, said in found.items() if not isinstance(said, list)} == {}


def test_what_else_a_training_does(
    library: Path, run_of: Any, llama: Path, neox: Path, study_files: Path, tmp_path: Path
) -> None:
    write_jsonl(tmp_path / "solutions.jsonl", [{"problem": f"1+{n}", "solution": str(1 + n)} for n in range(8)])
    settings = {**SETTINGS, "steps": 3}
    warm = {"kind": "warm start", "settings": settings, "base": str(llama), "solutions": f"{tmp_path}/solutions.jsonl"}
    contrast = {"reference_method": "gspo", "method": {**DAPO, "loss": {"name": "gspo"}}, "steps": [1]}
    delta = {**DAPO, "token_weights": {"name": "delta"}}
    jobs = {
        "train": {"kind": "train", "run": run_of("train")},
        "transformers": {"kind": "steps", "run": run_of("neox", base=str(neox), method=delta), "measured": True},
        "warm start": {**warm, "out": str(tmp_path / "warm")},
        "contrast": {"kind": "steps", "run": run_of("contrast", contrast=contrast), "measured": True},
        "top_p": {"kind": "steps", "run": run_of("again", {"top_p": 0.9, "temperature": 0.7})},
    }
    found = on_stand_in(library, jobs, tmp_path)
    assert {name: said for name, said in found.items() if not isinstance(said, list)} == {}
    there = stand_in._warm_start(settings, str(llama), warm["solutions"], str(tmp_path / "cpu"), "cpu")
    assert found["warm start"] == pytest.approx(there, rel=1e-4), "computed where the CPU's are"
    assert found["contrast"] == pytest.approx(stand_in._steps(run_of("contrast", contrast=contrast), "cpu"), abs=1e-5)
