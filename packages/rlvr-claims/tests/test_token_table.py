"""The token table says what a run did, and making it leaves the run alone."""

import dataclasses
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as parquet
import pytest
import torch

from evals.core.errors import InvalidInput, UserError
from evals.core.files import read_json, sha256_file, write_json, write_parquet
from evals.core.run_spec import LocalRun
from evals.generation.checkpoint import Checkpoint
from rlvr.base_model.train import WORD
from rlvr.engines.local.policy import score_in_chunks
from rlvr.engines.local.train import train
from rlvr.tokens.table import DISPLACEMENT, REPLAY_COLUMNS, classes_of, read_token_table, token_class
from rlvr_claims.policy import PolicySnapshot, read_snapshots
from rlvr_claims.probes import log_probs_of
from rlvr_claims.replay import write_token_table
from tests.claims.replayed_run import EXECUTION, KEPT_STEPS
from tests.unit.engine.conftest import run_content


def test_a_row_per_response_token_with_the_schema(token_table: Path, snapshots: list[PolicySnapshot]) -> None:
    table = read_token_table(token_table)
    assert {name: str(kind) for name, kind in table.dtypes.items()} == REPLAY_COLUMNS
    assert table["step"].unique().tolist() == list(KEPT_STEPS)
    for snapshot in snapshots:
        assert [len(response) for response in snapshot.tokens.responses] == (
            snapshot.rows.groupby(["group", "sample"], sort=False).size().tolist()
        )
        assert snapshot.token_ids.tolist() == [token for response in snapshot.tokens.responses for token in response]


def test_old_log_probs_and_entropies_are_of_the_policy_before_the_step(snapshots: list[PolicySnapshot]) -> None:
    for snapshot in snapshots:
        log_probs, entropies = score_in_chunks(snapshot.model, snapshot.tokens, 1.0, 1000)
        torch.testing.assert_close(snapshot.column("old_log_prob").float(), log_probs)
        torch.testing.assert_close(snapshot.column("entropy").float(), entropies)


def test_new_log_probs_are_of_the_policy_after_the_step(trained_run: Path, tmp_path: Path) -> None:
    """Of the last step: the checkpoint that the run left."""
    write_token_table(trained_run, tmp_path, [4], "cpu", 1)
    table = read_token_table(tmp_path)
    snapshot = read_snapshots(tmp_path)[0]
    after = Checkpoint(trained_run.parent / "checkpoint").model("cpu")
    found = score_in_chunks(after, snapshot.tokens, 1.0, 1000)[0].numpy()
    np.testing.assert_allclose(table["new_log_prob"], found, rtol=1e-4, atol=1e-5)


def test_the_displacements_of_a_run_in_bfloat16_are_those_of_its_weights(study_files: Path, tmp_path: Path) -> None:
    """Updates so small that passes in bfloat16 round more than they move; of the last step, up to the checkpoint."""
    directory = tmp_path / "runs" / "tiny-dapo-s1"
    content = run_content(study_files, {"prompts_per_step": 8, "learning_rate": 2e-5, "warmup_updates": 0})
    write_json(directory / "run.json", content | {"dtype": "bfloat16"})
    train(LocalRun.read(directory / "run.json"), directory, EXECUTION)
    write_token_table(directory / "run.json", tmp_path / "tokens", [4], "cpu", 1)
    (snapshot,) = read_snapshots(tmp_path / "tokens")
    after = Checkpoint(directory / "checkpoint").model("cpu")
    expected = log_probs_of(after, snapshot.tokens, 1.0) - log_probs_of(snapshot.model, snapshot.tokens, 1.0)
    torch.testing.assert_close(snapshot.own_displacement, expected, atol=2e-6, rtol=0)
    rounded = snapshot.column("new_log_prob") - snapshot.column("old_log_prob")
    assert float((rounded - expected).abs().mean()) > float(expected.abs().mean())
    lacking = dataclasses.replace(snapshot, rows=snapshot.rows.drop(columns=DISPLACEMENT))
    with pytest.raises(UserError, match="no column displacement, which runs in bfloat16 need"):
        lacking.own_displacement  # noqa: B018


def test_the_file_of_a_run_in_float32_has_no_further_column(token_table: Path) -> None:
    assert parquet.read_schema(token_table / "tokens.parquet").names == list(REPLAY_COLUMNS)


