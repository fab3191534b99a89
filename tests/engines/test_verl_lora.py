"""Real verl trains adapters: killed, continued, vLLM samples from the sums, and the checkpoint has the sums.

The reference policy is the one without them.
"""

from __future__ import annotations

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from evals.core.manifest import verify_outputs
from rlvr.engines.verl.adapters import ADAPTERS
from tests.engines.study_directory import (
    StudyDirectory,
    last_words,
    smoke_study,
    train_until_killed,
    wait_for_end_of_processes,
)

METHOD, STEPS = "delta_with_kl", 3
RUN = f"tiny-{METHOD}-s1"
LORA = {"rank": 4, "alpha": 8, "target_modules": ["q_proj", "v_proj", "down_proj"]}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> StudyDirectory:
    training = {"steps": STEPS, "learning_rate": 0.01, "lora": LORA}
    config = smoke_study(training=training, execution={"checkpoint_interval": 1})
    kl = {"name": "loss_term", "coefficient": 0.04, "estimator": "k3"}
    config |= {"methods": {METHOD: {"extends": "delta", "kl": kl}}, "reference_method": METHOD}
    directory = StudyDirectory(tmp_path_factory.mktemp("study"), config)
    directory.snakemake("results/base/tiny/manifest.json", "results/problems/train/manifest.json")
    return directory


@pytest.mark.long
def test_adapters_are_trained_sampled_saved_and_added(study: StudyDirectory) -> None:
    pytest.importorskip("verl", reason="verl is not in this environment: make test-engines")
    pytest.importorskip("vllm", reason="vLLM is not in this environment: make test-engines")
    place = study.write_run(RUN, checkpoints_kept=STEPS)
    saved, error = train_until_killed(study, place, 1)
    assert saved < STEPS, error
    again = study.train(place)
    assert again.returncode == 0, again.stderr[-2000:] + last_words(place)
    assert f"{RUN}: continues after step {saved} of {STEPS}" in again.stdout
    details = verify_outputs(place / "manifest.json", "run").details
    assert details["steps"] == STEPS and details["adapter_update_kept"] > 0.9

    base = study.path / "results" / "base" / "tiny" / "checkpoint"
    states = [next(place.glob(f"state/*/global_step_{step}/actor")) for step in (saved, STEPS)]
    before, factors = (load_file(state / ADAPTERS) for state in states)
    assert all(not torch.equal(before[name], factors[name]) for name in factors)  # it went on, with all of them
    shards = sum(file.stat().st_size for file in states[1].glob("model_*.pt"))
    assert shards < (base / "model.safetensors").stat().st_size  # of adapters alone
    weights, merged = (load_file(path / "model.safetensors") for path in (base, place / "checkpoint"))
    adapted = {name.rsplit("lora_A.", 1)[0] + "weight" for name in factors if "lora_A" in name}
    assert {name.split(".")[-2] for name in adapted} == set(LORA["target_modules"])
    for name, weight in weights.items():
        stem = name.removesuffix("weight")
        added = 2 * factors[f"{stem}lora_B.weight"] @ factors[f"{stem}lora_A.weight"] if name in adapted else 0.0
        assert torch.equal(merged[name], (weight.float() + added).to(torch.bfloat16)), name

    # vLLM has the sums in bfloat16.
    metrics = pd.read_parquet(place / "metrics.parquet")
    assert metrics["step"].tolist() == list(range(1, STEPS + 1))
    assert 0 < metrics["reference_kl"].iloc[0] < metrics["reference_kl"].iloc[-1]
    assert metrics["sampler_difference_mean"].max() < 0.02
    wait_for_end_of_processes(place)
