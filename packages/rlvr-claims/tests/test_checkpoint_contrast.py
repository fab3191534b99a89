"""Contrast on bare checkpoints of architectures that the local engine does not train."""

from pathlib import Path

import pandas as pd
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config

from evals.core.files import write_jsonl
from evals.core.manifest import verify_outputs
from evals.grading import GradingPool
from evals.grading.verdict import Reason, Verdict
from rlvr.engines.local.rollout import Rollouts
from tests.commands import rlvr_bench
from tests.unit.engine.conftest import save_pretrained

CONFIGS = {"llama": LlamaConfig, "qwen2": Qwen2Config}
METHODS = ["positive_only", "delta_lambda_0_5_1_5", "dr_grpo"]


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    path = tmp_path / "problems.jsonl"
    write_jsonl(path, [{"id": str(n), "problem": f"{n}+0=", "answer": str(n)} for n in range(4)])
    return path


def save_model(directory: Path, architecture: str) -> Path:
    return save_pretrained(directory, CONFIGS[architecture], num_key_value_heads=2)


def run(source: Path, out: Path, *options: str) -> int:
    sizes = ["--prompts", "4", "--samples", "32", "--updates", "2", "--max-new-tokens", "3"]
    given = ["--methods", *METHODS, "--steps", "1", "2", "--out", str(out), "--learning-rate", "0.001", *sizes]
    return rlvr_bench("claims", "contrast")([str(source), *given, "--prompt", "{problem}", *options])


@pytest.mark.parametrize("architecture", list(CONFIGS))
def test_angles_on_a_checkpoint_of_any_architecture(
    tmp_path: Path,
    problems: Path,
    architecture: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The reward of a random model: whether the response has a digit in it, which some have and others have not.
    def verdicts(self: Rollouts, pool: GradingPool) -> list[Verdict]:
        right = [any(map(str.isdigit, case.prediction)) for case in self.cases]
        return [Verdict(digit, None, Reason.MATCH if digit else Reason.MISMATCH, 0.0) for digit in right]

    monkeypatch.setattr(Rollouts, "verdicts", verdicts)
    model = save_model(tmp_path / "model", architecture)
    before = AutoModelForCausalLM.from_pretrained(model).state_dict()
    assert run(model, tmp_path / "out", "--problems", str(problems)) == 0
    printed = capsys.readouterr().out
    frame = pd.read_parquet(tmp_path / "out" / "contrast.parquet").pivot(
        index="method", columns="step", values="degrees"
    )
    assert set(frame.index) == {"dapo", *METHODS} and all(name in printed for name in frame.index)
    assert frame.loc["dapo"].tolist() == pytest.approx([0, 0], abs=0.05)
    assert (frame.drop("dapo") > 0.5).any(axis=1).all()
    verify_outputs(tmp_path / "out" / "manifest.json", "contrast")
    after = AutoModelForCausalLM.from_pretrained(model).state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["contrast.parquet", "manifest.json"]


def test_what_is_missing_is_said_in_one_line(
    tmp_path: Path, problems: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = save_model(tmp_path / "model", "llama")
    assert run(model, tmp_path / "out") == 2
    assert "--problems" in capsys.readouterr().err
    assert run(model, tmp_path / "out", "--problems", str(problems), "--updates", "3") == 2
    assert "--updates" in capsys.readouterr().err
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    assert run(model, tmp_path / "out", "--problems", str(problems)) == 2
    assert "safetensors" in capsys.readouterr().err
