"""What surrounds verl: states that are checked before they count, metrics of several attempts, the merger."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as parquet
import pytest

from evals.core.errors import UserError
from evals.core.files import read_jsonl, sha256_file
from rlvr.engines.verl.checkpoints import (
    MANIFEST,
    TRACKER,
    is_intact,
    keep,
    kept_state,
    merge,
    prepare_resume,
    record,
    remove_old,
    steps,
)
from rlvr.engines.verl.launch import RUN_VARIABLE, Places
from rlvr.engines.verl.metrics import Display
from rlvr.engines.verl.train import Execution, _run_verl, _write_prompts
from tests.commands import rlvr_bench
from tests.unit.verl.conftest import make_cluster, make_run

draw = rlvr_bench("stage")


def save_state(directory: Path, step: int) -> Path:
    state = directory / f"global_step_{step}"
    (state / "actor").mkdir(parents=True)
    for rank in range(2):
        (state / "actor" / f"model_world_size_2_rank_{rank}.pt").write_bytes(bytes([step, rank]) * 100)
    (state / "data.pt").write_bytes(b"position")
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
    "damage", ["truncated", "missing", "changed", "no manifest", "empty manifest", "[]", '{"files": ["data.pt"]}', "{}"]
)
def test_a_damaged_state_falls_back_to_the_one_before(tmp_path: Path, damage: str) -> None:
    save_state(tmp_path, 2)
    state = save_state(tmp_path, 4)
    shard = state / "actor" / "model_world_size_2_rank_1.pt"
    if damage == "truncated":
        shard.write_bytes(shard.read_bytes()[:10])
    elif damage == "missing":
        shard.unlink()
    elif damage == "changed":
        shard.write_bytes(b"x" * 200)
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


def test_a_kept_state_outlives_its_original(tmp_path: Path) -> None:
    for step in (2, 4, 6):
        save_state(tmp_path, step)
    keep(tmp_path / "global_step_2", 2)
    remove_old(tmp_path, 2)
    assert steps(tmp_path) == [4, 6] and is_intact(kept_state(tmp_path, 2))
    assert prepare_resume(tmp_path) == 6


def test_the_manifest_names_every_file(tmp_path: Path) -> None:
    state = save_state(tmp_path, 3)
    files = json.loads((state / MANIFEST).read_text())["files"]
    assert set(files) == {"actor/model_world_size_2_rank_0.pt", "actor/model_world_size_2_rank_1.pt", "data.pt"}
    assert files["data.pt"] == sha256_file(state / "data.pt")


def test_a_merger_that_fails_is_quoted_and_its_traceback_kept(tmp_path: Path, places: Places) -> None:
    program, log = tmp_path / "python", places.log
    log.parent.mkdir(parents=True)
    log.write_text("what verl said\n")
    program.write_text(
        "#!/bin/sh\necho reading\necho '  File x' >&2\necho 'ValueError: no shards' >&2\necho bye\nexit 1\n"
    )
    program.chmod(0o755)
    arguments = (tmp_path / "global_step_1", places.run / "checkpoint", places, str(program), "float32")
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


TIMED_OUT = "Exception: The current node timed out during startup. This could happen because ..."


@pytest.mark.parametrize(
    ("first", "starts"), [(TIMED_OUT, 2), ("ValueError: of another kind", 1)], ids=["timed out", "another failure"]
)
def test_ray_that_did_not_come_up_in_time_is_started_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], first: str, starts: int
) -> None:
    monkeypatch.setattr("rlvr.engines.verl.train._LOOK_SECONDS", 0.05)
    (tmp_path / "verl").mkdir()
    program = tmp_path / "python"
    # It says `first` when it is started first, and that it timed out in each start after: two starts are all it gets.
    script = f"echo x >> starts\n[ $(wc -l < starts) = 1 ] && echo '{first}' || echo '{TIMED_OUT}'"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    places = Places(run=tmp_path, study=tmp_path, repository=tmp_path, state=tmp_path / "state")
    execution = Execution(make_cluster(), str(program), tmp_path, tmp_path, 0.0)
    end = _run_verl(make_run(), places, execution, Display(make_run(), places, {}, 0))
    assert (tmp_path / "verl" / "starts").read_text().count("x") == starts
    assert end.startswith(first.split(":")[0])
    assert ("is started once more" in capsys.readouterr().out) is (starts == 2)


def test_prompts_are_messages_with_their_answers(tmp_path: Path) -> None:
    kinds = json.dumps([{"family": "chain", "operands": 3}])
    options = ["--name", "train", "--split", "train", "--kinds", kinds, "--count", "4", "--seed", "1"]
    assert draw(["draw-problems", *options, "--out", str(tmp_path / "train")]) == 0
    assert _write_prompts(tmp_path / "train", "Q: {problem}\n", tmp_path / "prompts.parquet") == 4
    rows = parquet.read_table(tmp_path / "prompts.parquet").to_pylist()
    problems = read_jsonl(tmp_path / "train" / "problems.jsonl")
    for row, problem in zip(rows, problems, strict=True):
        assert row["prompt"] == [{"role": "user", "content": f"Q: {problem['problem']}\n"}]
        assert row["reward_model"]["ground_truth"] == problem["answer"]
    assert [row["extra_info"]["index"] for row in rows] == [0, 1, 2, 3]
