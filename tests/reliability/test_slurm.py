"""A study on a real Slurm of two nodes: submitted, requeued, continued after a power cut, cancelled with Snakemake.

It runs where root, Slurm's programs and Snakemake's executor for it are there (docs/paper_scale.md says how). The
training of one node is the local engine's. In that of two, scripts stand for verl, Ray and the GPUs.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from evals.core.manifest import verify_outputs
from rlvr.study.study_file import read_study_file
from tests.slurm_cluster import NODES, RAY, SlurmCluster, processes_in, reason_for_none, slurm_cluster

REPOSITORY = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 1200
TRAINING, STEPS = "rule_train_wildcards_tiny-dapo-s1", 60
ATTEMPTS = 3
VERL = f"""\
#!{sys.executable}
# python -m verl.trainer.main_ppo OVERRIDES, and what merges, without verl: the policy stays the base model.
# Every attempt but the last waits for its end after one step. The file `attempts` has the steps that each went on from.
import os, shutil, signal, sys
from pathlib import Path
from rlvr.engines.verl.checkpoints import TRACKER, record
from rlvr.engines.verl.metrics import write_step
if "merge" in sys.argv:
    shutil.copytree("results/base/tiny/checkpoint", sys.argv[sys.argv.index("--target_dir") + 1])
    sys.exit()
if "rlvr.engines.verl.checkpoints" in sys.argv:
    sys.exit()
states = Path(dict(word.split("=", 1) for word in sys.argv if "=" in word)["trainer.default_local_dir"])
tracker, attempts = states / TRACKER, Path("attempts")
done = int(tracker.read_text()) if tracker.exists() else 0
before = attempts.read_text() if attempts.exists() else ""
for step in range(done + 1, {STEPS} + 1):
    state = states / f"global_step_{{step}}"
    (state / "actor").mkdir(parents=True)
    (state / "actor" / "shard.pt").write_text("weights")
    record(state, step)
    row = {{"reward_mean": 0.5, "tokens_generated": 10, "seconds_step": 1.0, "optimizer_steps": 2}}
    write_step(states, step, row)
    attempts.write_text(f"{{before}}{{done}} ")
    if len(before.split()) < {ATTEMPTS} - 1:
        signal.pause()
"""
NVIDIA_SMI = "#!/bin/sh\necho 580.65.06\n"

if find_spec("snakemake_executor_plugin_slurm") is None:
    pytest.skip("snakemake-executor-plugin-slurm is not installed", allow_module_level=True)
if (reason := reason_for_none()) is not None:
    pytest.skip(reason, allow_module_level=True)


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with slurm_cluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


class Study:
    """A study in ``config`` cut down to one training, which saves its state after every step.

    Programs in ``bin`` of the directory are found by its jobs.
    """

    def __init__(self, config: str, directory: Path, slurm: SlurmCluster, **execution: Any) -> None:
        study = read_study_file(REPOSITORY / "config" / config)
        study |= {"seeds": [1], "benchmarks": ["chain_3"], "methods": {"dapo": {}}}
        study["models"]["tiny"]["training"]["steps"] = 10
        study["training"]["steps"] = STEPS
        study["execution"] |= {"checkpoint_interval": 1, **execution}
        self.config = directory / "slurm.yaml"
        self.config.write_text(yaml.safe_dump(study))
        self.run = directory / "results/runs/tiny-dapo-s1"
        self.started: list[subprocess.Popen[bytes]] = []
        self._directory, self._slurm = directory, slurm

    def start(self) -> subprocess.Popen[bytes]:
        """Start Snakemake with the profile; without a database of accounts, squeue alone knows how jobs ended."""
        asked = ["--slurm-status-command", "squeue", "--slurm-init-seconds-before-status-checks", "2"]
        words = ["--directory", str(self._directory), "--configfile", str(self.config), "--profile", "profiles/slurm"]
        with open(self._directory / "output.log", "ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "rlvr.study.launch", "--", "runs", *words, *asked],
                cwd=REPOSITORY,
                env={**os.environ, **self._slurm.environment, "PATH": f"{os.environ['PATH']}:{self._directory}/bin"},
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background job ignores it
            )
        self.started.append(process)
        return process

    def end(self) -> None:
        """End what a test that has failed left."""
        for process in self.started:
            process.kill()
            process.wait()
        self._slurm.ask("scancel", "--user=root")

    def output(self) -> str:
        log = self._directory / "output.log"
        return log.read_text() if log.exists() else ""

    def steps(self) -> int:
        """The steps that the training has told of."""
        try:
            return int(json.loads((self.run / "progress.json").read_text())["step"])
        except FileNotFoundError:
            return 0

    def wait(self, condition: Callable[[], object], process: subprocess.Popen[bytes]) -> None:
        """Until ``condition`` holds, while Snakemake runs."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert process.poll() is None and time.monotonic() < deadline, self.output()
            time.sleep(0.1)

    def wait_for_training(self, process: subprocess.Popen[bytes], restarts: int = 0) -> tuple[str, str]:
        """Slurm's number of the training that has done a step after so many restarts, and its node."""
        self.wait(lambda: (restarts, TRAINING) in self._slurm.jobs("RUNNING").values(), process)
        done = self.steps()
        self.wait(lambda: self.steps() > done, process)
        ((job, _),) = self._slurm.jobs("RUNNING").items()
        return job, self._slurm.node_of(job)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory, slurm: SlurmCluster) -> Iterator[Study]:
    study = Study("smoke.yaml", tmp_path_factory.mktemp("study"), slurm)
    yield study
    study.end()


