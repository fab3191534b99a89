"""Real verl trains on two nodes: one job of a real Slurm, Ray's own command on both, a rank and a vLLM on each.

It runs where root and Slurm's programs are there.
"""

from __future__ import annotations

import secrets
import shlex
import sys
from pathlib import Path

import pandas as pd
import pytest

from evals.core.manifest import verify_outputs
from tests.engines.study_directory import StudyDirectory, check_merged, environment, last_words, smoke_study
from tests.slurm_cluster import SlurmCluster

RUN, STEPS = "tiny-dapo-s1", 2

TRAINING = """\
# A node of this machine has no GPU that Ray could find, and its Ray is not started by verl.
import runpy
from dataclasses import replace
from rlvr.engines.verl import launch, processes, train
on_every_node, launch_of = processes.on_every_node, launch.launch
def with_devices(*given):
    words = on_every_node(*given)
    place = words.index("--")
    return [*words[:place], "--num-gpus=1", "--num-cpus=8", *words[place:]]
def without_ray(*given):
    found = launch_of(*given)
    of_ray = [name for name in found.overrides if ".ray_init." in name and ".runtime_env." not in name]
    return replace(found, overrides={name: found.overrides[name] for name in found.overrides if name not in of_ray})
train.on_every_node, train.launch = with_devices, without_ray
runpy.run_module("rlvr", run_name="__main__", alter_sys=True)
"""


@pytest.mark.long
def test_a_training_of_two_nodes(tmp_path: Path, slurm: SlurmCluster) -> None:
    pytest.importorskip("verl", reason="verl is not in this environment: make test-engines")
    pytest.importorskip("vllm", reason="vLLM is not in this environment: make test-engines")
    study = StudyDirectory(tmp_path / "study", smoke_study(training={"steps": STEPS}))
    study.path.mkdir()
    study.snakemake("results/base/tiny/manifest.json", "results/problems/train/manifest.json")
    place = study.write_run(RUN, nodes=2)
    (study.path / "training.py").write_text(TRAINING)
    variables = {name: environment()[name] for name in ("PYTHONPATH", "PATH")}
    variables |= {"RAY_AUTH_TOKEN": secrets.token_hex(32), "OMP_NUM_THREADS": "1"}
    words = ["env", *(f"{name}={value}" for name, value in variables.items())]
    words += [sys.executable, "training.py", "train", str(place / "run.json"), "--python", sys.executable]
    options = ["--parsable", "--nodes=2", "--cpus-per-task=8", "--mem=100000", f"--chdir={study.path}"]
    slurm.ask("sbatch", *options, f"--output={study.path}/output", "--wrap", shlex.join(words))
    slurm.wait_until_idle(lambda: last_words(place))
    said = (study.path / "output").read_text(errors="replace")
    details = verify_outputs(place / "manifest.json", "run").details if (place / "manifest.json").exists() else None
    assert details is not None, said[-2000:] + last_words(place)
    assert details["steps"] == STEPS and details["devices"] == 2
    check_merged(study, place, STEPS)
    assert pd.read_parquet(place / "metrics.parquet")["step"].tolist() == list(range(1, STEPS + 1))
    log = (place / "verl" / "verl.log").read_text(errors="replace")
    assert all(address in log for address in slurm.addresses.values())  # of Ray's workers on each
