"""A study trained by verl on two nodes of a real Slurm: requeued, continued after a power cut, with a Ray of its own.

Scripts stand for verl and the GPUs; Ray is the real one. It runs where root and Slurm's programs are there.
"""

import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from evals.core.manifest import verify_outputs
from tests.slurm_cluster import STEPS, SlurmCluster, StudyOnSlurm, processes_in

ATTEMPTS = 3
VERL = f"""\
#!{sys.executable}
# python -m verl.trainer.main_ppo OVERRIDES, and what merges, without verl: the policy stays the base model.
# Every attempt but the last waits for its end after one step. The file `attempts` has the steps that each went on from.
import os, shutil, signal, sys
from pathlib import Path
from evals.core.files import write_json
from rlvr.engines.verl.checkpoints import OPTIMIZER, TRACKER, record
from rlvr.engines.verl.metrics import write_step
if "merge" in sys.argv:
    shutil.copytree("results/base/tiny/checkpoint", sys.argv[sys.argv.index("--target_dir") + 1])
    sys.exit()
if "rlvr.engines.verl.checkpoints" in sys.argv:
    sys.exit()
if "rlvr.engines.verl.ray_nodes" in sys.argv:
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
states = Path(dict(word.split("=", 1) for word in sys.argv if "=" in word)["trainer.default_local_dir"])
tracker, attempts = states / TRACKER, Path("attempts")
done = int(tracker.read_text()) if tracker.exists() else 0
before = attempts.read_text() if attempts.exists() else ""
for step in range(done + 1, {STEPS} + 1):
    state = states / f"global_step_{{step}}"
    (state / "actor").mkdir(parents=True)
    (state / "actor" / "shard.pt").write_text("weights")
    write_json(state / "actor" / OPTIMIZER, {{"name": "AdamW"}})
    record(state, step)
    row = {{"reward_mean": 0.5, "tokens_generated": 10, "seconds_step": 1.0, "optimizer_steps": 2}}
    write_step(states, step, row)
    attempts.write_text(f"{{before}}{{done}} ")
    if len(before.split()) < {ATTEMPTS} - 1:
        signal.pause()
"""
NVIDIA_SMI = "#!/bin/sh\necho 580.65.06\n"


@pytest.fixture
def study_of_two_nodes(tmp_path: Path, slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[StudyOnSlurm]:
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))  # instead of a user's own, in the home directory
    (tmp_path / "bin").mkdir()
    for name, script in {"python": VERL, "nvidia-smi": NVIDIA_SMI}.items():
        (tmp_path / "bin" / name).write_text(script)
        (tmp_path / "bin" / name).chmod(0o755)
    cluster = {"platform": "cuda", "nodes": 2, "gpus_per_node": 1, "tokens_per_device": 4096}
    python = str(tmp_path / "bin" / "python")
    study = StudyOnSlurm("verl_smoke.yaml", tmp_path, slurm, training_python=python, cluster=cluster)
    yield study
    study.end()


def test_a_requeue_and_a_power_cut(study_of_two_nodes: StudyOnSlurm, slurm: SlurmCluster, tmp_path: Path) -> None:
    study = study_of_two_nodes
    place = study.run / "verl"

    def attempts() -> list[int]:
        file = place / "attempts"
        return [int(step) for step in file.read_text().split()] if file.exists() else []

    process = study.start()
    study.wait(lambda: len(attempts()) == 1, process)
    ((job, _),) = slurm.jobs("RUNNING").items()
    first = processes_in(place)
    slurm.ask("scontrol", "requeue", job)
    study.wait(lambda: len(attempts()) == 2, process)
    assert first and not any(one.is_running() for one in first)
    slurm.cut_power("node2")  # verl runs on the other one, the first of the job
    study.wait(lambda: slurm.jobs("PENDING"), process)
    assert processes_in(place) == []
    slurm.switch_on("node2")
    assert study.wait_for_end(process) == 0, study.output()
    assert attempts() == [0, 1, 2]
    assert verify_outputs(study.run / "manifest.json", "run").details["steps"] == STEPS
    assert study.output().count("finished: train") == 1 and "failed: train" not in study.output()
    assert not slurm.jobs() and processes_in(tmp_path) == []
