"""What surrounds verl: states that are checked before they count, metrics of several attempts, the merger."""

from pathlib import Path

import pytest
import torch

from evals.core.errors import UserError
from evals.core.files import read_json, write_json
from rlvr.base_model.train import build_tokenizer, initial_model
from rlvr.engines.verl.checkpoints import (
    MANIFEST,
    OPTIMIZER,
    TRACKER,
    first_difference,
    is_intact,
    merge,
    prepare_resume,
    record,
    remove_old,
    steps,
)
from rlvr.engines.verl.launch import RUN_VARIABLE, Places
from rlvr.engines.verl.metrics import Display, read_steps, write_step
from rlvr.engines.verl.train import Execution, _run_verl
from tests.random_model import architecture
from tests.unit.verl.conftest import make_cluster, make_run


def save_state(directory: Path, step: int) -> Path:
    state = directory / f"global_step_{step}"
    (state / "actor").mkdir(parents=True)
    for rank in range(2):
        for part in ("model", "optim"):
            (state / "actor" / f"{part}_world_size_2_rank_{rank}.pt").write_bytes(bytes([step, rank]) * 100)
    (state / "data.pt").write_bytes(b"position")
    write_json(state / "actor" / OPTIMIZER, {})
    record(state, step)
    (directory / TRACKER).write_text(str(step))
    return state


def test_the_newest_state_is_continued(tmp_path: Path) -> None:
    assert prepare_resume(tmp_path / "nothing") == 0
    for step in (9, 10):  # not in the order of their names
        save_state(tmp_path, step)
    assert prepare_resume(tmp_path) == 10 and (tmp_path / TRACKER).read_text() == "10"
    assert steps(tmp_path) == [9, 10]


@pytest.mark.parametrize(
    "damage",
    ["truncated", "missing", "never written", "no manifest", "empty manifest", "[]", '{"files": ["data.pt"]}', "{}"],
)
def test_a_damaged_state_falls_back_to_the_one_before(tmp_path: Path, damage: str) -> None:
    save_state(tmp_path, 2)
    state = save_state(tmp_path, 4)
    shard = state / "actor" / "model_world_size_2_rank_1.pt"
    if damage == "truncated":
        shard.write_bytes(shard.read_bytes()[:10])
    elif damage == "missing":
        shard.unlink()
    elif damage == "never written":
        (state / "actor" / OPTIMIZER).unlink()
        record(state, 4)
    elif damage == "no manifest":
        (state / MANIFEST).unlink()
    else:
        (state / MANIFEST).write_text("" if damage == "empty manifest" else damage)
    assert not is_intact(state)
    assert prepare_resume(tmp_path) == 2
    assert (tmp_path / TRACKER).read_text() == "2" and steps(tmp_path) == [2]


def test_without_an_intact_state_verl_starts_anew(tmp_path: Path) -> None:
    state = save_state(tmp_path, 2)
    (state / "data.pt").unlink()
    (tmp_path / TRACKER).write_text("")  # what a kill while it is written leaves
    assert prepare_resume(tmp_path) == 0 and not (tmp_path / TRACKER).exists()


def test_of_old_states_the_weights_stay_that_are_asked_for(tmp_path: Path) -> None:
    for step in (2, 4, 6, 8):
        save_state(tmp_path, step)
    remove_old(tmp_path, 2, [2])
    remove_old(tmp_path, 2, [2])  # after every state
    kept = tmp_path / "global_step_2"
    assert steps(tmp_path) == [2, 6, 8] and is_intact(kept, to_continue=False) and not is_intact(kept)
    assert list(kept.rglob("model_*")) and not list(kept.rglob("optim_*"))  # what a checkpoint is merged from
    assert prepare_resume(tmp_path) == 8 and is_intact(tmp_path / "global_step_6")
    next(kept.rglob("model_*")).unlink()
    assert not is_intact(kept, to_continue=False)
    remove_old(tmp_path, 2)
    assert steps(tmp_path) == [6, 8]


def test_a_run_goes_on_from_no_weights_without_their_optimizer(tmp_path: Path) -> None:
    for step in (2, 4, 6):
        save_state(tmp_path, step)
    remove_old(tmp_path, 1, [4])
    (tmp_path / "global_step_6" / MANIFEST).unlink()
    assert prepare_resume(tmp_path) == 0 and steps(tmp_path) == []


