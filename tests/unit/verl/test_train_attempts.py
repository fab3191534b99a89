"""Attempts at one run: which state each goes on from, and whose metrics count. verl and its merger are stood for."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from evals.core.errors import InvalidInput, UserError
from evals.core.files import read_json, write_json
from evals.core.manifest import Manifest, hash_files, verify_outputs
from evals.core.run_spec import VerlRun
from rlvr.engines.result import checkpoint_directory
from rlvr.engines.verl import train as module
from rlvr.engines.verl.checkpoints import OPTIMIZER, prepare_resume, record, remove_old, steps
from rlvr.engines.verl.launch import Places
from rlvr.engines.verl.metrics import MEASURED, Display, write_step
from rlvr.engines.verl.train import Execution, train
from tests.unit.verl.conftest import make_cluster, make_run

STEPS = 4


@dataclass
class Verl:
    """Trains by writing a state and a row of metrics a step; the reward is the learning rate, or one of ``rewards``.

    Attributes:
        killed_before_metrics_of: the step whose state is saved when the next attempt is killed; None to finish.
        rewards: of the steps, for a run that may stop early.
        attempts: steps that each attempt went on from.
    """

    killed_before_metrics_of: int | None = None
    attempts: list[int] = field(default_factory=list)
    rewards: Sequence[float] = ()

    def __call__(
        self, run: VerlRun, places: Places, execution: Execution, display: Display, checkpoints_at: Sequence[int]
    ) -> str:
        start = prepare_resume(places.state)
        self.attempts.append(start)
        for step in range(start + 1, run.training.last_step(self.rewards) + 1):
            reward = self.rewards[step - 1] if self.rewards else run.training.learning_rate
            row = {"reward_mean": reward, "tokens_generated": 10.0}
            state = places.state / f"global_step_{step}"
            write_step(places.state, step, row)
            (state / "actor").mkdir(parents=True)
            (state / "actor" / "shard.pt").write_bytes(bytes([step]))
            write_json(state / "actor" / OPTIMIZER, {})
            record(state, step)
            remove_old(places.state, execution.cluster.checkpoints_kept, checkpoints_at)
            if step == self.killed_before_metrics_of:
                self.killed_before_metrics_of = None
                break
            write_step(places.state, step, {**row, "seconds_step": 1.0, "optimizer_steps": 4.0})
        display.update()
        return "killed by SIGKILL"


@dataclass
class Machine:
    """A study's directory with a base model and problems, and verl.

    Attributes:
        path: the directory.
        verl: what stands for it.
        asked: how often it was looked whether this machine can train.
    """

    path: Path
    verl: Verl
    asked: int = 0

    def train(self, checkpoints_at: Sequence[int] = (), **training: Any) -> pd.DataFrame:
        """Train a run with these settings; its metrics."""
        directory = self.path / "results" / "runs" / "r"
        directory.mkdir(parents=True, exist_ok=True)
        run = make_run("dapo", **{"steps": STEPS, **training})
        execution = Execution(make_cluster(checkpoint_interval=1), "python", self.path, self.path, 0.0)
        train(run, directory, execution, checkpoints_at)
        manifest = read_json(directory / "manifest.json")
        metrics = pd.read_parquet(directory / "metrics.parquet")
        assert manifest["details"]["tokens_generated"] == 10 * len(metrics) and manifest["details"][
            "steps"
        ] == run.training.last_step(self.verl.rewards)
        return metrics

    def states(self) -> list[Path]:
        """Directories of states, one for each of the settings that were tried."""
        return sorted(path for path in (self.path / "results/runs/r/state").iterdir() if path.is_dir())


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = Machine(tmp_path, Verl())
    base, problems = tmp_path / "results" / "base" / "qwen3_8b", tmp_path / "results" / "problems" / "train"
    checkpoint = base / "checkpoint"
    for directory in (checkpoint, problems):
        directory.mkdir(parents=True)
    (checkpoint / "config.json").write_text(json.dumps({"max_position_embeddings": 32768}))
    (checkpoint / "model.safetensors").write_bytes(b"")
    row = {"id": "a", "problem": "1 + 1", "answer": "2", "family": "chain"}
    (problems / "problems.jsonl").write_text(json.dumps(row) + "\n")
    for kind, directory in (("base_model", base), ("problems", problems)):
        files = sorted(path for path in directory.rglob("*") if path.is_file())
        Manifest(kind, {}, hash_files(directory, *files), {}, "f").write(directory / "manifest.json")

    def merge(_run: VerlRun, state: Path, checkpoint: Path, *_unused: object) -> dict[str, Any]:
        checkpoint.mkdir(parents=True, exist_ok=True)
        (checkpoint / "model.safetensors").write_bytes((state / "actor" / "shard.pt").read_bytes())
        return {}

    def require_machine(_cluster: object) -> None:
        found.asked += 1

    replaced: dict[str, Callable[..., Any]] = {
        "_run_verl": found.verl,
        "merge": merge,
        "require_machine": require_machine,
        "write_prompts": lambda *_: 0,
    }
    for name, function in replaced.items():
        monkeypatch.setattr(module, name, function)
    return found


def test_a_run_that_is_complete_asks_for_no_gpu_and_is_not_started_again(machine: Machine) -> None:
    first = machine.train()
    assert first["step"].tolist() == [1, 2, 3, 4] and machine.asked == 1
    pd.testing.assert_frame_equal(machine.train(), first)
    assert machine.verl.attempts == [0] and machine.asked == 1


def test_metrics_are_those_of_the_settings_and_not_of_others_that_were_tried(machine: Machine) -> None:
    assert set(machine.train(learning_rate=1e-6)["reward_mean"]) == {1e-6}
    assert set(machine.train(learning_rate=2e-6)["reward_mean"]) == {2e-6}
    # Going back costs nothing: the state is still there, and so are its metrics.
    assert set(machine.train(learning_rate=1e-6)["reward_mean"]) == {1e-6}
    assert machine.verl.attempts == [0, 0]


@pytest.mark.parametrize("step", [2, STEPS])
def test_a_kill_after_a_state_costs_what_the_update_measured(machine: Machine, step: int) -> None:
    machine.verl.killed_before_metrics_of = step
    if step < STEPS:
        with pytest.raises(UserError, match=f"step {step} .*of {STEPS}: killed by SIGKILL"):
            machine.train()
    metrics = machine.train()
    assert metrics["step"].tolist() == list(range(1, STEPS + 1)) and metrics["reward_mean"].notna().all()
    assert metrics["step"][metrics["seconds_step"].isna()].tolist() == [step]
    assert machine.verl.attempts == ([0, step] if step < STEPS else [0])


def test_states_of_attempts_before_do_not_pile_up(machine: Machine) -> None:
    """verl forgets at every start what it saved before, and would remove none of it."""
    machine.verl.killed_before_metrics_of = 3
    with pytest.raises(UserError, match="verl ended with step 3 saved"):
        machine.train()
    (directory,) = machine.states()
    assert steps(directory) == [2, 3]
    machine.train()
    assert steps(directory) == [3, 4]


def test_metrics_that_are_not_there_are_an_error(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_metrics(*arguments: Any) -> str:
        end = machine.verl(*arguments)
        (arguments[1].state / MEASURED).unlink()
        return end

    monkeypatch.setattr(module, "_run_verl", without_metrics)
    with pytest.raises(UserError, match=f"metrics of 0 steps of {STEPS}"):
        machine.train()


def test_a_run_of_fewer_steps_has_their_metrics_alone(machine: Machine) -> None:
    machine.train()
    assert machine.train(steps=2)["step"].tolist() == [1, 2]


def test_a_run_that_stops_early_is_complete(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.verl.rewards = [0.5, 0.25, 0.75, 0.75]
    machine.verl.killed_before_metrics_of = 2  # the step that ends it
    rule = {"early_stop": {"window": 1, "patience": 1}}
    assert machine.train([1, 3], **rule)["step"].tolist() == [1, 2]
    said = capsys.readouterr().out
    assert f"stopped after step 2 of {STEPS}: no new highest mean reward of 1 steps for 1 steps" in said
    place = machine.path / "results/runs/r"
    policies = [checkpoint_directory(place, step) for step in (1, 3)]
    weights = [(each / "checkpoint" / "model.safetensors").read_bytes() for each in (*policies, place)]
    assert weights == [bytes([1]), bytes([2]), bytes([2])], "after later steps it is the last policy"
    later = verify_outputs(policies[1] / "manifest.json", "run")
    assert later.details["steps"] == 2 and later.details["optimizer_steps"] == 2 * make_run().training.updates_per_step
    assert later.parameters["training"]["steps"] == 3
    machine.train([1, 3], **rule)
    assert machine.verl.attempts == [0] and machine.asked == 1


def test_a_killed_run_that_has_not_stopped_goes_on(machine: Machine) -> None:
    machine.verl.rewards, machine.verl.killed_before_metrics_of = [0.5, 0.75, 0.25, 0.25], 2
    rule = {"early_stop": {"window": 1, "patience": 1}}
    with pytest.raises(UserError, match=f"verl ended with step 2 saved, of {STEPS}"):
        machine.train(**rule)
    assert machine.train(**rule)["step"].tolist() == [1, 2, 3] and machine.verl.attempts == [0, 2]


def test_policies_of_earlier_steps_are_kept(machine: Machine) -> None:
    machine.train(checkpoints_at=[2])
    place = checkpoint_directory(machine.path / "results/runs/r", 2)
    manifest = verify_outputs(place / "manifest.json", "run")
    assert (place / "checkpoint" / "model.safetensors").read_bytes() == bytes([2])
    assert manifest.details["steps"] == 2 and manifest.parameters["training"]["steps"] == 2
    assert pd.read_parquet(place / "metrics.parquet")["step"].tolist() == [1, 2]
    machine.train(checkpoints_at=[2])  # it is there
    machine.train(checkpoints_at=[3])  # its state is one of the newest two
    assert machine.verl.attempts == [0]


def test_what_was_merged_outlives_a_kill(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    place, merge, ends = machine.path / "results/runs/r", vars(module)["merge"], iter([False, True])

    def interrupted(*arguments: Any) -> Any:
        if next(ends, False):
            raise UserError("killed by SIGKILL")
        return merge(*arguments)

    monkeypatch.setattr(module, "merge", interrupted)
    with pytest.raises(UserError, match="killed by SIGKILL"):
        machine.train(checkpoints_at=[1, 2])
    (state,) = machine.states()
    assert steps(state) == [2, 3, 4]
    first = checkpoint_directory(place, 1)
    made = (first / "manifest.json").stat().st_mtime_ns
    machine.train(checkpoints_at=[1, 2])
    for step in (1, 2):
        verify_outputs(checkpoint_directory(place, step) / "manifest.json", "run")
    assert (first / "manifest.json").stat().st_mtime_ns == made and steps(state) == [3, 4]
    assert machine.verl.attempts == [0]


def test_a_policy_that_can_no_longer_be_kept_is_refused(machine: Machine) -> None:
    machine.train()
    with pytest.raises(UserError, match="step 1 was not kept") as error:
        machine.train(checkpoints_at=[1])
    assert "\n" not in str(error.value)


def test_a_step_after_which_nothing_is_saved_is_refused(machine: Machine) -> None:
    run, directory = make_run("dapo", steps=STEPS), machine.path / "results" / "runs" / "r"
    execution = Execution(make_cluster(checkpoint_interval=2), "python", machine.path, machine.path, 0.0)
    with pytest.raises(InvalidInput) as error:
        train(run, directory, execution, [3])
    assert error.value.key == "checkpoints_at" and "checkpoint_interval, 2" in error.value.accepted
