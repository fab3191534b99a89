"""A study on a real Slurm of two nodes: submitted, requeued, continued after a power cut, cancelled with Snakemake.

It runs where root, Slurm's programs and Snakemake's executor for it are there (docs/paper_scale.md says how).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from evals.core.manifest import verify_outputs
from tests.slurm_cluster import SlurmCluster, reason_for_none, slurm_cluster

REPOSITORY = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 1200
TRAINING, STEPS = "rule_train_wildcards_tiny-dapo-s1", 60

if find_spec("snakemake_executor_plugin_slurm") is None:
    pytest.skip("snakemake-executor-plugin-slurm is not installed", allow_module_level=True)
if (reason := reason_for_none()) is not None:
    pytest.skip(reason, allow_module_level=True)


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with slurm_cluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


class Study:
    """The smoke study cut down to one training, which saves its state after every step."""

    def __init__(self, directory: Path, slurm: SlurmCluster) -> None:
        study = yaml.safe_load((REPOSITORY / "config/smoke.yaml").read_text())
        study |= {"seeds": [1], "benchmarks": ["chain_3"], "methods": {"dapo": {}}}
        study.pop("diagnostics", None)
        study["models"]["tiny"]["training"]["steps"] = 10
        study["training"]["steps"] = STEPS
        study["execution"]["checkpoint_interval"] = 1
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
                env={**os.environ, **self._slurm.environment},
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background job ignores it
            )
        self.started.append(process)
        return process

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
    study = Study(tmp_path_factory.mktemp("study"), slurm)
    yield study
    for process in study.started:  # after a test that has failed
        process.kill()
        process.wait()
    slurm.ask("scancel", "--user=root")


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
    begun = study.output().count("started: train")
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
    assert study.output().count("started: train") == begun + 1  # Slurm began it three times, Snakemake once
    assert not slurm.jobs()
