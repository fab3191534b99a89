"""One update of a pretrained model: replayed, probed, and its flipped tokens counted, for two architectures."""

from pathlib import Path

import numpy as np
import pytest
import torch

from evals.core.files import read_json, read_jsonl, read_parquet, write_json, write_jsonl
from evals.core.run_spec import Execution, LocalRun
from evals.grading.grade_file import try_verifier
from rlvr.engines.local.train import train
from rlvr_claims.policy import read_snapshots
from rlvr_claims.probes import write_probes
from rlvr_claims.replay import write_token_table
from tests.commands import rlvr_bench
from tests.unit.engine.conftest import llama, neox, run_content, study_files

__all__ = ["llama", "neox", "study_files"]
main = rlvr_bench("claims")

VERIFIER = """
def verify(problem, response):
    return len(response) % 3 / 2  # a random model never answers: any reward that differs within a group
"""


@pytest.mark.parametrize("architecture", ["llama", "neox"])
def test_one_update_of_a_pretrained_model_flips_tokens(
    study_files: Path, architecture: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The batched decoder computes Llama, transformers' own model GPT-NeoX, which samples, too."""
    torch.set_num_threads(1)
    run_directory, tables = tmp_path / "runs" / "other-dapo-s1", tmp_path / "tokens"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "verifier.py").write_text(VERIFIER)
    (tmp_path / "mine" / "problems.jsonl").write_bytes((study_files / "problems" / "problems.jsonl").read_bytes())
    mine = tmp_path / "mine"
    try_verifier(mine / "verifier.py", mine / "problems.jsonl", tmp_path / "verifier")
    content = run_content(study_files, {"steps": 2, "learning_rate": 0.01}) | {
        "run": "other-dapo-s1",
        "base": str(request.getfixturevalue(architecture)),
        "verifier": {"directory": str(tmp_path / "verifier"), "version": 1},
    }
    write_json(run_directory / "run.json", content)
    train(LocalRun.read(run_directory / "run.json"), run_directory, Execution(lock_wait_seconds=1.0))
    write_token_table(run_directory / "run.json", tables, [2], "cpu", 1)
    (snapshot,) = read_snapshots(tables)
    assert set(snapshot.column("side").tolist()) >= {-1.0, 1.0}
    write_probes(tables, None)
    probes = read_parquet(tables / "probes.parquet")
    assert np.abs(probes["null"]).max() < 1e-4 < np.abs(probes["joint"]).max()
    arguments = ["--tables", str(tables), "--results", str(tmp_path), "--runs", "other-dapo-s1"]
    arguments += ["--out", str(tmp_path / "flips"), "--figure", str(tmp_path / "flips")]
    assert main(["measure", "token_flipping", *arguments]) == 0
    found = {row["quantity"]: row["estimate"] for row in read_json(tmp_path / "flips.json")["measurements"]}
    assert 0 < found["flip rate in rewarded rollouts, as trained"] < 1
    if architecture == "neox":  # the claims that sample: a random model is never right, so there are no gaps
        problems = read_jsonl(study_files / "problems" / "problems.jsonl")
        write_jsonl(tmp_path / "problems" / "small" / "problems.jsonl", problems[:2])
        for claim in ("token_value", "update_direction", "sampling_settings"):
            places = ["--out", str(tmp_path / claim), "--figure", str(tmp_path / claim), "--benchmarks", "small"]
            assert main(["measure", claim, *arguments, *places]) == 0