def test_a_gate_is_the_ratio_or_nothing_where_the_clip_stops_the_token(snapshots: list[PolicySnapshot]) -> None:
    rows = pd.concat([snapshot.rows for snapshot in snapshots])
    acting = rows[rows["advantage"] != 0]
    stopped = ((acting["advantage"] > 0) & (acting["ratio"] > 1.28)) | (
        (acting["advantage"] < 0) & ((acting["ratio"] < 0.8) | (acting["ratio"] > 10))  # the dual clip, too
    )
    assert stopped.any() and not stopped.all()
    np.testing.assert_allclose(acting["gate"], np.where(stopped, 0.0, acting["ratio"]), rtol=1e-4)
    assert rows[rows["advantage"] == 0]["gate"].isna().all()


def test_advantages_add_up_to_zero_in_each_group_and_sides_are_their_signs(token_table: Path) -> None:
    table = read_token_table(token_table)
    rollouts = table.drop_duplicates(["step", "group", "sample"])
    assert rollouts.groupby(["step", "group"])["advantage"].sum().abs().max() < 1e-5
    assert (np.sign(table["advantage"]) == table["side"]).all()
    assert rollouts.groupby(["step", "group"])["problem"].nunique().eq(1).all()


def test_the_run_is_left_alone(trained_run: Path, tmp_path: Path) -> None:
    before = {path: sha256_file(path) for path in trained_run.parent.rglob("*") if path.is_file()}
    write_token_table(trained_run, tmp_path, [1], "cpu", 1)
    assert {path: sha256_file(path) for path in trained_run.parent.rglob("*") if path.is_file()} == before


def test_a_replay_that_is_not_the_run_is_refused(trained_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained_run.parent, run)
    metrics = pd.read_parquet(run / "metrics.parquet")
    metrics.loc[1, "entropy"] += 0.01
    write_parquet(run / "metrics.parquet", metrics)
    manifest = read_json(run / "manifest.json")
    manifest["outputs"]["metrics.parquet"] = sha256_file(run / "metrics.parquet")
    write_json(run / "manifest.json", manifest)
    write_token_table(run / "run.json", tmp_path / "first", [1], "cpu", 1)
    with pytest.raises(UserError, match="step 2 has entropy"):
        write_token_table(run / "run.json", tmp_path / "second", [2], "cpu", 1)


def test_a_step_that_the_run_does_not_have_is_refused(trained_run: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as error:
        write_token_table(trained_run, tmp_path, [5], "cpu", 1)
    assert error.value.source == "--steps"
    assert error.value.accepted.startswith("1 to 4")


def test_a_token_is_classed_by_its_place_in_the_line() -> None:
    line = ["b", "=", "3", "+", "4", "=", "7", "\n", "\\boxed{", "7", "}", "<|end|>"]
    expected = ["format", "format", "operand", "operator", "operand", "format", "result", "format"]
    expected += ["format", "answer", "format", "format"]
    assert classes_of(np.zeros(len(line), dtype=int), line) == expected
    assert token_class("b=", "3") == "operand"
    # A new rollout starts a new line.
    assert classes_of(np.array([0, 0, 1]), ["3+4", "=", "7"])[2] == "operand"


def test_a_token_of_an_equation_with_spaces_is_classed_by_its_place_in_the_line() -> None:
    texts = re.findall(r" ?\d| ?[^\d\s]+|\s", "3 + 42 = 45\n45 / 4 = 11.25\nso x = 5\n\n#### 11.25")
    classes = classes_of(np.zeros(len(texts), dtype=int), texts)
    first = [
        ("3", "operand"),
        (" +", "operator"),
        (" 4", "operand"),
        ("2", "operand"),
        (" 4", "result"),
        ("5", "result"),
    ]
    second = [
        ("4", "operand"),
        ("5", "operand"),
        (" /", "operator"),
        (" 4", "operand"),
        *[(" 1", "result"), ("1", "result")],
    ]
    third = [("2", "result"), ("5", "result"), (" 5", "operand")]
    last = [(" 1", "answer"), ("1", "answer"), ("2", "answer"), ("5", "answer")]
    found = [pair for pair in zip(texts, classes, strict=True) if pair[1] != "format"]
    assert found == [*first, *second, *third, *last]


def test_a_token_of_a_worded_solution_is_classed_by_its_place_in_the_sentence() -> None:
    texts = re.findall(WORD, r"Now 3 plus 4 slowly counted gives 7. Ignore the note 5. The answer is \boxed{7}.")
    classes = classes_of(np.zeros(len(texts), dtype=int), texts)
    step = [(" 3", "operand"), (" plus", "operator"), (" 4", "operand"), (" 7", "result")]
    rest = [(" 5", "operand"), ("7", "answer")]
    assert [pair for pair in zip(texts, classes, strict=True) if pair[1] != "format"] == [*step, *rest]
