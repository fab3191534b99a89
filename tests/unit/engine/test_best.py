"""The best policy of a training, laid out as a run."""

import json
from pathlib import Path

import pytest

from evals.core.errors import UserError
from evals.core.files import read_json, write_json
from evals.core.manifest import Manifest, hash_files, verify_outputs
from rlvr.engines.result import choose_best


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
    directory.mkdir(parents=True)
    rows = []
    for number in range(2 * samples):
        right = number < correct
        reason, answer = ("match", "1") if right else ("mismatch", "2")
        place = {"problem_id": number // samples, "sample": number % samples}
        rows.append({**place, "correct": right, "answer": answer, "reason": reason})
    (directory / "grades.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    outputs = hash_files(directory, directory / "grades.jsonl")
    Manifest("grades", {}, outputs, {}, "g").write(directory / "manifest.json")
    return str(directory)


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """A training with the policies after steps 2 and 4, and its last one, after 6."""
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
