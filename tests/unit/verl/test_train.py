"""What surrounds verl: states that are checked before they count, metrics of several attempts, the merger."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow.parquet as parquet
import pytest
import torch
from safetensors.torch import load_file, save_file

from evals.core.errors import UserError
from evals.core.files import read_json, read_jsonl, sha256_file
from evals.core.training_settings import Lora
from evals.problems.problem_set import write_problem_set
from rlvr.base_model.tokenizer import build_tokenizer
from rlvr.base_model.train import initial_model
from rlvr.engines.verl import checkpoints
from rlvr.engines.verl.checkpoints import (
    ADAPTERS,
    MANIFEST,
    ROLLOUTS,
    TRACKER,
    WeightSums,
    add_adapters,
    differing_weights,
    is_intact,
    keep,
    kept_state,
    merge,
    prepare_resume,
    record,
    remove_old,
    remove_rollouts,
    steps,
)
from rlvr.engines.verl.launch import RUN_VARIABLE, Places
from rlvr.engines.verl.metrics import Display
from rlvr.engines.verl.train import Execution, Merges, _run_verl, _write_prompts
from rlvr.runs.termination import Interrupted
from tests.commands import rlvr_bench
from tests.unit.verl.conftest import make_cluster, make_run

draw = rlvr_bench("stage")


def save_state(directory: Path, step: int) -> Path:
    state = directory / f"global_step_{step}"
    (state / "actor").mkdir(parents=True)
    for rank in range(2):
        for part in ("model", "optim"):
            (state / "actor" / f"{part}_world_size_2_rank_{rank}.pt").write_bytes(bytes([step, rank]) * 100)
    (state / "data.pt").write_bytes(b"position")
    record(state, step).join()
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
        (tmp_path / f"global_step_{step}" / ROLLOUTS).mkdir()
    keep(tmp_path / "global_step_2", 2)
    remove_old(tmp_path, 2)
    kept = kept_state(tmp_path, 2)
    assert not (kept / ROLLOUTS).exists(), "rollouts are of no use to a checkpoint"
    assert steps(tmp_path) == [4, 6] and is_intact(kept)
    assert list(kept.rglob("model_*")) and not list(kept.rglob("optim_*"))  # what a checkpoint is merged from
    next(kept.rglob("model_*")).unlink()
    assert not is_intact(kept)
    assert prepare_resume(tmp_path) == 6


def test_rollouts_go_with_the_shards_that_verl_removes(tmp_path: Path) -> None:
    for step in (2, 4):
        (save_state(tmp_path, step) / ROLLOUTS).mkdir()
    shutil.rmtree(tmp_path / "global_step_2" / "actor")
    remove_rollouts(tmp_path)
    assert [path.parent.name for path in tmp_path.glob(f"*/{ROLLOUTS}")] == ["global_step_4"]
    remove_rollouts(tmp_path)
    assert (tmp_path / "global_step_4" / ROLLOUTS).exists()


def test_the_manifest_names_every_file(tmp_path: Path) -> None:
    state = save_state(tmp_path, 3)
    files = json.loads((state / MANIFEST).read_text())["files"]
    shards = {f"actor/{part}_world_size_2_rank_{rank}.pt" for part in ("model", "optim") for rank in range(2)}
    assert set(files) == {*shards, "data.pt"}
    assert files["data.pt"] == sha256_file(state / "data.pt")


def test_a_merger_that_fails_is_quoted_and_its_traceback_kept(tmp_path: Path, places: Places) -> None:
    program, log = tmp_path / "python", places.log
    log.parent.mkdir(parents=True)
    log.write_text("what verl said\n")
    program.write_text(
        "#!/bin/sh\necho reading\necho '  File x' >&2\necho 'ValueError: no shards' >&2\necho bye\nexit 1\n"
    )
    program.chmod(0o755)
    arguments = (make_run(), tmp_path / "global_step_1", places.run / "checkpoint", places, str(program))
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


def test_adapters_are_added_to_the_base_model(tmp_path: Path) -> None:
    architecture = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2)
    architecture |= dict(num_key_value_heads=1, head_dim=8, max_position_embeddings=32, tie_word_embeddings=True)
    tokenizer, generator = build_tokenizer(), torch.Generator().manual_seed(5)
    initial_model(architecture, tokenizer, seed=3).save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    weights = load_file(tmp_path / "base" / "model.safetensors")
    name = "model.layers.0.mlp.down_proj.weight"
    factors = {
        name.replace("weight", f"lora_{part}.weight"): torch.randn(shape, generator=generator)
        for part, shape in (("A", (2, 24)), ("B", (16, 2)))
    }
    save_file(factors, tmp_path / ADAPTERS)
    add_adapters(tmp_path / "base", tmp_path / ADAPTERS, Lora(rank=2, alpha=3.0), tmp_path / "checkpoint")
    first, second = factors.values()
    changed = {**weights, name: weights[name] + 1.5 * second @ first}
    found = load_file(tmp_path / "checkpoint" / "model.safetensors")
    assert found.keys() == changed.keys()
    assert all(torch.equal(found[each], changed[each].to(torch.bfloat16)) for each in found)
    assert read_json(tmp_path / "checkpoint" / "config.json")["dtype"] == "bfloat16"
    assert (tmp_path / "checkpoint" / "tokenizer.json").is_file()
    save_file({"model.layers.7.mlp.up_proj.lora_A.weight": factors[next(iter(factors))]}, tmp_path / ADAPTERS)
    with pytest.raises(UserError, match=r"layers\.7\.mlp\.up_proj\.lora_A\.weight: of no weight of"):
        add_adapters(tmp_path / "base", tmp_path / ADAPTERS, Lora(rank=2, alpha=3.0), tmp_path / "other")


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
    end = _run_verl(make_run(), places, execution, Display(make_run(), places, {}, 0), Merges([], tmp_path, print))
    assert (tmp_path / "verl" / "starts").read_text().count("x") == starts
    assert end.startswith(first.split(":")[0])
    assert ("is started once more" in capsys.readouterr().out) is (starts == 2)


def start_training(directory: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[Merges], str]:
    """What trains with ``script`` in verl's place, of which steps 1 and 2 of 3 are done; all three are kept."""
    monkeypatch.setattr("rlvr.engines.verl.train._LOOK_SECONDS", 0.05)
    (directory / "verl").mkdir()
    for step in (1, 2, 3):
        keep(save_state(directory / "state", step), step)
    program = directory / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    places = Places(run=directory, study=directory, repository=directory, state=directory / "state")
    execution = Execution(make_cluster(), str(program), directory, directory, 0.0)
    display = Display(make_run(), places, {}, 2)
    return lambda merges: _run_verl(make_run(), places, execution, display, merges)


