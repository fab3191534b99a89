"""A study in a directory of its own: run by Snakemake, or one run of it trained by real verl on the CPU."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import yaml
from safetensors.torch import load_file

from evals.core.files import canonical_json, read_jsonl
from evals.core.run_spec import read_run
from evals.generation.checkpoint import Checkpoint
from evals.generation.plan import encode_prompts
from evals.problems.problem_set import render_prompt
from rlvr.engines.local.policy import TokenBatch, load_policy, score_in_chunks
from rlvr.engines.verl.checkpoints import MANIFEST
from rlvr.study.study import Study
from rlvr.study.study_file import read_study_file
from tests.commands import ended

ROOT = Path(__file__).parents[2]
_PATIENCE_SECONDS = 3600  # only a hanging process takes as long


def environment() -> dict[str, str]:
    """Variables for our commands: this repository's packages, and this environment's programs first."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "workflow" / "progress"), str(ROOT / "tests" / "engines")])
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**os.environ, "PYTHONPATH": paths, "PATH": programs}


def smoke_study(**changes: Mapping[str, Any]) -> dict[str, Any]:
    """config/verl_smoke.yaml for this environment; ``changes`` are merged into its sections."""
    config = read_study_file(ROOT / "config" / "verl_smoke.yaml")
    python = {"training_python": sys.executable, "sampling_python": sys.executable}
    config["execution"] = {**config["execution"], **python}
    for section, change in changes.items():
        config[section] = {**config[section], **change}
    return config


@dataclass(frozen=True)
class StudyDirectory:
    """Where a study works.

    Attributes:
        path: the directory, with ``results``.
        config: the study.
    """

    path: Path
    config: dict[str, Any]

    def snakemake(self, *arguments: str) -> str:
        """What snakemake said of ``arguments``; it has to succeed."""
        file = self.path / f"{self.config['study']}.yaml"
        file.write_text(yaml.safe_dump(self.config), encoding="utf-8")
        words = ["--directory", str(self.path), "--configfile", str(file), "--cores", "1", *arguments]
        answer = ended([sys.executable, "-m", "snakemake", *words], cwd=ROOT, env=environment())
        logs = [path.read_text(errors="replace")[-3000:] for path in self.path.glob("results/logs/**/*.log")]
        assert answer.returncode == 0, "\n".join([answer.stdout, answer.stderr, *logs])
        return answer.stdout + answer.stderr

    def write_run(self, run: str, **cluster: Any) -> Path:
        """run.json and cluster.json as the workflow writes them, but for ``cluster``; the run's directory."""
        study = Study.resolve(self.config, self.config["study"])
        place = self.path / "results" / "runs" / run
        place.mkdir(parents=True)
        (place / "run.json").write_text(canonical_json(study.resolved_run(run)), encoding="utf-8")
        (place / "cluster.json").write_text(canonical_json({**study.cluster(run), **cluster}), encoding="utf-8")
        return place

    @contextmanager
    def training(self, place: Path) -> Iterator[subprocess.Popen[str]]:
        """The command that trains the run of ``place``, started; it is ended with the block."""
        words = ["-m", "rlvr", "train", str(place / "run.json"), "--python", sys.executable]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = subprocess.Popen([sys.executable, *words], cwd=self.path, env=environment(), **pipes)
        try:
            yield process
        finally:
            process.terminate()  # a failed test must not leave Ray and vLLM to the next one
            process.wait()

    def train(self, place: Path) -> subprocess.CompletedProcess[str]:
        """The same, to its own end."""
        with self.training(place) as process:
            output, error = process.communicate()
        return subprocess.CompletedProcess(process.args, process.returncode, output, error)


def last_words(place: Path) -> str:
    """The end of verl's own log of a run."""
    log = place / "verl" / "verl.log"
    return log.read_text(encoding="utf-8", errors="replace")[-3000:] if log.exists() else "verl was not started"