def test_what_was_measured_of_steps_that_are_done_again_is_dropped(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save_state(tmp_path, step)
        assert len(write_step(tmp_path, step, {"reward_mean": 0.1 * step})) == step
    (tmp_path / "global_step_3" / "data.pt").unlink()
    assert prepare_resume(tmp_path) == 2
    assert read_steps(tmp_path, 9) == [{"step": 1, "reward_mean": 0.1}, {"step": 2, "reward_mean": 0.2}]


def test_the_manifest_names_every_file(tmp_path: Path) -> None:
    state = save_state(tmp_path, 3)
    shards = {f"actor/{part}_world_size_2_rank_{rank}.pt": 200 for part in ("model", "optim") for rank in range(2)}
    sizes = {**shards, f"actor/{OPTIMIZER}": 3, "data.pt": 8}
    assert read_json(state / MANIFEST) == {"step": 3, "training": state.parent.name, "sizes": sizes}


def test_a_merger_that_fails_is_quoted_and_its_traceback_kept(tmp_path: Path, places: Places) -> None:
    program, log = tmp_path / "python", places.log
    log.parent.mkdir(parents=True)
    log.write_text("what verl said\n")
    program.write_text(
        "#!/bin/sh\necho reading\necho '  File x' >&2\necho 'ValueError: no shards' >&2\necho bye\nexit 1\n"
    )
    program.chmod(0o755)
    state = tmp_path / "global_step_1"
    write_json(state / "actor" / OPTIMIZER, {})
    arguments = (make_run(), state, places.run / "checkpoint", places, str(program))
    with pytest.raises(UserError, match=r"ValueError: no shards \(.*verl\.log\)"):
        merge(*arguments)
    assert log.read_text().splitlines()[0] == "what verl said" and "  File x" in log.read_text()
    program.write_text(f"#!/bin/sh\necho works for ${RUN_VARIABLE}\n")
    with pytest.raises(UserError, match="it saved nothing"):
        merge(*arguments)
    assert f"works for {places.run / 'run.json'}" in log.read_text()
    program.write_text("#!/bin/sh\nexit 0\n")  # as one version of the merger did: verl #1246
    with pytest.raises(UserError, match="it saved nothing"):
        merge(*arguments)
    program.write_text("#!/bin/sh\nkill -9 $$\n")  # as the kernel does when memory runs out
    with pytest.raises(UserError, match="killed by SIGKILL"):
        merge(*arguments)
    merger = '#!/bin/sh\n[ $2 = verl.model_merger ] && mkdir "$9" && touch "$9/model.safetensors"'
    program.write_text(f"{merger} && exit\necho ValueError: other weights\nexit 1\n")
    with pytest.raises(UserError, match=r"ValueError: other weights \(.*verl\.log\)"):
        merge(*arguments)
    assert not (places.run / "checkpoint").exists()
    program.write_text(f"{merger}\nexit 0\n")
    assert merge(*arguments) == {"optimizer": {}} and (places.run / "checkpoint/model.safetensors").exists()


@pytest.mark.parametrize("address", [None, "10.0.0.1:6379"])
def test_one_node_has_its_own_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str | None) -> None:
    monkeypatch.setattr("rlvr.engines.verl.train._LOOK_SECONDS", 0.05)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if address:
        monkeypatch.setenv("RAY_ADDRESS", address)
    (tmp_path / "verl").mkdir()
    program = tmp_path / "python"
    program.write_text('#!/bin/sh\necho "ValueError: $RAY_ADDRESS"\n')
    program.chmod(0o755)
    places = Places(run=tmp_path, study=tmp_path, repository=tmp_path, state=tmp_path / "state")
    execution = Execution(make_cluster(nodes=1), str(program), tmp_path, tmp_path, 0.0)
    end = _run_verl(make_run(), places, execution, Display(make_run(), places, {}, 0), [])
    assert end == f"ValueError: {address or 'local'} ({tmp_path}/verl/verl.log)"


@pytest.mark.parametrize(("failures", "starts"), [(0, 1), (2, 3), (9, 3)])
def test_ray_that_a_busy_machine_does_not_start_in_time_is_started_again(
    failures: int, starts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rlvr.engines.verl.train._LOOK_SECONDS", 0.05)
    (tmp_path / "verl").mkdir()
    program = tmp_path / "python"
    late = "Exception: The current node timed out during startup. This could happen"
    script = f"echo x >> starts\n[ $(wc -l < starts) -le {failures} ] && echo '{late}'"
    program.write_text(f"#!/bin/sh\n{script}\necho 'RuntimeError: it follows'\nexit 1\n")
    program.chmod(0o755)
    places = Places(run=tmp_path, study=tmp_path, repository=tmp_path, state=tmp_path / "state")
    execution = Execution(make_cluster(nodes=1), str(program), tmp_path, tmp_path, 0.0)
    end = _run_verl(make_run(), places, execution, Display(make_run(), places, {}, 0), [])
    assert (tmp_path / "verl" / "starts").read_text().count("x") == starts
    assert end.startswith("RuntimeError: it follows")
    assert capsys.readouterr().out.count("it is started again") == starts - 1


def test_a_merged_checkpoint_has_the_bits_of_its_shards(tmp_path: Path) -> None:
    model = initial_model(architecture(16, 24, 1, 32), build_tokenizer(), seed=3)
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    model.bfloat16().save_pretrained(tmp_path / "checkpoint")

    def difference(ranks: int, copies: int = 1) -> str:
        """Of shards of ``weights`` on so many ranks, ``copies`` times."""
        actor = tmp_path / f"actor-{ranks}-{copies}"
        actor.mkdir(exist_ok=True)
        for rank in range(ranks * copies):
            shard = {name: weight.tensor_split(ranks)[rank % ranks].clone() for name, weight in weights.items()}
            torch.save(shard, actor / f"model_world_size_{ranks * copies}_rank_{rank}.pt")
        return first_difference(actor, tmp_path / "checkpoint").removeprefix(f"{tmp_path}/checkpoint: ")

    assert difference(1) == difference(12) == difference(2, copies=2) == ""  # of 12 ranks "10" comes before "2"
    name = "model.layers.0.mlp.up_proj.weight"
    weights[name][-1, -1] += 0.5
    assert difference(2) == f"{name} is not that of the shards in {tmp_path}/actor-2-1"
    del weights[name]
    assert difference(2).startswith(name)
