"""Rollouts that a run keeps: what they say, that keeping them changes nothing, and that a kill does not either."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch

from evals.core.errors import UserError
from evals.core.files import read_json, sha256_file, write_json, write_parquet
from evals.core.manifest import Manifest, hash_files, read_manifest, verify_outputs
from evals.core.run_spec import Execution, LocalRun
from evals.core.training_settings import EarlyStop
from evals.tables.notes import early_stop_note
from rlvr.engines import rollouts
from rlvr.engines.local.learner import Learner
from rlvr.engines.local.train import train
from rlvr.engines.result import checkpoint_directory, choose_best
from rlvr.engines.rollouts import chosen_rollouts, is_kept, kept_steps
from rlvr.methods.rollout_batch import RolloutBatch
from rlvr.tokens.table import read_token_table
from tests.artifacts import write_rows
from tests.unit.engine.conftest import MakeRun, checkpoint_hash

KEEPING = Execution(checkpoint_interval=3, lock_wait_seconds=1, rollouts_kept_every=2)


def tables(directory: Path) -> dict[int, str]:
    """The hash of every step's table."""
    return {step: sha256_file(place / "tokens.parquet") for step, place in kept_steps(directory)}


def test_the_first_step_and_every_so_many_th_are_kept() -> None:
    assert [step for step in range(1, 8) if is_kept(step, 3)] == [1, 3, 6]
    assert not any(is_kept(step, None) for step in range(1, 8))


def test_kept_rollouts_change_nothing_of_the_run(make_run: MakeRun, tmp_path: Path) -> None:
    run, directory = make_run(), tmp_path / "kept"
    train(run, tmp_path / "plain", Execution(lock_wait_seconds=1))
    train(run, directory, KEEPING)
    plain, keeping = (verify_outputs(tmp_path / name / "manifest.json", "run") for name in ("plain", "kept"))
    assert plain.fingerprint == keeping.fingerprint and not (tmp_path / "plain" / "rollouts").exists()
    weights = "checkpoint/model.safetensors"
    assert plain.outputs[weights] == keeping.outputs[weights] and plain.outputs.keys() == keeping.outputs.keys()
    assert list(tables(directory)) == [1, 2, 4]
    kept = read_token_table(directory / "rollouts/step-2")
    assert kept["new_log_prob"].isna().all() and set(kept["side"]) <= {-1, 0, 1}


def test_a_kill_changes_no_kept_rollouts(make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(make_run(), tmp_path / "undisturbed", KEEPING)

    def torn(path: Path, frame: pd.DataFrame) -> None:
        if "step-4" in path.parts:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"half")
            raise KeyboardInterrupt
        write_parquet(path, frame)

    monkeypatch.setattr(rollouts, "write_parquet", torn)
    with pytest.raises(KeyboardInterrupt):
        train(make_run(), tmp_path / "killed", KEEPING)
    monkeypatch.undo()
    steps: list[int] = []
    original = Learner.step

    def watched(learner: Learner, pool: object) -> dict[str, float]:
        steps.append(learner.position.step + 1)
        return original(learner, pool)  # type: ignore[arg-type]

    monkeypatch.setattr(Learner, "step", watched)
    train(make_run(), tmp_path / "killed", KEEPING)
    assert steps == [4], "the steps before were done"
    assert tables(tmp_path / "killed") == tables(tmp_path / "undisturbed")