def test_verl_is_started_apart_from_a_ray_that_is_not_to_be_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.1:1")
    for name in ("RAY_ADDRESS", "RAY_TMPDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    start_training(tmp_path, 'echo "$RAY_TMPDIR" > seen', monkeypatch)(Merges([], tmp_path / "state", print))
    own = Path((tmp_path / "verl" / "seen").read_text().strip())
    assert own.parent == Path("/tmp") and not own.exists()  # removed once verl has ended well


def test_kept_states_are_merged_one_by_one_while_verl_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # It ends once both are tried, or after a minute.
    script = "for i in $(seq 600); do [ -e ../tried_2 ] && exit 0; sleep 0.1; done; echo 'ValueError: none was merged'"
    started = start_training(tmp_path, script, monkeypatch)
    under_way: list[int] = []

    def write(step: int) -> None:
        assert not under_way
        under_way.append(step)
        time.sleep(0.2)
        under_way.clear()
        (tmp_path / f"tried_{step}").touch()
        if step == 1:
            raise UserError("no memory")

    merges = Merges([1, 2, 3], tmp_path / "state", write)
    assert "exit status 0" in started(merges)
    assert merges.left == [1, 3], "of step 3 nothing is logged yet"
    assert "step 1 is not merged yet: no memory" in capsys.readouterr().out


def test_the_end_waits_for_the_merge_that_is_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = start_training(tmp_path, "while [ ! -e ../begun ]; do sleep 0.1; done", monkeypatch)
    run_variable = {**os.environ, RUN_VARIABLE: str(tmp_path / "run.json")}

    def write(step: int) -> None:
        (tmp_path / "begun").touch()
        subprocess.run(["sleep", "1"], env=run_variable, check=True)  # it is not ended with verl's own processes

    merges = Merges([1], tmp_path / "state", write)
    started(merges)
    assert merges.left == []


def test_a_merge_ends_with_a_run_that_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started, began = start_training(tmp_path, "exec sleep 120", monkeypatch), time.monotonic()

    def write(step: int) -> None:
        merger = subprocess.Popen(["sleep", "120"], env={**os.environ, RUN_VARIABLE: str(tmp_path / "run.json")})
        os.kill(os.getpid(), signal.SIGTERM)
        if merger.wait():
            raise UserError("killed")

    merges = Merges([1], tmp_path / "state", write)
    with pytest.raises(Interrupted):
        started(merges)
    assert merges.left == [1] and not merges.is_under_way and time.monotonic() - began < 100


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


def test_a_verifier_is_given_the_whole_row(tmp_path: Path) -> None:
    problem = {"id": "train-0", "problem": "1 + 1", "answer": "2", "family": "f", "solution": "1 + 1 = 2"}
    write_problem_set(tmp_path / "train", [problem], {}, {}, {})
    _write_prompts(tmp_path / "train", "{problem}", tmp_path / "prompts.parquet", with_rows=True)
    rows = parquet.read_table(tmp_path / "prompts.parquet").to_pylist()
    assert [json.loads(row["reward_model"]["ground_truth"]) for row in rows] == [problem]


def merged(directory: Path, **weights: torch.Tensor) -> Path:
    """A checkpoint of these weights."""
    directory.mkdir()
    save_file(
        {name: each.to(torch.bfloat16).contiguous() for name, each in weights.items()}, directory / "m.safetensors"
    )
    return directory


def test_merged_weights_are_those_of_the_shards(tmp_path: Path) -> None:
    """However many ranks hold them, and however large rounding makes the difference of log-probs."""
    generator = torch.Generator().manual_seed(1)
    weights = {"a": torch.randn(50, 7, generator=generator), "b": torch.randn(3, generator=generator)}

    def sums(ranks: int) -> dict[str, WeightSums]:
        parts = {name: [WeightSums.of(part) for part in each.tensor_split(ranks)] for name, each in weights.items()}
        return {name: sum(of_ranks[1:], of_ranks[0]) for name, of_ranks in parts.items()}

    whole = merged(tmp_path / "whole", **weights)
    for ranks in (1, 2, 8):  # of b, some of 8 ranks hold nothing
        assert differing_weights(whole, sums(ranks)) == []
    shards = weights["a"].tensor_split(8)
    for number, a in enumerate((torch.cat([*shards[1:], shards[0]]), weights["a"][:49], weights["a"] + 0.01)):
        assert differing_weights(merged(tmp_path / str(number), a=a, b=weights["b"]), sums(8)) == ["a"]
    assert differing_weights(merged(tmp_path / "lacking", a=weights["a"]), sums(8)) == ["b"]


def test_hashes_are_added_while_devices_go_on(tmp_path: Path) -> None:
    state = tmp_path / "global_step_1"
    state.mkdir()
    (state / "shard.pt").write_bytes(b"abcd")
    record(state, 1).join()
    manifest = json.loads((state / MANIFEST).read_text())
    assert manifest == {"step": 1, "sizes": {"shard.pt": 4}, "files": {"shard.pt": sha256_file(state / "shard.pt")}}
    del manifest["files"]  # the process died before there were hashes
    (state / MANIFEST).write_text(json.dumps(manifest))
    assert is_intact(state)
    (state / "shard.pt").write_bytes(b"abc")
    assert not is_intact(state)


def test_a_state_that_verl_removes_while_it_is_hashed_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "global_step_1"
    state.mkdir()
    (state / "shard.pt").write_bytes(b"abcd")
    digests = checkpoints._digests

    def removed(files: Iterable[Path]) -> list[str]:
        shutil.rmtree(state)
        return digests(files)

    monkeypatch.setattr(checkpoints, "_digests", removed)
    failures: list[object] = []
    monkeypatch.setattr(threading, "excepthook", failures.append)
    record(state, 1).join()
    assert not failures and not state.exists()
