"""benchmarks/gpu in its smallest size, on the CPU: every measurement is made, and one that fails ends no other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_every_measurement_is_made(tmp_path: Path) -> None:
    words = [sys.executable, "benchmarks/gpu/check.py", "--device", "cpu", "--tiny", "--out", str(tmp_path / "lines")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    missing = ["--run", str(tmp_path / "run.json")]
    answer = subprocess.run([*words, *missing], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    lines = [json.loads(line) for line in (tmp_path / "lines").read_text().splitlines()]
    assert [line["what"] for line in lines if not line.get("ok", True)] == ["your training"], answer.stderr
    assert lines[-1]["what"] == "done" and lines[-1]["failed"] == 1 and answer.returncode == 1
    assert len(lines) == 17 and not any("skipped" in line for line in lines)
    assert all(line["same_bytes"] for line in lines if "same_bytes" in line)
