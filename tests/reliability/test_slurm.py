"""A study on a real Slurm of two nodes: submitted, requeued, continued after a power cut, cancelled with Snakemake.

It runs where root and Slurm's programs are there (docs/paper_scale.md says how).
"""

import signal
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from evals.core.manifest import verify_outputs
from tests.slurm_cluster import PATIENCE_SECONDS, STEPS, SlurmCluster, StudyOnSlurm, reason_for_none, slurm_cluster

REPOSITORY = Path(__file__).resolve().parents[2]
if find_spec("snakemake_executor_plugin_slurm") is None:
    pytest.skip("snakemake-executor-plugin-slurm is not installed", allow_module_level=True)
if (reason := reason_for_none()) is not None:
    pytest.skip(reason, allow_module_level=True)


@pytest.fixture(scope="module")
def slurm() -> Iterator[SlurmCluster]:
    with slurm_cluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory, slurm: SlurmCluster) -> Iterator[StudyOnSlurm]:
    study = StudyOnSlurm("smoke.yaml", tmp_path_factory.mktemp("study"), slurm)
    yield study
    study.end()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_slurm_s_jobs_end_with_snakemake(number: signal.Signals, study: StudyOnSlurm, slurm: SlurmCluster) -> None:
    process = study.start()
    study.wait_for_training(process)
    process.send_signal(number)
    assert process.wait(PATIENCE_SECONDS) != 0
    deadline = time.monotonic() + PATIENCE_SECONDS
    while slurm.jobs():
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert study.steps() < STEPS and not (study.run / "manifest.json").exists()


def test_a_training_goes_on_after_a_requeue_and_a_power_cut(study: StudyOnSlurm, slurm: SlurmCluster) -> None:
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
