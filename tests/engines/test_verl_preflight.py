"""preflight by real verl: a step of DelTA on two processes that stand for devices, and a model that does not load."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from evals.core.files import canonical_json, read_json
from evals.core.manifest import Manifest, hash_files
from rlvr.base_model.tokenizer import build_tokenizer
from rlvr.base_model.train import initial_model
from rlvr.study.study import Study

pytest.importorskip("verl", reason="verl is not in this environment: make test-engines")

ROOT = Path(__file__).parents[2]
RUN = "tiny-delta-s1"


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    """The smoke study's DelTA run on two devices, with an untrained model."""
    checkpoint = tmp_path / "results" / "base" / "tiny" / "checkpoint"
    study = Study.read(ROOT / "config" / "verl_smoke.yaml")
    tokenizer = build_tokenizer()
    architecture = study.models_from_scratch["tiny"].architecture.to_json()
    initial_model(architecture, tokenizer, seed=3).save_pretrained(checkpoint)
    tokenizer.save_pretrained(checkpoint)
    write_manifest(checkpoint)
    place = tmp_path / "results" / "runs" / RUN
    place.mkdir(parents=True)
    (place / "run.json").write_text(canonical_json(study.resolved_run(RUN)), encoding="utf-8")
    (place / "cluster.json").write_text(canonical_json({**study.cluster(RUN), "gpus_per_node": 2}), encoding="utf-8")
    return place / "run.json"


def write_manifest(checkpoint: Path) -> None:
    outputs = hash_files(checkpoint.parent, *sorted(checkpoint.iterdir()))
    Manifest(kind="base_model", inputs={}, outputs=outputs, parameters={}, fingerprint="f").write(
        checkpoint.parent / "manifest.json"
    )


def preflight(run_file: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rlvr", "verl", "preflight", str(run_file), "--python", sys.executable],
        cwd=run_file.parents[3],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_step_at_its_longest_is_timed_and_measured(run_file: Path) -> None:
    answer = preflight(run_file)
    assert answer.returncode == 0, answer.stderr
    assert "two updates of 16 rollouts of 40 + 24 tokens on each data-parallel rank" in answer.stdout
    assert "hidden states of 269 tokens a device" in answer.stdout  # 32 responses of 35 %
    measured = read_json(run_file.parent / "verl" / "preflight" / "measured.json")
    assert len(measured) == 2
    for device in measured:
        assert list(device["seconds"]) == [
            "model and optimizer",
            "old log-probs",
            "token weights",
            "update 1",
            "update 2",
        ]
        assert all(seconds > 0 for seconds in device["seconds"].values())
        assert all(size > 100 << 20 for size in device["device_bytes"].values())


def test_a_model_that_verl_cannot_load_ends_in_one_line(run_file: Path) -> None:
    checkpoint = run_file.parents[2] / "base" / "tiny" / "checkpoint"
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    (checkpoint / "config.json").write_text(json.dumps({**config, "model_type": "nonsense"}), encoding="utf-8")
    write_manifest(checkpoint)
    answer = preflight(run_file)
    assert answer.returncode == 2 and answer.stderr.count("\n") == 1, answer.stderr
    assert "preflight: device " in answer.stderr and "nonsense" in answer.stderr
    assert "Traceback" in (run_file.parent / "verl" / "preflight" / "rank0.log").read_text(encoding="utf-8")
