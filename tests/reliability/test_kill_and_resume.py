"""End a study without warning, again and again: it goes on, repeats nothing finished, and ends with the same bytes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from evals.core.files import sha256_file
from tests.commands import ended

REPOSITORY = Path(__file__).resolve().parents[2]
RUNS = ("tiny-dapo-s1", "tiny-dapo_query_preserved_reward_balanced-s1")
PATIENCE_SECONDS = 3600
POINTS = 3
"""Of different kinds; ``benchmarks/torture.py`` does hundreds, of all kinds, of whole studies."""
TARGET = "results/comparisons.json"
"""Behind it are tables, figures and pages, half of all jobs."""


class Study:
    """A small study in a directory of its own, started as ``make reproduce`` starts it."""

    def __init__(self, directory: Path, config: Path) -> None:
        directory.mkdir(exist_ok=True)
        self.results = directory / "results"
        self._directory = directory
        self._config = config

    def start(self, *targets: str) -> subprocess.Popen[bytes]:
        """Start in a process group of its own, so that the whole of it can be killed."""
        arguments = ["--directory", str(self._directory), "--configfile", str(self._config), "--cores", "2"]
        with open(self._directory / "output.log", "ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "rlvr.study.launch", "--", *targets, *arguments],
                cwd=REPOSITORY,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def output(self) -> str:
        return (self._directory / "output.log").read_text()

    def wait_for(self, progress: Path, process: subprocess.Popen[bytes]) -> None:
        """Until a run has told of a step."""
        while not progress.is_file():
            assert process.poll() is None, self.output()
            time.sleep(0.02)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The smoke study with one seed, one benchmark and two methods."""
    study = yaml.safe_load((REPOSITORY / "config/smoke.yaml").read_text())
    study |= {"seeds": [1], "benchmarks": ["chain_3"]}
    study["methods"] = {"dapo": {}, "dapo_query_preserved_reward_balanced": {}}
    study["training"]["steps"] = 12
    study["execution"]["checkpoint_interval"] = 2
    study["evaluation"]["samples_per_problem"] = 8
    path = tmp_path_factory.mktemp("config") / "kill.yaml"
    path.write_text(yaml.safe_dump(study))
    return path


@pytest.fixture(scope="module")
def tortured(tmp_path_factory: pytest.TempPathFactory, config: Path) -> tuple[Path, dict[str, Any]]:
    """An undisturbed study, and what some points of ``benchmarks/torture.py`` found, which does hundreds."""
    place = tmp_path_factory.mktemp("torture")
    options = ["--points", str(POINTS), "--seed", "3", "--config", str(config)]
    command = [sys.executable, "benchmarks/torture.py", TARGET, *options]
    answer = ended([*command, "--directory", str(place)], cwd=REPOSITORY)
    assert answer.stdout, answer.stderr
    return place / "torture/undisturbed", json.loads(answer.stdout)


def test_ended_in_every_way_at_random_points(tortured: tuple[Path, dict[str, Any]]) -> None:
    found = tortured[1]
    faults = {name: found[name] for name in ("differing", "made_again", "left_over", "tracebacks") if found[name]}
    # Whole, and last in the output: pytest shortens what an assertion compares.
    if faults:
        pytest.fail("\n".join([json.dumps({"each": found["each"]}), json.dumps(faults, indent=2)]), pytrace=False)
    assert found["points"] == POINTS and len({point["kind"] for point in found["each"]}) == POINTS
    assert found["files_compared"] > 15


def before_training(tortured: tuple[Path, dict[str, Any]], place: Path, config: Path, models: str = "runs") -> Study:
    """A copy of the finished study whose runs, or base model, are not trained yet."""
    shutil.copytree(tortured[0], place)
    shutil.rmtree(place / "results" / models)
    return Study(place, config)


def test_an_orphan_disturbs_nothing(tmp_path: Path, config: Path, tortured: tuple[Path, dict[str, Any]]) -> None:
    """Only snakemake is killed; its training processes live on, and the next start has to wait for them."""
    study = before_training(tortured, tmp_path / "study", config)
    checkpoints = [f"runs/{run}/checkpoint/model.safetensors" for run in RUNS]
    targets = [f"results/runs/{run}/manifest.json" for run in RUNS]
    process = study.start(*targets)
    study.wait_for(study.results / f"runs/{RUNS[0]}/progress.json", process)
    jobs = [job.name() for job in psutil.Process(process.pid).children()]
    assert jobs and "bash" not in jobs  # no shell stands between Snakemake and a job, to be killed alone
    process.send_signal(signal.SIGSTOP)  # or it may be done before the second one looks
    second = study.start(*targets)  # meanwhile, somebody starts the study a second time
    assert second.wait(timeout=PATIENCE_SECONDS) == 1
    assert "runs another study here" in study.output()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert study.start(*targets).wait(timeout=PATIENCE_SECONDS) == 0, study.output()
    assert [sha256_file(study.results / path) for path in checkpoints] == [
        sha256_file(tortured[0] / "results" / path) for path in checkpoints
    ]


@pytest.mark.parametrize("place", ["base/tiny", f"runs/{RUNS[0]}"])
def test_sigterm_saves_state(tmp_path: Path, config: Path, tortured: tuple[Path, dict[str, Any]], place: str) -> None:
    """The base model's states are 100 steps apart otherwise."""
    study = before_training(tortured, tmp_path / "study", config, place.partition("/")[0])
    process = study.start()
    progress = study.results / place / "progress.json"
    study.wait_for(progress, process)
    process.terminate()
    assert process.wait(timeout=PATIENCE_SECONDS) != 0
    assert "Traceback" not in study.output() and "failed: " not in study.output()
    step = json.loads(progress.read_text())["step"]
    assert [path.name for path in (study.results / place / "state").glob(f"*/step-{step:08d}")] == [f"step-{step:08d}"]
