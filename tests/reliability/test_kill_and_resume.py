"""Kill a study without warning, again and again: it goes on, redoes nothing finished, and ends with the same bytes."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from base64 import urlsafe_b64decode
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from evals.core.files import sha256_file

REPOSITORY = Path(__file__).resolve().parents[2]
RUNS = ("tiny-dapo-s1", "tiny-dapo_query_preserved_reward_balanced-s1")
PATIENCE_SECONDS = 900


class Study:
    """A small study in a directory of its own, started as ``make reproduce`` starts it."""

    def __init__(self, directory: Path, config: Path) -> None:
        directory.mkdir()
        self.results = directory / "results"
        self._directory = directory
        self._config = config

    def start(self) -> subprocess.Popen[bytes]:
        """Start in a process group of its own, so that the whole of it can be killed."""
        arguments = ["--directory", str(self._directory), "--configfile", str(self._config), "--cores", "2"]
        with open(self._directory / "output.log", "ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "rlvr.study.launch", "--", *arguments],
                cwd=REPOSITORY,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def finish(self) -> None:
        """Run to the end."""
        process = self.start()
        assert process.wait(timeout=PATIENCE_SECONDS) == 0, self.output()

    def output(self) -> str:
        return (self._directory / "output.log").read_text()

    def kill_when(self, condition: Callable[[], bool]) -> None:
        """Start, wait for a moment, and kill -9 the whole process group."""
        process = self.start()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert process.poll() is None, f"ended before it could be killed\n{self.output()}"
            assert time.monotonic() < deadline
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def step(self, run: str) -> int:
        """Training steps that a run has done so far."""
        try:
            return int(json.loads((self.results / "runs" / run / "progress.json").read_text())["step"])
        except (FileNotFoundError, ValueError):
            return 0

    def finished(self) -> dict[Path, int]:
        """Every manifest of a job that Snakemake took note of, with the moment it was written.

        Taking its mark of an unfinished output away is the last thing that Snakemake does with a job: however slow
        the machine, the mark tells whether the job was over when everything was killed.
        """
        marks = (self._directory / ".snakemake" / "incomplete").glob("*")
        unfinished = {self._directory / urlsafe_b64decode(mark.name).decode() for mark in marks}
        manifests = self.results.rglob("manifest.json")
        return {path: path.stat().st_mtime_ns for path in manifests if path not in unfinished}

    def outcome(self) -> dict[str, str]:
        """What must not depend on what happened on the way."""
        paths = [self.results / "runs" / run / "checkpoint" / "model.safetensors" for run in RUNS]
        paths += [self.results / "base/tiny/checkpoint/model.safetensors", self.results / "comparisons.json"]
        paths += sorted((self.results / "scores").glob("chain_3.json"))
        paths += sorted((self.results / "samples").rglob("samples.jsonl"))
        return {path.relative_to(self.results).as_posix(): sha256_file(path) for path in paths}


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
def undisturbed(tmp_path_factory: pytest.TempPathFactory, config: Path) -> Iterator[dict[str, str]]:
    """The outcome of a study that nothing happened to."""
    study = Study(tmp_path_factory.mktemp("undisturbed") / "study", config)
    study.finish()
    yield study.outcome()


def test_killed_at_random_moments_and_during_the_resume(
    tmp_path: Path, config: Path, undisturbed: dict[str, str]
) -> None:
    study = Study(tmp_path / "study", config)
    moment = random.Random(20261121)

    def during_training() -> Callable[[], bool]:
        steps = moment.randrange(1, 10)
        delay = moment.random()  # a fraction of a step further on: in a rollout, an update or a save

        def condition() -> bool:
            if study.step(RUNS[0]) < steps and study.step(RUNS[1]) < steps:
                return False
            time.sleep(delay * 0.2)
            return True

        return condition

    def once_logged(stage: str, delay: float) -> Callable[[], bool]:
        def condition() -> bool:
            if not list((study.results / "logs" / stage).rglob("*.log")):
                return False
            time.sleep(delay)
            return True

        return condition

    kills = [
        once_logged("base", 5 * moment.random()),
        during_training(),
        during_training(),  # during the resume
        once_logged("sample", 2 * moment.random()),
        once_logged("grade", moment.random()),
    ]
    for condition in kills:
        before = study.finished()
        study.kill_when(condition)
        for path, written in before.items():
            assert path.stat().st_mtime_ns == written, f"{path} was finished, and made again"
    before = study.finished()
    study.finish()
    for path, written in before.items():
        assert path.stat().st_mtime_ns == written, f"{path} was finished, and made again"
    assert study.outcome() == undisturbed


def test_an_orphaned_training_cannot_disturb_the_resumed_study(
    tmp_path: Path, config: Path, undisturbed: dict[str, str]
) -> None:
    """Only snakemake is killed; its training processes live on, and the next start has to wait for them."""
    study = Study(tmp_path / "study", config)
    process = study.start()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while study.step(RUNS[0]) < 1 and time.monotonic() < deadline:
        time.sleep(0.02)
    second = study.start()  # meanwhile, somebody starts the study a second time
    assert second.wait(timeout=PATIENCE_SECONDS) == 1
    assert "another study is running" in study.output()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    study.finish()
    assert study.outcome() == undisturbed


def test_ended_in_every_way_at_random_points(tmp_path: Path, config: Path) -> None:
    """Some points of ``benchmarks/torture.py``, which does hundreds."""
    command = [sys.executable, "benchmarks/torture.py", "--points", "5", "--seed", "3", "--config", str(config)]
    answer = subprocess.run(
        [*command, "--directory", str(tmp_path)], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    found = json.loads(answer.stdout)
    assert (found["points"], found["differing"], found["left_over"], found["tracebacks"]) == (5, [], [], [])
    assert found["while_a_job_ran"] >= 3 and found["files_compared"] > 20


@pytest.mark.parametrize("place", ["base/tiny", f"runs/{RUNS[0]}"])
def test_sigterm_to_snakemake_saves_the_state_of_its_trainings(tmp_path: Path, config: Path, place: str) -> None:
    """The base model's states are 100 steps apart otherwise."""
    study = Study(tmp_path / "study", config)
    process = study.start()
    progress = study.results / place / "progress.json"
    while not progress.is_file():
        assert process.poll() is None, study.output()
        time.sleep(0.02)
    process.terminate()
    assert process.wait(timeout=PATIENCE_SECONDS) != 0
    assert "Traceback" not in study.output() and "failed: " not in study.output()
    step = json.loads(progress.read_text())["step"]
    assert [path.name for path in (study.results / place / "state").glob(f"*/step-{step:08d}")] == [f"step-{step:08d}"]
