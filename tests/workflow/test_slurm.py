"""Six jobs of the smoke study through a real Slurm, one of which is cancelled, one without memory and one requeued.

It runs where root and Slurm's programs are there, as in continuous integration (.ci/run).
"""

import re
from pathlib import Path

import pytest

from evals.core.manifest import verify_outputs
from tests.slurm_cluster import PATIENCE_SECONDS, StudyOnSlurm, reason_for_none, slurm_cluster

if (reason := reason_for_none()) is not None:
    pytest.skip(reason, allow_module_level=True)

RUN, STEPS = "tiny-dapo-s1", 20
TARGETS = (f"results/grades/{RUN}/chain_3/manifest.json", "results/samples/tiny-base/chain_3/manifest.json")
SUBMITTED = {"base_corpus tiny", "base_model tiny", f"train {RUN}", f"sample {RUN}", "sample tiny-base", f"grade {RUN}"}


def test_a_study_goes_on_after_a_scancel_a_lack_of_memory_and_a_requeue(tmp_path: Path) -> None:
    (tmp_path / "slurm").mkdir()
    (tmp_path / "study").mkdir()
    with slurm_cluster() as slurm:
        study = StudyOnSlurm("smoke.yaml", tmp_path / "study", slurm, steps=STEPS)
        try:
            process = study.start(*TARGETS, memory={"base_corpus": "30*attempt**6"})
            cancelled, _ = study.wait_for_training(process)
            slurm.ask("scancel", cancelled)
            study.wait(lambda: "CANCELLED" in study.output(), process)
            again, _ = study.wait_for_training(process)
            slurm.ask("scontrol", "requeue", again)
            assert process.wait(PATIENCE_SECONDS) == 0, study.output()
            said = study.output()
        finally:
            study.end()
    finished = re.findall(r"finished: (.*?) after ", said)
    assert len(finished) == len(set(finished)) and set(finished) >= SUBMITTED, said
    failures = re.findall(r"failed: (.*?) after \d+.*?, ([A-Z_]+: .*?\))", said)
    assert [job for job, _ in failures] == ["base_corpus tiny", f"train {RUN}"], said
    assert (
        failures[0][1] == "OUT_OF_MEMORY: its memory ran out (more of it: --set-resources base_corpus:mem_mb=MEGABYTES)"
    )
    assert failures[1][1].startswith("CANCELLED: by somebody's scancel or by the cluster") and again != cancelled
    log = (tmp_path / f"study/results/logs/runs/{RUN}.log").read_text()
    assert re.search(rf"continues after step \d+ of {STEPS}", log), log  # what Slurm began again went on from its state
    manifest = verify_outputs(study.run / "manifest.json", "run")
    assert manifest.details["steps"] == STEPS
