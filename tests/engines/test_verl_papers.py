"""The papers' studies against real verl: its configuration, its checks, its registries. No GPU, no model, no data."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import pytest

from evals.core.yaml_file import read_yaml
from rlvr.study.study import Study
from tests.commands import ended

pytest.importorskip("verl", reason="verl is not in this environment: make test-engines")

ROOT = Path(__file__).parents[2]
PAPERS = sorted((ROOT / "config" / "papers").glob("*.yaml"))


def write_runs(study: Study, directory: Path) -> list[str]:
    """run.json and cluster.json of every run of the study, as the workflow writes them."""
    files = []
    for run in study.trained_runs:
        place = directory / "results" / "runs" / run.run
        place.mkdir(parents=True)
        (place / "run.json").write_text(json.dumps(study.resolved_run(run.run)), encoding="utf-8")
        (place / "cluster.json").write_text(json.dumps(study.cluster(run.run)), encoding="utf-8")
        files.append(str(place / "run.json"))
    return files


def validate(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, in the directory that the study works in."""
    return ended(
        [sys.executable, "-m", "rlvr", "verl", "validate", *arguments],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def test_the_environment_for_gpus_has_the_versions_that_verl_names() -> None:
    content = read_yaml(ROOT / "workflow" / "envs" / "verl.yaml")
    pinned = set(content["dependencies"][-1]["pip"])
    named = {line.split(";")[0].strip() for line in requires("verl") or [] if 'extra == "vllm"' in line}
    exact = {line for line in named if "==" in line}
    assert {"vllm==0.24.0", "torch==2.11.0", "transformers==5.9.0"} <= exact <= pinned
    assert any(line.startswith("flash-attn==2.8.3") for line in requires("verl") or [])


@pytest.fixture(scope="module")
def validated(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[dict[str, list[str]], subprocess.CompletedProcess[str]]:
    """Every paper's runs, and what one command said of all of them: importing verl takes longer than the rest."""
    directory = tmp_path_factory.mktemp("papers")
    files = {path.stem: write_runs(Study.read(path), directory / path.stem) for path in PAPERS}
    return files, validate(directory, *(file for of_paper in files.values() for file in of_paper))


@pytest.mark.parametrize("paper", [path.stem for path in PAPERS])
def test_verl_accepts_every_run_of_the_paper(
    paper: str, validated: tuple[dict[str, list[str]], subprocess.CompletedProcess[str]]
) -> None:
    files, answer = validated
    before = list(files)[: list(files).index(paper)]
    start = sum(len(files[each]) for each in before)
    said = [line for line in answer.stdout.splitlines() if ": verl accepts the launch" in line]
    accepted = said[start : start + len(files[paper])]
    runs = [Path(file).parent.name for file in files[paper]]
    assert [line.split(":")[0] for line in accepted] == runs != [], answer.stderr[-2000:]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"training": {"updates_per_step": 3}}, "training.updates_per_step: is 3; accepted: a divisor of"),
        ({"dtype": "float8"}, "dtype: is 'float8'; accepted: bfloat16, float32"),
    ],
)
def test_a_misfit_ends_in_one_line(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    study = Study.read(ROOT / "config" / "papers" / "delta.yaml")
    file = Path(write_runs(study, tmp_path)[0])
    content = json.loads(file.read_text(encoding="utf-8"))
    for key, value in change.items():
        content[key] = {**content[key], **value} if isinstance(value, dict) else value
    file.write_text(json.dumps(content), encoding="utf-8")
    answer = validate(tmp_path, str(file))
    assert answer.returncode == 2, answer.stdout + answer.stderr[-2000:]
    assert answer.stderr.count("\n") == 1 and answer.stderr.startswith("error: ")
    assert message in answer.stderr


UNKNOWN = {
    "reward.reward_manager.name": "Unknown reward manager: no_such_name",
    "trainer.no_such_key": "Could not override 'trainer.no_such_key'",
}


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What became of a launch with one unknown name, by the key that has it."""
    directory = tmp_path_factory.mktemp("names")
    code = (
        "import dataclasses, json, sys\n"
        "from pathlib import Path\n"
        "from evals.core.errors import UserError\n"
        "from rlvr.engines.verl.checks import compose_config\n"
        "from rlvr.engines.verl.launch import Places, launch\n"
        "from evals.core.run_spec import Cluster, VerlRun\n"
        "path, answers = Path(sys.argv[1]), {}\n"
        "places = Places(path.parent, Path.cwd(), Path(sys.argv[2]), path.parent / 'state')\n"
        "found = launch(VerlRun.read(path), Cluster.read(path.parent / 'cluster.json'), places)\n"
        "for key in sys.argv[4:]:\n"
        "    overrides = {**found.overrides, key: 'no_such_name'}\n"
        "    try:\n"
        "        compose_config(dataclasses.replace(found, overrides=overrides))\n"
        "    except UserError as error:\n"
        "        answers[key] = str(error)\n"
        "Path(sys.argv[3]).write_text(json.dumps(answers))\n"
    )
    study = Study.read(ROOT / "config" / "papers" / "delta.yaml")
    file, answers = write_runs(study, directory)[0], directory / "answers.json"
    done = ended(
        [sys.executable, "-c", code, file, str(ROOT), str(answers), *UNKNOWN],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, str] = json.loads(answers.read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("key", UNKNOWN)
def test_a_name_that_verl_does_not_know_is_refused(key: str, refusals: dict[str, str]) -> None:
    assert refusals[key].startswith(f"verl: {UNKNOWN[key]}")
