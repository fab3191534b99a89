"""A run from start to finish: what it leaves, what it refuses, and that an interruption changes nothing."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from evals.core.errors import InvalidInput, UserError
from evals.core.files import fingerprint, read_json, sha256_file, write_json
from evals.core.manifest import hash_files, verify_outputs
from evals.core.run_spec import LocalRun
from evals.grading.grade_file import try_verifier
from rlvr.engines.local.learner import Learner
from rlvr.engines.local.rollout import PromptOrder
from rlvr.engines.local.train import train
from rlvr.engines.result import checkpoint_directory
from rlvr.runs.job import METRICS_SO_FAR, Interrupted
from tests.unit.engine.conftest import EXECUTION, MakeRun, checkpoint_hash, draw_training_problems, timeless

TrainUntil = Callable[..., Learner]
QUERY_PRESERVED_REWARD_BALANCED = {
    "version": 1,
    "advantage": {"name": "grpo"},
    "token_weights": {"name": "delta"},
    "loss": {"name": "clipped"},
    "batching": {
        "assignment": {"name": "query_preserved"},
        "selection": {"name": "reward_balanced", "alpha": 0.5, "max_rounds": 3},
    },
}


DECAY = {"learning_rate_decay_from": 0.25}


def test_a_run_leaves_a_checkpoint_metrics_and_a_manifest(make_run: MakeRun, tmp_path: Path) -> None:
    train(make_run(), tmp_path, EXECUTION)
    manifest = verify_outputs(tmp_path / "manifest.json", "run")
    metrics = pd.read_parquet(tmp_path / "metrics.parquet")
    assert metrics["step"].tolist() == [1, 2, 3, 4]
    assert metrics["optimizer_steps"].sum() == manifest.details["optimizer_steps"] == 8
    assert manifest.details["tokens_generated"] == metrics["tokens_generated"].sum() > 0
    parts = metrics[[f"seconds_{part}" for part in ("rollout", "reward", "log_probs", "token_weights", "update")]]
    assert (parts.sum(axis=1) <= metrics["seconds_step"] + 1e-9).all()
    assert (metrics["entropy"] > 0).all()
    assert {"clip_fraction", "grad_norm", "approximate_kl", "peak_memory_bytes"} <= set(metrics.columns)
    assert json.loads((tmp_path / "progress.json").read_text())["step"] == 4


@pytest.mark.parametrize(
    "changes", [{}, {"method": QUERY_PRESERVED_REWARD_BALANCED}, {"training": DECAY}], ids=["dapo", "balanced", "decay"]
)
def test_an_interrupted_run_ends_with_the_same_bytes(
    make_run: MakeRun, tmp_path: Path, train_until: TrainUntil, changes: dict[str, Any]
) -> None:
    train(make_run(**changes), tmp_path / "undisturbed", EXECUTION)
    # A state is saved every third step only, so that what was done since is lost and has to be done again alike.
    for interval in (3, 3, 1):
        execution = EXECUTION.model_copy(update={"checkpoint_interval": interval})
        train_until(2, make_run(**changes), tmp_path / "killed", execution)
    train(make_run(**changes), tmp_path / "killed", EXECUTION)
    assert checkpoint_hash(tmp_path / "killed") == checkpoint_hash(tmp_path / "undisturbed")
    pd.testing.assert_frame_equal(timeless(tmp_path / "killed"), timeless(tmp_path / "undisturbed"))


def test_validation_changes_nothing_in_a_training(make_run: MakeRun, tmp_path: Path, train_until: TrainUntil) -> None:
    plain = make_run()
    validation = {"problems": str(plain.problems), "every": 2, "samples_per_problem": 3}
    scored = make_run(validation=validation)
    assert "validation" not in plain.to_json() and "validation" not in plain.parameters()
    assert scored.parameters()["validation"] == {"every": 2, "samples_per_problem": 3}
    train(plain, tmp_path / "plain", EXECUTION)
    train(scored, tmp_path / "scored", EXECUTION, [2])
    assert checkpoint_hash(tmp_path / "plain") == checkpoint_hash(tmp_path / "scored")
    pd.testing.assert_frame_equal(timeless(tmp_path / "plain"), timeless(tmp_path / "scored"))
    scores = pd.read_parquet(tmp_path / "scored" / "validation.parquet")
    assert scores["step"].tolist() == [0, 2, 4]
    assert all(len(counts) == 10 and 0 <= min(counts) <= max(counts) <= 3 for counts in scores["correct_counts"])
    earlier = pd.read_parquet(checkpoint_directory(tmp_path / "scored", 2) / "validation.parquet")
    pd.testing.assert_frame_equal(earlier, scores[:2])

    train_until(3, scored, tmp_path / "killed", EXECUTION)
    train(scored, tmp_path / "killed", EXECUTION)
    manifests = [verify_outputs(tmp_path / name / "manifest.json", "run") for name in ("killed", "scored")]
    assert len({manifest.outputs["validation.parquet"] for manifest in manifests}) == 1


def test_sigterm_saves_and_stops(make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Learner.step

    def terminated(learner: Learner, pool: object) -> dict[str, float]:
        if learner.position.step == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(learner, pool)  # type: ignore[arg-type]

    monkeypatch.setattr(Learner, "step", terminated)
    execution = EXECUTION.model_copy(update={"checkpoint_interval": 100})
    with pytest.raises(Interrupted, match="stopped after step 2"):
        train(make_run(), tmp_path / "run", execution)
    assert not (tmp_path / "run" / "manifest.json").exists()
    so_far = tmp_path / "run" / METRICS_SO_FAR
    assert pd.read_parquet(so_far)["step"].tolist() == [1, 2]
    monkeypatch.undo()
    train(make_run(), tmp_path / "run", execution)
    assert not so_far.exists()
    train(make_run(), tmp_path / "whole", execution)
    assert checkpoint_hash(tmp_path / "run") == checkpoint_hash(tmp_path / "whole")


@pytest.mark.parametrize("method", ["dapo", "balanced"])
def test_an_earlier_policy_is_that_of_a_shorter_run(make_run: MakeRun, tmp_path: Path, method: str) -> None:
    changes = {"method": QUERY_PRESERVED_REWARD_BALANCED} if method == "balanced" else {}
    train(make_run(**changes), tmp_path / "plain", EXECUTION)
    train(make_run(**changes), tmp_path / "run", EXECUTION, checkpoints_at=[3, 1])
    assert checkpoint_hash(tmp_path / "run") == checkpoint_hash(tmp_path / "plain")
    for steps in (1, 3):
        shorter, kept = tmp_path / f"{steps} steps", checkpoint_directory(tmp_path / "run", steps)
        train(make_run(training={"steps": steps}, **changes), shorter, EXECUTION)
        assert checkpoint_hash(kept) == checkpoint_hash(shorter)
        pd.testing.assert_frame_equal(timeless(kept), timeless(shorter))
        manifests = [verify_outputs(place / "manifest.json", "run") for place in (kept, shorter)]
        assert manifests[0].fingerprint == manifests[1].fingerprint
        assert manifests[0].parameters == manifests[1].parameters
        assert LocalRun.read(kept / "run.json").training.steps == steps


def test_policies_on_the_way_are_those_of_the_decay_so_far(make_run: MakeRun, tmp_path: Path) -> None:
    """Until the rate falls the policy is that of a constant rate; after N steps it is that of N steps of the decay."""
    train(make_run(), tmp_path / "constant", EXECUTION, checkpoints_at=[2])
    train(make_run(training=DECAY), tmp_path / "run", EXECUTION, checkpoints_at=[2, 3])
    rates = pd.read_parquet(tmp_path / "run" / "metrics.parquet")["learning_rate"]
    # Two updates of warm-up in the first step, to 0.0005 and 0.001; thirds of 0.001 from the second step on.
    assert rates.tolist() == pytest.approx([0.00075, 0.001, 0.002 / 3, 0.001 / 3])
    early = [checkpoint_directory(tmp_path / name, 2) for name in ("constant", "run")]
    assert checkpoint_hash(early[0]) == checkpoint_hash(early[1])
    assert checkpoint_hash(tmp_path / "constant") != checkpoint_hash(tmp_path / "run")
    kept = checkpoint_directory(tmp_path / "run", 3)
    again = LocalRun.read(kept / "run.json")
    assert (again.training.steps, again.training.falling_steps) == (3, (1, 4))
    train(again, tmp_path / "again", EXECUTION)
    assert checkpoint_hash(tmp_path / "again") == checkpoint_hash(kept)


def test_steps_are_repeated_for_a_policy(make_run: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(make_run(training={"steps": 2}), tmp_path / "shorter", EXECUTION)
    train(make_run(), tmp_path / "run", EXECUTION)
    whole, made = checkpoint_hash(tmp_path / "run"), (tmp_path / "run" / "manifest.json").stat().st_mtime_ns
    train(make_run(), tmp_path / "run", EXECUTION, checkpoints_at=[2])
    assert "repeats steps 1 to 2" in capsys.readouterr().out  # the state of step 4 alone was kept
    kept = checkpoint_directory(tmp_path / "run", 2)
    assert checkpoint_hash(kept) == checkpoint_hash(tmp_path / "shorter")
    assert checkpoint_hash(tmp_path / "run") == whole
    # What was made from the run stays current: its result is not written again.
    assert (tmp_path / "run" / "manifest.json").stat().st_mtime_ns == made
    written = (kept / "manifest.json").stat().st_mtime_ns
    train(make_run(), tmp_path / "run", EXECUTION, checkpoints_at=[2, 3])
    assert "repeats steps 1 to 3" in capsys.readouterr().out  # one is there
    assert (kept / "manifest.json").stat().st_mtime_ns == written
    assert checkpoint_directory(tmp_path / "run", 3).is_dir()


def test_a_lost_result_is_written_again(make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(make_run(), tmp_path / "run", EXECUTION)
    (state,) = (tmp_path / "run").glob("state/*/step-*")
    assert state.name == "step-00000004"
    weights = load_file(tmp_path / "run" / "checkpoint" / "model.safetensors")
    assert set(load_file(state / "tensors.safetensors")) == set(weights)
    assert (state / "tensors.safetensors").samefile(tmp_path / "run" / "checkpoint" / "model.safetensors")
    lost = [tmp_path / "run" / name for name in ("metrics.parquet", "checkpoint/model.safetensors", "manifest.json")]
    before = [sha256_file(path) for path in lost[:2]]
    for path in lost:
        path.unlink()
    monkeypatch.setattr(Learner, "step", lambda *_: pytest.fail("trains again"))
    train(make_run(), tmp_path / "run", EXECUTION)
    assert [sha256_file(path) for path in lost[:2]] == before and lost[2].is_file()


def test_a_repeated_step_that_is_not_the_run_s_is_refused(make_run: MakeRun, tmp_path: Path) -> None:
    train(make_run(), tmp_path / "run", EXECUTION)
    for values in (tmp_path / "run").glob("state/*/step-00000004/values.json"):
        content = {key: value for key, value in read_json(values).items() if key != "sha256"}
        content["values"]["metrics"][0]["loss"] += 1.0  # as on a machine that computes otherwise
        write_json(values, content | {"sha256": fingerprint(content)})
    with pytest.raises(UserError, match="step 1 has loss"):
        train(make_run(), tmp_path / "run", EXECUTION, checkpoints_at=[1])


@pytest.mark.parametrize("step", [0, 4, 5])
def test_a_step_that_the_run_has_no_earlier_policy_of_is_refused(make_run: MakeRun, tmp_path: Path, step: int) -> None:
    with pytest.raises(InvalidInput) as error:
        train(make_run(), tmp_path / "run", EXECUTION, checkpoints_at=[step])
    assert error.value.key == "checkpoints_at" and "1 to 3" in error.value.accepted


def test_state_of_another_configuration_is_not_continued(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(make_run(training={"steps": 2}), tmp_path / "run", EXECUTION)
    first = checkpoint_hash(tmp_path / "run")
    train(make_run(training={"steps": 2, "learning_rate": 0.01}), tmp_path / "run", EXECUTION)
    train(make_run(training={"steps": 2, "learning_rate": 0.01}), tmp_path / "fresh", EXECUTION)
    assert checkpoint_hash(tmp_path / "run") == checkpoint_hash(tmp_path / "fresh")
    monkeypatch.setattr(Learner, "step", lambda *_: pytest.fail("trains again"))
    train(make_run(training={"steps": 2}), tmp_path / "run", EXECUTION)  # going back costs nothing: its state was kept
    assert checkpoint_hash(tmp_path / "run") == first != checkpoint_hash(tmp_path / "fresh")
    assert len(list((tmp_path / "run" / "state").glob("*/step-00000002"))) == 2


def test_state_of_other_code_or_other_bytes_is_not_continued(
    make_run: MakeRun, study_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fingerprints() -> set[str]:
        return {path.name for path in (tmp_path / "run" / "state").iterdir() if path.is_dir()}

    run = {"training": {"steps": 1}}
    train(make_run(**run), tmp_path / "run", EXECUTION)
    for number, version in enumerate(("VERSION", "SAMPLER_VERSION", "GRADER_VERSION"), start=2):
        monkeypatch.setattr(f"rlvr.engines.local.train.{version}", 99)
        train(make_run(**run), tmp_path / "run", EXECUTION)
        assert len(fingerprints()) == number
    draw_training_problems(2, tmp_path / "problems")
    train(make_run(**run, problems=str(tmp_path / "problems")), tmp_path / "run", EXECUTION)
    assert len(fingerprints()) == 5
    shutil.copytree(study_files / "base" / "tiny" / "checkpoint", tmp_path / "base" / "checkpoint")
    weights = tmp_path / "base" / "checkpoint" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-4] ^= 1  # the last weight's mantissa
    weights.write_bytes(bytes(content))
    manifest = read_json(study_files / "base" / "tiny" / "manifest.json")
    manifest["outputs"] = hash_files(tmp_path / "base", *(tmp_path / "base" / "checkpoint").iterdir())
    write_json(tmp_path / "base" / "manifest.json", manifest)
    train(make_run(**run, base=str(tmp_path / "base")), tmp_path / "run", EXECUTION)
    assert len(fingerprints()) == 6


def test_seeds_differ_and_repeat(make_run: MakeRun, tmp_path: Path) -> None:
    for directory, seed in (("one", 1), ("again", 1), ("two", 2)):
        train(make_run(training={"steps": 1}, seed=seed), tmp_path / directory, EXECUTION)
    assert checkpoint_hash(tmp_path / "one") == checkpoint_hash(tmp_path / "again")
    assert checkpoint_hash(tmp_path / "one") != checkpoint_hash(tmp_path / "two")


def test_bad_runs_are_refused_in_one_line(make_run: MakeRun, tmp_path: Path) -> None:
    make_run()
    content = read_json(tmp_path / "run.json")
    del content["training"]["temperature"]
    with pytest.raises(InvalidInput) as error:
        LocalRun.parse(content, "run.json")
    assert error.value.key == "training" and error.value.found == "lacks temperature"
    with pytest.raises(UserError, match=r"method dapo: loss\.name"):
        train(make_run(method={**QUERY_PRESERVED_REWARD_BALANCED, "loss": {"name": "foo"}}), tmp_path, EXECUTION)
    if not torch.cuda.is_available():
        with pytest.raises(UserError, match="no GPU"):
            train(make_run(), tmp_path, EXECUTION.model_copy(update={"device": "cuda"}))
    with pytest.raises(UserError, match=r"elsewhere/manifest\.json: no such file"):
        train(make_run(base=str(tmp_path / "elsewhere")), tmp_path, EXECUTION)


def test_prompt_order_is_a_permutation_per_pass_and_known_from_the_position() -> None:
    problems = [{"id": str(number)} for number in range(7)]
    order = PromptOrder(problems, seed=3)
    whole = [row["id"] for row in order.take(0, 21)]
    for number in range(3):
        assert sorted(whole[7 * number : 7 * number + 7]) == sorted(row["id"] for row in problems)
    assert whole[:7] != whole[7:14]
    for position in range(18):
        assert [row["id"] for row in order.take(position, 3)] == whole[position : position + 3]
    assert whole != [row["id"] for row in PromptOrder(problems, seed=4).take(0, 21)]


HALF = """
def verify(problem, response):
    return 0.5 * ("=" in response) + 0.5 * (problem["answer"] in response[-9:])
"""


def test_rewards_are_those_of_a_users_verifier(make_run: MakeRun, tmp_path: Path) -> None:
    plain = make_run()
    mine, copy = tmp_path / "mine.py", tmp_path / "verifiers"
    mine.write_text(HALF)
    run = make_run(verifier={"directory": str(copy), "version": 1})
    assert run.parameters() == {**plain.parameters(), "verifier": {"version": 1}}
    with pytest.raises(UserError, match=r"verifiers/manifest\.json"):
        train(run, tmp_path / "early", EXECUTION)
    fingerprints = []
    for text in (HALF, HALF + "# another byte\n"):
        mine.write_text(text)
        try_verifier(mine, run.problems / "problems.jsonl", copy)
        train(run, tmp_path / "run", EXECUTION)
        manifest = verify_outputs(tmp_path / "run/manifest.json", "run")
        assert manifest.inputs[str(copy / "verifier.py")] == sha256_file(mine)
        fingerprints.append(manifest.fingerprint)
    assert fingerprints[0] != fingerprints[1]
    rewards = pd.read_parquet(tmp_path / "run/metrics.parquet")["reward_mean"]
    assert rewards.between(0, 1).all() and ((rewards * 32) % 2 == 1).any()  # halves, which no grader of ours gives
