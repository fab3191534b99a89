"""Saved state: whole or not at all, one writer, nothing trusted that is damaged."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from evals.core.errors import UserError
from rlvr.runs.state import StateStore, load_training_tensors, save_tensors, training_tensors


def test_the_newest_of_two_kept_states_is_found(tmp_path: Path) -> None:
    store = StateStore(tmp_path, "a" * 64)
    assert store.latest() is None
    for step in (1, 2, 3):
        store.save(step, {"model.w": torch.full((2,), float(step))}, {"step": step})
    found = store.latest()
    assert found is not None
    assert (found[0], found[1]["model.w"].tolist(), found[2]) == (3, [3.0, 3.0], {"step": 3})
    assert len(list((tmp_path / ("a" * 16)).glob("step-*"))) == 2
    assert StateStore(tmp_path, "b" * 64).latest() is None


def test_the_last_state_stays_alone(tmp_path: Path) -> None:
    store = StateStore(tmp_path, "a" * 64)
    for step in (1, 2, 3):
        store.save(step, {"model.w": torch.ones(2)}, {}, is_last=step == 3)
    assert [path.name for path in (tmp_path / ("a" * 16)).glob("step-*")] == ["step-00000003"]


@pytest.mark.parametrize("weights", [[1.0, 2.0], [1.0, 3.0], None])
def test_the_weights_of_a_finished_run_are_on_the_disk_once(tmp_path: Path, weights: list[float] | None) -> None:
    """Link only to a checkpoint of the same bytes; another one, or none, leaves the state its own file."""
    store, own = StateStore(tmp_path / "state", "a" * 64), {"w": torch.tensor([1.0, 2.0])}
    store.save(3, own, {"seen": 1}, is_last=True)
    checkpoint, state = tmp_path / "checkpoint" / "model.safetensors", tmp_path / "state" / ("a" * 16) / "step-00000003"
    if weights is not None:
        save_tensors(checkpoint, {"w": torch.tensor(weights)})
    store.link_to_checkpoint()
    store.link_to_checkpoint()
    tensors = state / "tensors.safetensors"
    assert tensors.stat().st_nlink == (2 if weights == [1.0, 2.0] else 1)
    save_tensors(checkpoint, {"w": torch.zeros(2)})  # by a rename, as all writers
    assert (found := store.latest()) is not None and torch.equal(found.tensors["w"], own["w"])
    assert [path.name for path in state.parent.iterdir()] == [state.name]


def test_a_directory_of_another_name_is_no_state(tmp_path: Path) -> None:
    store = StateStore(tmp_path, "a" * 64)
    directory = tmp_path / ("a" * 16)
    for copy in ("step-1", "step-2", "step-00000003.bak"):
        (directory / copy).mkdir(parents=True)
    for step in (2, 3, 4, 5):
        store.save(step, {"model.w": torch.full((2,), float(step))}, {})
    kept = ["step-00000003.bak", "step-00000004", "step-00000005", "step-1", "step-2"]
    assert sorted(path.name for path in directory.glob("step-*")) == kept


@pytest.mark.parametrize("damage", ["truncate", "flip", "no values", "half values", "other values", "no tensors"])
def test_a_damaged_state_is_passed_over(tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]) -> None:
    store = StateStore(tmp_path, "a" * 64)
    for step in (1, 2):
        store.save(step, {"model.w": torch.full((64,), float(step))}, {"seen": [step]})
    newest = tmp_path / ("a" * 16) / "step-00000002"
    tensors, values = newest / "tensors.safetensors", newest / "values.json"
    if damage == "truncate":
        tensors.write_bytes(tensors.read_bytes()[:-8])
    elif damage == "flip":
        content = bytearray(tensors.read_bytes())
        content[-1] ^= 1
        tensors.write_bytes(bytes(content))
    elif damage == "no values":
        values.unlink()
    elif damage == "half values":
        values.write_text(values.read_text()[:20])
    elif damage == "other values":
        values.write_text(values.read_text().replace('"seen": [2]', '"seen": [9]'))
    else:
        tensors.unlink()
    found = store.latest()
    assert found is not None
    assert found[0] == 1
    assert "step-00000002: damaged" in capsys.readouterr().out


def test_a_state_of_another_run_is_not_gone_on_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is intact, and lies where this run's states do."""
    own, other = (StateStore(tmp_path, name * 64) for name in "ab")
    own.save(1, {"model.w": torch.ones(1)}, {})
    other.save(2, {"model.w": torch.zeros(1)}, {})
    shutil.copytree(tmp_path / ("b" * 16) / "step-00000002", tmp_path / ("a" * 16) / "step-00000002")
    found = own.latest()
    assert found is not None and found.step == 1
    assert "is a state of another run" in capsys.readouterr().out


