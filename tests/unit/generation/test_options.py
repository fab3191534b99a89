from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import rlvr_bench

main = rlvr_bench("stage")

OPTIONS = {
    "--source": "model",
    "--problems": "problems",
    "--prompt": "{problem}\n",
    "--samples-per-problem": "4",
    "--max-new-tokens": "8",
    "--temperature": "1.0",
    "--top-p": "1.0",
    "--batch-size": "4",
    "--seed": "1",
    "--threads": "1",
}


@pytest.mark.parametrize(
    ("option", "value", "accepted"),
    [
        ("--temperature", "-1", "at least 0"),
        ("--temperature", "nan", "finite number"),
        ("--top-p", "0", "above 0"),
        ("--top-p", "1.5", "at most 1"),
        ("--samples-per-problem", "0", "at least 1"),
        ("--max-new-tokens", "0", "at least 1"),
        ("--batch-size", "-3", "at least 1"),
        ("--max-model-len", "0", "at least 1"),
        ("--threads", "0", "at least 1"),
        ("--prompt", "Solve it.", "{problem}"),
    ],
)
def test_numbers_out_of_range_are_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, value: str, accepted: str
) -> None:
    options = {**OPTIONS, "--out": str(tmp_path / "out"), option: value}
    assert main(["sample", *(f"{name}={given}" for name, given in options.items())]) == 2
    message = capsys.readouterr().err
    assert message.startswith(f"error: {option}: is ") and accepted in message and message.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_planning_does_without_torch() -> None:
    """A job whose samples are made has only to write them: to import torch would take most of its time."""
    command = "import sys, evals.generation.evaluate, rlvr.cli.stages; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", command], check=False).returncode == 0
