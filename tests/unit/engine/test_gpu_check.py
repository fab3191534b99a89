"""benchmarks/gpu in its smallest size, on the CPU: every measurement is made, those after a wrong one too."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


CHEAP = "environment,log-prob,step,twice,memory,DelTA,beside generate,SIGKILL"
"""Words of the names of all measurements but an end by SIGTERM, which does what the one by SIGKILL does."""


def test_every_measurement_is_made(tmp_path: Path) -> None:
    words = [sys.executable, "benchmarks/gpu/check.py", "--device", "cpu", "--tiny", "--out", str(tmp_path / "lines")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    words += ["--apart", "0", "--only", CHEAP]
    answer = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    lines = [json.loads(line) for line in (tmp_path / "lines").read_text().splitlines()]
    outside = [line["what"] for line in lines if not line.get("ok", True)]
    assert outside == [f"log-probabilities against the CPU, {dtype}" for dtype in ("bfloat16", "float32")], (
        answer.stderr
    )
    assert lines[-1]["what"] == "done" and lines[-1]["failed"] == 2 and answer.returncode == 1
    assert len(lines) == 26 and not any("skipped" in line for line in lines)
    assert all(line["same_bytes"] for line in lines if "same_bytes" in line)