def test_a_state_of_other_threads_is_not_gone_on_from(tmp_path: Path) -> None:
    """No number of threads would give the digits of such a run."""
    store, threads = StateStore(tmp_path, "a" * 64), torch.get_num_threads()
    store.save(1, {"model.w": torch.zeros(2)}, {})
    try:
        torch.set_num_threads(threads + 1)
        with pytest.raises(UserError, match=f"with {threads} threads and not with {threads + 1}; accepted: {threads} "):
            store.latest()
        store.save(2, {"model.w": torch.zeros(2)}, {})
        assert (found := store.latest()) is not None and found.step == 2
    finally:
        torch.set_num_threads(threads)


def test_an_earlier_state_is_found(tmp_path: Path) -> None:
    store = StateStore(tmp_path, "a" * 64)
    for step in (2, 4):
        store.save(step, {"model.w": torch.ones(1)}, {})
    found = [store.latest(at_most=step) for step in (1, 2, 3, 9)]
    assert [None if each is None else each.step for each in found] == [None, 2, 2, 4]


def test_leftovers_of_a_killed_save_are_ignored_and_removed(tmp_path: Path) -> None:
    store = StateStore(tmp_path, "a" * 64)
    store.save(1, {"model.w": torch.ones(1)}, {})
    leftover = tmp_path / ("a" * 16) / ".saving-xyz"
    leftover.mkdir()
    (leftover / "tensors.safetensors").write_bytes(b"half")
    found = store.latest()
    assert found is not None
    assert found[0] == 1
    assert not leftover.exists()


HOLDER = """
import sys, time
from pathlib import Path
from rlvr.runs.state import StateStore
with StateStore(Path(sys.argv[1]), "a" * 64).single_writer(0):
    print("held", flush=True)
    time.sleep(600)
"""


def test_only_one_process_writes_and_a_dead_ones_lock_is_free(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(UserError, match=f"process {holder.pid} "), StateStore(tmp_path, "a" * 64).single_writer(0):
        pass
    holder.kill()
    holder.wait()
    started = time.monotonic()
    with StateStore(tmp_path, "a" * 64).single_writer(0):
        assert (tmp_path / "owner").read_text() == str(os.getpid())
    assert time.monotonic() - started < 120


def test_model_and_optimizer_survive_the_round_trip() -> None:
    def model_and_optimizer(seed: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 2))
        return model, torch.optim.AdamW(model.parameters(), lr=0.1)

    def update(model: torch.nn.Module, optimizer: torch.optim.Optimizer, gradient: float) -> None:
        for weight in model.parameters():
            weight.grad = torch.full_like(weight, gradient)
        optimizer.step()

    model, optimizer = model_and_optimizer(1)
    update(model, optimizer, 1.0)
    saved = {name: value.clone() for name, value in training_tensors(model, optimizer).items()}  # type: ignore[arg-type]
    other, its_optimizer = model_and_optimizer(2)
    load_training_tensors(other, its_optimizer, saved)  # type: ignore[arg-type]
    for pair in ((model, optimizer), (other, its_optimizer)):
        update(*pair, 0.5)
    for weight, copy in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(weight, copy)