@pytest.fixture
def study_of_two_nodes(tmp_path: Path, slurm: SlurmCluster) -> Iterator[Study]:
    (tmp_path / "bin").mkdir()
    for name, script in {"python": VERL, "ray": RAY, "nvidia-smi": NVIDIA_SMI}.items():
        (tmp_path / "bin" / name).write_text(script)
        (tmp_path / "bin" / name).chmod(0o755)
    cluster = {"platform": "cuda", "nodes": 2, "gpus_per_node": 1, "tokens_per_device": 4096}
    python = str(tmp_path / "bin" / "python")
    study = Study("verl_smoke.yaml", tmp_path, slurm, training_python=python, cluster=cluster)
    yield study
    study.end()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_slurm_s_jobs_end_with_snakemake(number: signal.Signals, study: Study, slurm: SlurmCluster) -> None:
    process = study.start()
    study.wait_for_training(process)
    process.send_signal(number)
    assert process.wait(PATIENCE_SECONDS) != 0
    deadline = time.monotonic() + PATIENCE_SECONDS
    while slurm.jobs():
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert study.steps() < STEPS and not (study.run / "manifest.json").exists()


def test_a_training_goes_on_after_a_requeue_and_a_power_cut(study: Study, slurm: SlurmCluster) -> None:
    begun = study.output().count("finished: train")
    process = study.start()
    job, node = study.wait_for_training(process)
    slurm.ask("scontrol", "requeue", job)
    again, node = study.wait_for_training(process, restarts=1)
    assert again == job
    slurm.cut_power(node)
    last, other = study.wait_for_training(process, restarts=2)
    assert last == job and other != node
    assert process.wait(PATIENCE_SECONDS) == 0, study.output()
    slurm.switch_on(node)
    slurm.wait_for_nodes()
    manifest = verify_outputs(study.run / "manifest.json", "run")
    assert manifest.details["steps"] == STEPS
    # Slurm began it three times, Snakemake once.
    assert study.output().count("finished: train") == begun + 1 and "failed: train" not in study.output()
    assert not slurm.jobs()


def test_a_training_of_two_nodes_goes_on_after_a_requeue_and_a_power_cut_and_leaves_nothing(
    study_of_two_nodes: Study, slurm: SlurmCluster, tmp_path: Path
) -> None:
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
    assert process.wait(PATIENCE_SECONDS) == 0, study.output()
    assert attempts() == [0, 1, 2]
    assert verify_outputs(study.run / "manifest.json", "run").details["steps"] == STEPS
    assert study.output().count("finished: train") == 1 and "failed: train" not in study.output()
    assert [sorted(there.read_text().split()) for there in place.glob("there.*")] == [sorted(NODES)] * ATTEMPTS
    assert not slurm.jobs() and processes_in(tmp_path) == []
