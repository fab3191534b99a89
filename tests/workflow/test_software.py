"""``snakemake --sdm``: jobs that need verl or vLLM run in an environment of conda's, all others where Snakemake does.

There is no conda here. A script in its place answers what Snakemake asks, and makes environments whose Python says that
it was called, and samples by another backend than vLLM.
"""

import os
import shutil
import sys
from pathlib import Path

import pytest
import yaml

from rlvr.study.machine import OURS, software
from rlvr.study.study import Study
from rlvr.study.study_file import read_study
from tests.workflow.conftest import REPOSITORY, Project
from tests.workflow.snakemake_fork import run_in_fork
from tests.workflow.test_evaluate_models import SAMPLES, SETTINGS

CONDA = """\
#!/bin/sh
case "$1 $2" in
    "--version ") echo conda 24.7.1 ;;
    "info --json") echo '{"conda_prefix": "PREFIX", "platform": "linux-64"}' ;;
    "config --get") echo '{"get": {"channel_priority": "strict"}}' ;;
    "env create")
        for word; do case "$before" in --file) file=$word ;; --prefix) made=$word ;; esac; before=$word; done
        mkdir -p "$made/bin" && cp PREFIX/python "$made/bin/python" && grep '^name:' "$file" >> PREFIX/made ;;
    "clean -y") ;;
    *) echo "not expected: $*" >&2; exit 1 ;;
esac
"""
PYTHON = r"""#!/bin/bash
echo "$PYTHONPATH: $*" >> PREFIX/called
exec REAL "${@//\"backend\":\"vllm\"/\"backend\":\"transformers\"}"
"""


@pytest.fixture
def conda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the script in the place of conda, which is on the PATH."""
    prefix = tmp_path / "conda"
    (prefix / "bin").mkdir(parents=True)
    (prefix / "bin/conda").write_text(CONDA.replace("PREFIX", str(prefix)))
    (prefix / "bin/activate").write_text('PATH="$1/bin:$PATH"\n')
    (prefix / "python").write_text(PYTHON.replace("PREFIX", str(prefix)).replace("REAL", sys.executable))
    for name in ("bin/conda", "python"):
        (prefix / name).chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join([str(prefix / "bin"), os.environ["PATH"]]))
    return prefix


def test_samples_by_vllm_are_made_in_its_environment(smoke_study: Project, conda: Path, tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    shutil.copytree(smoke_study.root, project.root)
    settings = {**SETTINGS, "evaluation": {**SETTINGS["evaluation"], "backend": "vllm"}}
    study = project.root / "config/by_vllm.yaml"
    study.write_text(yaml.safe_dump(settings, sort_keys=False))
    scores = "results/scores/chain_3.json"
    project.run(scores, "--sdm", "conda", config=study)
    assert (conda / "made").read_text() == "name: rlvr-vllm\n"
    call = (conda / "called").read_text()
    assert call.count("-m rlvr") == 1  # grading and scoring had another Python
    assert call.startswith(str(project.root)) and "-m rlvr sample results/samples/taken-base " in call
    assert (project.root / SAMPLES).is_file()
    # How software came to a machine is no part of a result: neither this nor another text of the file repeats a job.
    assert project.planned(study, scores) == set()
    environment = project.root / "workflow/envs/vllm.yaml"
    environment.write_text("# a comment\n" + environment.read_text())
    again = project.snakemake(scores, "--dry-run", "--sdm", "conda", config=study)
    assert again.returncode == 0 and "Nothing to be done" in again.stdout + again.stderr


def test_a_paper_asks_conda_for_one_environment(conda: Path, tmp_path: Path) -> None:
    paths = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "workflow/progress")])
    delta = REPOSITORY / "config/papers/delta.yaml"
    words = ["--dry-run", "--directory", str(tmp_path / "study"), "--cores", "4", "--configfile", str(delta)]
    answer = run_in_fork([*words, "--sdm", "conda"], REPOSITORY, {**os.environ, "PYTHONPATH": paths})
    said = answer.stdout + answer.stderr
    assert answer.returncode == 0, said[-2000:]
    made = [line for line in said.splitlines() if line.endswith(" will be created.")]
    assert len(made) == 1 and "workflow/envs/verl.yaml" in made[0]
    answer = run_in_fork([*words, "--sdm", "apptainer"], REPOSITORY, {**os.environ, "PYTHONPATH": paths})
    assert answer.returncode == 1 and answer.stderr.splitlines()[-1].startswith("error: --sdm apptainer: ")


def test_a_python_that_is_named_by_its_path_is_taken_as_it_is() -> None:
    def environments(name: str, **execution: str) -> list[object]:
        content = read_study([REPOSITORY / "config" / name], {})
        study = Study.resolve({**content, "execution": {**content["execution"], **execution}}, name)
        made = [software(study, job).conda for job in ("training", "sampling")]
        return [None if conda is OURS.conda else conda for conda in made]

    delta, (_, vllm) = environments("papers/delta.yaml"), environments("evaluate_model.yaml")
    assert delta[0] == delta[1] is not None
    assert vllm not in (None, delta[0])
    assert environments("evaluate_model.yaml", sampling_python=sys.executable) == [None, None]
    for name in ("smoke.yaml", "verl_smoke.yaml"):
        assert environments(name) == [None, None]
