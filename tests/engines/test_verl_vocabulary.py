"""A random Qwen3 of two layers with as many tokens as a real one, by verl and vLLM: killed, continued, merged."""

from __future__ import annotations

import itertools
import string
from pathlib import Path

import pandas as pd
import pytest

from evals.core.files import read_json
from evals.core.manifest import verify_outputs
from rlvr.base_model.tokenizer import build_word_tokenizer
from rlvr.base_model.train import initial_model
from tests.engines.study_directory import (
    StudyDirectory,
    last_words,
    smoke_study,
    train_until_killed,
    wait_for_end_of_processes,
)

RUN, STEPS = "qwen3-delta-s1", 4
VOCABULARY, SPECIAL = 151_936, 3

VERIFIER = """\
import zlib

def verify(problem, response):
    return zlib.crc32(response.encode()) % 2
"""
"""A random model solves nothing: about half of all responses are right by this."""


def random_checkpoint(place: Path) -> Path:
    """Write a checkpoint of random weights, whose tokens are printable characters and made-up words."""
    letters = itertools.product(string.ascii_lowercase, repeat=4)
    words = ["".join(each) for each in itertools.islice(letters, VOCABULARY - SPECIAL - len(string.printable))]
    tokenizer = build_word_tokenizer([*string.printable, *words])
    assert len(tokenizer) == VOCABULARY
    architecture = smoke_study()["models"]["tiny"]["architecture"]
    initial_model(architecture, tokenizer, seed=1).save_pretrained(place)
    tokenizer.save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> StudyDirectory:
    path = tmp_path_factory.mktemp("study")
    config = smoke_study(training={"steps": STEPS}, execution={"checkpoint_interval": 1})
    model = {"source": "hugging_face", "path": str(random_checkpoint(path / "model"))}
    config["models"] = {"qwen3": {**model, "prompt": "base", "dtype": "float32"}}
    (path / "verifier.py").write_text(VERIFIER)
    config["problems"] = {**config["problems"], "verifier": str(path / "verifier.py")}
    # 512 tokens with all logits in float32 take 297 MiB.
    config["execution"]["cluster"] = {**config["execution"]["cluster"], "tokens_per_device": 512}
    return StudyDirectory(path, config)


@pytest.mark.long
def test_a_real_vocabulary_is_trained_sampled_saved_and_merged(study: StudyDirectory) -> None:
    pytest.importorskip("verl", reason="verl is not in this environment: make test-engines")
    pytest.importorskip("vllm", reason="vLLM is not in this environment: make test-engines")
    study.snakemake(*(f"results/{name}/manifest.json" for name in ("base/qwen3", "problems/train", "verifiers/train")))
    place = study.write_run(RUN, checkpoints_kept=STEPS)
    saved, error = train_until_killed(study, place, 2)
    assert saved < STEPS, error
    again = study.train(place)
    assert again.returncode == 0, again.stderr[-2000:] + last_words(place)
    assert f"{RUN}: continues after step {saved} of {STEPS}" in again.stdout
    details = verify_outputs(place / "manifest.json", "run").details
    assert details["steps"] == STEPS and details["merged_log_prob_difference"] < 0.05
    assert read_json(place / "checkpoint" / "config.json")["vocab_size"] == VOCABULARY
    metrics = pd.read_parquet(place / "metrics.parquet")
    assert metrics["step"].tolist() == list(range(1, STEPS + 1))
    # vLLM and the trainer compute in float32, and nearly every token is as likely as any other.
    assert (metrics["rollout_log_prob_difference_mean"] < 1e-4).all() and (metrics["entropy"] > 11.0).all()
    assert (metrics["grad_norm"] > 0).all() and metrics["reward_mean"].between(0.2, 0.8).all()
    wait_for_end_of_processes(place)