def started(place: Path) -> int:
    """How often verl was started for a run: at each start its log has the configuration."""
    return (place / "verl" / "verl.log").read_text(encoding="utf-8", errors="replace").count("ray init kwargs:")


def wait_for_end_of_processes(place: Path) -> None:
    """Until nothing works for the run of ``place`` any more: Ray and vLLM must leave nothing behind."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while left := processes_of(place):
        assert time.monotonic() < deadline, left
        time.sleep(0.5)


def processes_of(place: Path) -> list[str]:
    """Command lines of the processes, on this machine, that work for the run of ``place``."""
    wanted, found = f"RLVR_RUN={place / 'run.json'}".encode(), []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (directory / "environ").read_bytes().split(b"\0"):
                found.append((directory / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:  # it has ended, or is not ours
            continue
    return found


def train_until_killed(study: StudyDirectory, place: Path, step: int) -> tuple[int, str]:
    """Kill verl once the state after ``step`` is saved; the last step saved, and what the command said of it."""
    with study.training(place) as process:
        wait_for_state(place, step, process)
        (driver,) = children_of(process.pid)
        os.kill(driver, signal.SIGKILL)
        _, error = process.communicate(timeout=_PATIENCE_SECONDS)
    saved = recorded_steps(place)[-1]
    assert process.returncode == 2, error
    wait_for_end_of_processes(place)
    return saved, error


def recorded_steps(place: Path) -> list[int]:
    """Steps whose state was saved to its end, ascending."""
    found = place.glob(f"state/*/global_step_*/{MANIFEST}")
    return sorted(int(path.parent.name.removeprefix("global_step_")) for path in found)


def wait_for_state(place: Path, step: int, process: subprocess.Popen[str]) -> None:
    """Until the state of ``step`` is saved to its end."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while step not in recorded_steps(place):
        assert process.poll() is None and time.monotonic() < deadline, last_words(place)
        time.sleep(0.2)


def check_merged(study: StudyDirectory, place: Path, step: int) -> None:
    """Check that a run's checkpoint has the weights of the state after ``step``, in bfloat16, and not the base model's.

    A threshold on log-probabilities would lie on what vLLM has drawn.
    """
    shards = sorted(place.glob(f"state/*/global_step_{step}/actor/model_world_size_*.pt"))  # the test's own files
    states = [torch.load(shard, map_location="cpu", weights_only=False) for shard in shards]
    merged, base = (
        load_file(path / "checkpoint" / "model.safetensors")
        for path in (place, study.path / read_run(place / "run.json").base)
    )
    for name, weights in merged.items():
        trained = torch.cat([getattr(state[name], "_local_tensor", state[name]) for state in states])
        assert torch.equal(weights, trained.bfloat16()), name
        # Gains of norms are near 1, where bfloat16 shows no change below 0.004: matrices have to have moved.
        assert weights.dim() < 2 or (weights != base[name].to(weights.dtype)).any(), name


def base_log_probs(study: StudyDirectory, place: Path, rows: pd.DataFrame) -> torch.Tensor:
    """Log-probs [N] of the tokens of rollouts by the local engine, of the model that a run started from."""
    settings, of_rollouts = read_run(place / "run.json"), rows.groupby(["group", "sample"], sort=False)
    texts = {row["id"]: row["problem"] for row in read_jsonl(study.path / "results/problems/train/problems.jsonl")}
    checkpoint = Checkpoint(study.path / settings.base / "checkpoint")
    rendered = [render_prompt(settings.prompt, texts[id]) for id in of_rollouts["problem"].first()]
    prompts = encode_prompts(checkpoint, rendered, settings.prompt_form)
    batch = TokenBatch(prompts, of_rollouts["token"].agg(list).tolist())
    return score_in_chunks(load_policy(checkpoint, "cpu"), batch, settings.training.temperature, 8)[0]


def children_of(pid: int) -> list[int]:
    """Processes that were started by ``pid`` itself."""
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()
    return [int(child) for child in listed]
