"""Seconds and memory of ``snakemake -n``: of a finished study, and of one of 3,200 training runs that has not begun.

    python benchmarks/planning.py --directory . --out planning.json      (after make reproduce)

Beside each figure stands Snakemake's own start (``snakemake --version``), measured in the same run. On a busy machine
the seconds of the processor say more than those of the clock.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).resolve().parents[1]
BENCHMARKS = ("chain_3", "chain_5", "chain_7", "reverse_4", "variables_4", "worded_3", "worded_4", "worded_5")


def measure(arguments: list[str], repetitions: int) -> tuple[dict[str, float], str]:
    """Measure a snakemake command in the repository, the median of several, and return what it said."""
    taken, said = list[tuple[float, float, float]](), ""
    for _ in range(repetitions):
        with tempfile.TemporaryFile("w+") as output:
            started = time.perf_counter()
            command = [sys.executable, "-m", "snakemake", *arguments]
            process = subprocess.Popen(command, cwd=REPOSITORY, stdout=output, stderr=output)
            _, status, usage = os.wait4(process.pid, 0)
            seconds = time.perf_counter() - started
            output.seek(0)
            said = output.read()
        if status:
            sys.exit(said)
        taken.append((seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024))  # KiB, as Linux has it
    names, columns = ("seconds", "processor_seconds", "peak_mib"), zip(*taken, strict=True)
    return {name: round(statistics.median(of), 2) for name, of in zip(names, columns, strict=True)}, said


def large_study() -> dict[str, Any]:
    """Make a study of 50 methods, 16 seeds, 4 models and 8 benchmarks."""
    study: dict[str, Any] = yaml.safe_load((REPOSITORY / "config/smoke.yaml").read_text())
    tiny = study["models"]["tiny"]
    rates = {f"dapo_{n}": {"extends": "dapo", "training": {"learning_rate": 3e-4 + n * 1e-6}} for n in range(1, 50)}
    models = {f"tiny{n}": {**tiny, "training": {**tiny["training"], "seed": n}} for n in range(1, 5)}
    return {
        **{key: value for key, value in study.items() if key != "controls"},
        **{"seeds": list(range(1, 17)), "benchmarks": list(BENCHMARKS), "models": models},
        **{"methods": {"dapo": {}, **rates}, "reference_method": "dapo"},
    }


def main() -> None:
    """Measure, write JSON and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", default=".", help="where the finished default study is")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("planning.json"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as empty:
        config = Path(empty) / "large.yaml"
        config.write_text(yaml.safe_dump(large_study(), sort_keys=False))
        start, _ = measure(["--version"], arguments.repetitions)
        finished, said = measure(["-n", "--directory", arguments.directory], arguments.repetitions)
        large, plan = measure(["-n", "--directory", empty, "--configfile", str(config)], 1)
    jobs = re.search(r"^total +(\d+)", plan, re.MULTILINE)
    result = {
        "snakemake_start": start,
        "finished_study": {**finished, "nothing_to_do": "Nothing to be done" in said},
        "large_study": {**large, "jobs": int(jobs[1]) if jobs else None},
    }
    arguments.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
