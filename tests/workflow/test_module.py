"""The workflow as a part of another one, and in the process of a job on another machine."""

import json
import os
import re
import shutil
import sys
from itertools import count
from pathlib import Path

import pytest
import yaml

from evals.core.files import fingerprint, sha256_file, write_json
from evals.core.yaml_file import read_yaml
from rlvr.study.machine import OURS, software
from rlvr.study.study import Study
from rlvr.study.study_file import read_study
from rlvr_board.submission import draw_cells
from tests.commands import ended, run_command
from tests.workflow.conftest import REPOSITORY, Project, commands_of, jobs_in
from tests.workflow.snakemake_fork import run_in_fork
from tests.workflow.test_evaluate_models import SAMPLES, SETTINGS

OTHER = """\
module rlvr:
    snakefile: "{root}/Snakefile"
    config: {content}
use rule * from rlvr as rlvr_*
rule mine:
    input: "results/tables/main.md"
    output: "lines.txt"
    shell: "wc -l < {{input}} > {{output}}"
rule both:
    output: "both.txt"
    shell: "echo one > {{output}}; echo two >> {{output}}"
"""
STUDY = 'dict(yaml.safe_load(open("{root}/config/smoke.yaml")), seeds={{"at_most": 4, "looks": [2, 4], "margin": 2.0}})'


def test_another_workflow_takes_the_rules_as_a_module(project_copy: Project, tmp_path: Path) -> None:
    """Looks included; a prefix of all shell commands would reach the other workflow's."""
    other, root = tmp_path / "other", project_copy.root
    other.mkdir()
    module = OTHER.format(root=root, content=STUDY.format(root=root))
    (other / "Snakefile").write_text(f"import yaml\n{module}")
    words = ["--dry-run", "--cores", "1", "--scheduler", "greedy"]
    planned = run_in_fork(["mine", *words], other, commands_of(project_copy.root))
    assert planned.returncode == 0, planned.stderr
    jobs = jobs_in(planned.stdout + planned.stderr)
    trained = {f"tiny-{name}-s{seed}" for name in ("dapo", "delta") for seed in (1, 2)}
    trained |= {f"tiny-dapo_query_preserved_reward_balanced-s{seed}" for seed in (1, 2)}
    assert {f"rlvr_train {run}" for run in trained} == {job for job in jobs if job.startswith("rlvr_train")}
    assert "mine" in jobs
    command = [sys.executable, "-m", "snakemake", "both", "--cores", "1", "--scheduler", "greedy"]
    ran = ended(command, cwd=other, env=commands_of(project_copy.root))
    assert ran.returncode == 0, ran.stderr
    assert (other / "both.txt").read_text() == "one\ntwo\n"
    (other / "Snakefile").write_text("import yaml\n" + module.replace("    config:", '    prefix: "sub"\n    config:'))
    refused = run_in_fork(["mine", *words], other, commands_of(project_copy.root))
    assert refused.returncode == 1 and "\nerror: module: prefix or replace_prefix: " in f"\n{refused.stderr}"


def test_the_process_of_a_job_on_a_cluster_plans_its_job_alone(project_copy: Project) -> None:
    """Studies of config/studies that cannot be read are in nobody's way, and nothing is said of the plan."""
    for path in (project_copy.root / "config/studies").glob("*.yaml"):
        path.write_text("a: [\n")
    target = "results/runs/tiny-dapo-s1/manifest.json"
    words = [target, "--dry-run", "--mode", "remote", "--allowed-rules", "train", "base_model", "base_corpus"]
    answer = project_copy.snakemake(*words, "draw_problems", "--cores", "1")
    assert answer.returncode == 0, answer.stderr
    assert "train tiny-dapo-s1" in jobs_in(answer.stdout + answer.stderr)
    assert "hours" not in answer.stderr and "Stops when certain" not in answer.stderr


def test_a_change_on_the_command_line_alone_is_one_of_the_default_study(project_copy: Project) -> None:
    """Without a file of a study there is nothing else in the configuration, as in another workflow's module."""
    words = ["runs", "--dry-run", "--cores", "1", "--scheduler", "greedy", "--config", "seeds=[1, 2]"]
    planned = run_in_fork(words, project_copy.root, commands_of(project_copy.root))
    assert planned.returncode == 0, planned.stderr
    methods = read_yaml(project_copy.root / "config/config.yaml")["methods"]
    assert re.search(r"^train +(\d+)$", planned.stdout + planned.stderr, re.MULTILINE)[1] == str(2 * len(methods))


# Replays: runs of a submission are made again from nothing, and a forged checkpoint is found.

FORGED = "tiny-delta-s1"


def forge(results: Path, path: Path) -> None:
    """Change a byte of a file, and every manifest on the way, as somebody would who wants ``verify`` to pass."""
    content = bytearray(path.read_bytes())
    changed = {sha256_file(path): ""}
    content[-1] ^= 1
    path.write_bytes(content)
    changed = dict.fromkeys(changed, sha256_file(path))
    while changed:
        before, now = changed.popitem()
        for manifest in results.rglob("*manifest.json"):
            text = manifest.read_text()
            if before in text:
                was = sha256_file(manifest)
                rest = json.loads(text.replace(before, now))
                rest.pop("sha256")
                write_json(manifest, rest | {"sha256": fingerprint(rest)})
                changed[was] = sha256_file(manifest)


def test_a_replay_finds_a_forgery(finished_copy: Project, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    results = finished_copy.root / "results"
    forge(results, results / "runs" / FORGED / "checkpoint/model.safetensors")
    assert run_command("verify", finished_copy.root) == 0
    file = tmp_path / "study.json"
    assert run_command("submission", finished_copy.root, "--out", file) == 0
    cells = list(json.loads(file.read_text())["cells"])
    seed = next(str(n) for n in count() if draw_cells(cells, 2, str(n))[1] == FORGED)
    honest = draw_cells(cells, 2, seed)[0]
    capfd.readouterr()
    assert run_command("replay", file, "--cells", 2, "--seed", seed, "--cores", 1) == 2
    said = capfd.readouterr()
    assert f"{honest}: the same bytes in 9 files" in said.out and "made again: 2 of 6 cells; " in said.out
    error = said.err.splitlines()[-1]
    assert error.startswith(f"error: not what the study says: 1 of 2 cells: {FORGED}: ")
    assert f"runs/{FORGED}/checkpoint/model.safetensors has other bytes here" in error


# ``snakemake --sdm``: jobs that need verl or vLLM run in an environment of conda's, all others where Snakemake does.

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
REAL "${@//\"backend\":\"vllm\"/\"backend\":\"transformers\"}" && sed -i s/transformers/vllm/ "$5"/*/manifest.json
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