def test_rollouts_of_another_training_are_not_taken_for_this_one_s(make_run: MakeRun, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    train(make_run(seed=1), directory, KEEPING)
    train(make_run(seed=2), directory, Execution(lock_wait_seconds=1))
    assert tables(directory) == {}
    train(make_run(seed=3), directory, KEEPING)
    assert list(tables(directory)) == [1, 2, 4]
    (directory / "rollouts/step-2/tokens.parquet").write_bytes(b"")
    with pytest.raises(UserError, match="its bytes differ"):
        tables(directory)


def test_rollouts_after_an_early_stop_are_no_longer_the_runs(make_run: MakeRun, tmp_path: Path) -> None:
    train(make_run(), tmp_path, KEEPING)
    assert list(tables(tmp_path)) == [1, 2, 4]
    manifest = read_manifest(tmp_path / "manifest.json", "run")
    replace(manifest, details={**manifest.details, "steps": 3}).write(tmp_path / "manifest.json")
    assert list(tables(tmp_path)) == [1, 2]


def test_of_a_large_step_whole_groups_are_kept_mixed_ones_first() -> None:
    groups, lengths = torch.tensor([0, 1, 2, 0, 1, 2]), torch.tensor([3, 2, 3, 3, 2, 1])
    mask = torch.arange(3) < lengths[:, None]
    numbers = torch.zeros(6, 3)
    batch = RolloutBatch(
        advantages=torch.tensor([0.0, 1.0, 0.5, 0.0, -1.0, -0.5]),
        old_log_probs=numbers,
        entropies=numbers,
        response_mask=mask,
        mini_batch_ids=groups,
        group_ids=groups,
        token_ids=numbers.long(),
        temperature=1.0,
        generator=torch.Generator(),
    )
    assert chosen_rollouts(batch, 14) == [0, 1, 2, 3, 4, 5]
    assert chosen_rollouts(batch, 13) == [1, 2, 4, 5]
    assert chosen_rollouts(batch, 7) == chosen_rollouts(batch, 1) == [1, 4]


# The best policy of a run, laid out as a run.


def policy(directory: Path, content: str, steps: int) -> None:
    """A directory laid out as that of a run that did so many steps."""
    (directory / "checkpoint").mkdir(parents=True)
    (directory / "checkpoint" / "model.safetensors").write_text(content)
    (directory / "metrics.parquet").write_text(f"metrics of {content}")
    write_json(directory / "run.json", {"run": content})
    outputs = hash_files(directory, directory / "checkpoint" / "model.safetensors", directory / "metrics.parquet")
    Manifest("run", {}, outputs, {}, content, {"steps": steps}).write(directory / "manifest.json")


def grades(directory: Path, correct: int, samples: int = 2) -> str:
    """Grades of 2 problems, so many of whose samples are correct."""
    rows = []
    for number in range(2 * samples):
        right = number < correct
        reason, answer = ("match", "1") if right else ("mismatch", "2")
        place = {"problem_id": number // samples, "sample": number % samples}
        rows.append({**place, "correct": right, "answer": answer, "reason": reason})
    return str(write_rows(directory / "grades.jsonl", "grades", rows))


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """A run with the policies after steps 2 and 4, and its last one, after 6."""
    policy(tmp_path / "run", "last", 6)
    for step in (2, 4):
        policy(tmp_path / f"run/checkpoints/step-{step}", f"after {step}", step)
    return tmp_path / "run"


def chosen(trained: Path, correct: dict[int, int], **of_grades: int) -> Path:
    base, out = trained.parent / f"grades{len(list(trained.parent.iterdir()))}", trained.parent / "best"
    graded = {str(step): grades(base / f"choice{step}/chain_3", count, **of_grades) for step, count in correct.items()}
    choose_best(trained, graded, out)
    return out


def test_the_highest_average_is_chosen_and_the_earliest_of_equals(trained: Path) -> None:
    out = chosen(trained, {2: 1, 4: 3, 6: 3})
    assert read_json(out / "chosen.json") == {
        "run": "run",
        "benchmark": "chain_3",
        "samples_per_problem": 2,
        "step": 4,
        "averages": {"2": 0.25, "4": 0.75, "6": 0.75},
    }
    assert verify_outputs(out / "manifest.json", "run").fingerprint == "after 4"
    assert verify_outputs(out / "chosen.manifest.json", "choice").inputs
    assert read_json(out / "run.json") == {"run": "after 4"}
    kept = trained / "checkpoints/step-4"
    assert (out / "checkpoint/model.safetensors").samefile(kept / "checkpoint/model.safetensors")  # takes no room
    assert not (out / "metrics.parquet").samefile(kept / "metrics.parquet")


def test_another_choice_takes_the_place_of_the_one_before(trained: Path) -> None:
    chosen(trained, {2: 1, 4: 3, 6: 0})
    out = chosen(trained, {2: 1, 4: 0, 6: 3})  # the last one, whose directory is the run's own
    assert (out / "checkpoint/model.safetensors").read_text() == "last"
    assert (trained / "checkpoints/step-4/checkpoint/model.safetensors").read_text() == "after 4"
    assert verify_outputs(out / "manifest.json", "run").fingerprint == "last"


def test_the_last_policy_of_a_training_that_stopped_early_counts_once(trained: Path) -> None:
    """After step 3; it stands under steps 4 and 6, too, and was graded there with other luck."""
    manifest = read_json(trained / "manifest.json")
    outputs = {name: manifest["outputs"][name] for name in manifest["outputs"]}
    Manifest("run", {}, outputs, {}, "last", {"steps": 3}).write(trained / "manifest.json")
    out = chosen(trained, {2: 1, 4: 2, 6: 4})
    choice = read_json(out / "chosen.json")
    assert choice["step"] == 3 and choice["averages"] == {"2": 0.25, "3": 0.5}
    assert (out / "checkpoint/model.safetensors").read_text() == "last"
    out = chosen(trained, {2: 3, 4: 2, 6: 4})
    assert read_json(out / "chosen.json")["step"] == 2


def test_policies_that_were_graded_differently_are_not_compared(trained: Path, tmp_path: Path) -> None:
    graded = {"2": grades(tmp_path / "a/chain_3", 1), "6": grades(tmp_path / "b/chain_3", 1, samples=1)}
    with pytest.raises(UserError, match="are graded on other problems"):
        choose_best(trained, graded, tmp_path / "best")


# Trainings that end because their reward no longer rises (training.early_stop).

EXECUTION = Execution(checkpoint_interval=2, lock_wait_seconds=1)
STEPS = 8


def last_step(rewards: Sequence[float], window: int, patience: int) -> int | None:
    """The rule as docs/evaluation.md says it, looked at anew after every step."""
    for done in range(1, len(rewards) + 1):
        averages = {end: sum(rewards[end - window : end]) / window for end in range(window, done + 1)}
        if averages:
            highest = max(averages.values())
            newest_high = min(end for end, average in averages.items() if average == highest)
            if done - newest_high >= patience:
                return done
    return None


def test_the_rule_is_that_of_the_documentation() -> None:
    drawn, ends = random.Random(4), set()
    for number in range(500):
        parts = (4, 8, 2)[number % 3]  # sums of such rewards are exact
        rewards = [drawn.randrange(parts + 1) / parts for _ in range(drawn.randrange(13))]
        window, patience = drawn.randrange(1, 4), drawn.randrange(1, 5)
        expected = last_step(rewards, window, patience)
        assert EarlyStop(window=window, patience=patience).last_step(rewards) == expected, (rewards, window, patience)
        ends.add(expected)
    assert None in ends and len(ends) > 8


def test_an_average_as_high_as_the_highest_is_no_new_one() -> None:
    assert EarlyStop(window=2, patience=3).last_step([0.5] * 9) == 5
    rewards = [number / 24 for number in (5, 7, 11, 5, 7, 11, 5, 7, 11)]  # any three in a row are 23 / 24
    assert EarlyStop(window=3, patience=4).last_step(rewards) == 7, "rounding is no rise"
    assert EarlyStop(window=1, patience=2).last_step([0.1, 0.0, 0.2, 0.1, 0.3]) is None


@pytest.fixture
def stopped(make_run: MakeRun, tmp_path: Path) -> tuple[LocalRun, int]:
    """A run of eight steps that ends after fewer, and after how many."""
    plain = make_run(training={"steps": STEPS})
    assert "early_stop" not in plain.to_json()["training"]
    train(plain, tmp_path / "plain", EXECUTION)
    rewards = pd.read_parquet(tmp_path / "plain" / "metrics.parquet")["reward_mean"].tolist()
    rules = [(window, patience) for window in (1, 2) for patience in (1, 2, 3)]
    found = {rule: end for rule in rules if 2 < (end := last_step(rewards, *rule) or 0) < STEPS - 1}
    (window, patience), end = next(iter(found.items()))
    return make_run(training={"steps": STEPS, "early_stop": {"window": window, "patience": patience}}), end


def test_a_training_ends_with_the_policy_of_a_training_of_that_length(
    stopped: tuple[LocalRun, int], make_run: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, end = stopped
    train(make_run(training={"steps": end}), tmp_path / "shorter", EXECUTION)
    train(run, tmp_path / "runs" / "r", EXECUTION, checkpoints_at=[1, STEPS - 1])
    assert f"stopped after step {end} of {STEPS}: no new highest mean reward" in capsys.readouterr().out
    place = tmp_path / "runs" / "r"
    assert checkpoint_hash(place) == checkpoint_hash(tmp_path / "shorter")
    assert pd.read_parquet(place / "metrics.parquet")["step"].tolist() == list(range(1, end + 1))
    manifest = verify_outputs(place / "manifest.json", "run")
    assert manifest.details["steps"] == end and manifest.parameters["training"]["steps"] == STEPS
    later = checkpoint_directory(place, STEPS - 1)
    assert checkpoint_hash(later) == checkpoint_hash(place) != checkpoint_hash(checkpoint_directory(place, 1))
    assert verify_outputs(later / "manifest.json", "run").details["steps"] == end
    made = (place / "manifest.json").stat().st_mtime_ns
    train(run, place, EXECUTION, checkpoints_at=[STEPS - 2])  # of the finished run
    assert checkpoint_hash(checkpoint_directory(place, STEPS - 2)) == checkpoint_hash(place)
    assert (place / "manifest.json").stat().st_mtime_ns == made
    note = f"Stopped early: r after {end} of {STEPS} steps. They count as they ended."
    assert early_stop_note([place / "manifest.json"]) == [note]
    assert early_stop_note([tmp_path / "shorter" / "manifest.json"]) == []


def test_a_kill_ends_alike(stopped: tuple[LocalRun, int], tmp_path: Path, train_until: Callable[..., Learner]) -> None:
    run, end = stopped
    train(run, tmp_path / "undisturbed", EXECUTION)
    train_until(end - 1, run, tmp_path / "killed", EXECUTION)
    train(run, tmp_path / "killed", EXECUTION)
    assert checkpoint_hash(tmp_path / "killed") == checkpoint_hash(tmp_path / "undisturbed")
