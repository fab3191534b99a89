"""A study on a real Slurm of two nodes: a scancel, a lack of memory, a requeue, a power cut, an end with Snakemake.

It runs where root and Slurm's programs are there, as in continuous integration (.ci/run).
"""

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from evals.core.manifest import verify_outputs
from tests.slurm_cluster import STEPS, SlurmCluster, StudyOnSlurm

pytest.importorskip("snakemake_executor_plugin_slurm")
RUN = "tiny-dapo-s1"
TARGETS = (f"results/grades/{RUN}/manifest.json", "results/samples/tiny-base/manifest.json")
SUBMITTED = {"base_corpus tiny", "base_model tiny", f"train {RUN}", f"sample {RUN}", "sample tiny-base", f"grade {RUN}"}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("study")


@pytest.fixture
def study(request: pytest.FixtureRequest, directory: Path, slurm: SlurmCluster) -> Iterator[StudyOnSlurm]:
    """The one training of a seed; the base model is made once."""
    study = StudyOnSlurm("smoke.yaml", directory, slurm, seed=request.param)
    yield study
    study.end()


@pytest.mark.parametrize("study", [1], indirect=True)
def test_six_jobs_with_a_scancel_a_lack_of_memory_and_a_requeue(study: StudyOnSlurm, slurm: SlurmCluster) -> None:
    process = study.start(*TARGETS, memory={"base_corpus": "30*attempt**6"})
    cancelled, _ = study.wait_for_training(process)
    slurm.ask("scancel", cancelled)
    study.wait(lambda: "CANCELLED" in study.output(), process)
    again, _ = study.wait_for_training(process)
    slurm.ask("scontrol", "requeue", again)
    assert study.wait_for_end(process) == 0, study.output()
    said = study.output()
    finished = re.findall(r"finished: (.*?) after ", said)
    assert len(finished) == len(set(finished)) and set(finished) >= SUBMITTED, said
    failures = re.findall(r"failed: (.*?) after \d+.*?, ([A-Z_]+: .*?\))", said)
    assert [job for job, _ in failures] == ["base_corpus tiny", f"train {RUN}"], said
    assert (
        failures[0][1] == "OUT_OF_MEMORY: its memory ran out (more of it: --set-resources base_corpus:mem_mb=MEGABYTES)"
    )
    assert failures[1][1].startswith("CANCELLED: by somebody's scancel or by the cluster") and again != cancelled
    log = (study.run.parents[1] / f"logs/runs/{RUN}.log").read_text()
    assert re.search(rf"continues after step \d+ of {STEPS}", log), log  # what Slurm began again went on from its state
    assert verify_outputs(study.run / "manifest.json", "run").details["steps"] == STEPS


@pytest.mark.parametrize("study", [2], indirect=True)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_slurm_s_jobs_end_with_snakemake(number: signal.Signals, study: StudyOnSlurm, slurm: SlurmCluster) -> None:
    process, ended = study.start(), study.output().count("Terminating processes")
    study.wait_for_training(process)
    process.send_signal(number)
    study.wait(lambda: study.output().count("Terminating processes") > ended, process)
    process.send_signal(number)  # as `timeout` does, to the process and to its group
    assert study.wait_for_end(process) != 0 and "Traceback" not in study.output()
    slurm.wait_until_idle()
    assert study.steps() < STEPS and not (study.run / "manifest.json").exists()


@pytest.mark.parametrize("study", [2], indirect=True)
def test_a_training_goes_on_after_a_power_cut(study: StudyOnSlurm, slurm: SlurmCluster) -> None:
    begun = study.output().count("finished: train")
    process = study.start()
    job, node = study.wait_for_training(process)
    slurm.cut_power(node)
    again, other = study.wait_for_training(process, restarts=1)
    assert again == job and other != node
    assert study.wait_for_end(process) == 0, study.output()
    slurm.switch_on(node)
    slurm.wait_for_nodes()
    assert verify_outputs(study.run / "manifest.json", "run").details["steps"] == STEPS
    # Slurm began it twice, Snakemake once.
    assert study.output().count("finished: train") == begun + 1
    assert study.output().count("failed: train") == 1  # of the first seed
    assert not slurm.jobs()
