"""Seconds that ``snakemake -n`` takes: on a finished study, and on one of about 1,500 jobs of which none has run.

    python benchmarks/planning.py --directory . --out planning.json      (after make reproduce)

Beside each figure stands Snakemake's own start (``snakemake --version``), measured in the same run.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

REPOSITORY = Path(__file__).resolve().parents[1]


def seconds(arguments: list[str], repetitions: int) -> tuple[float, str]:
    """Median wall time of a snakemake command in the repository, and its output."""
    taken = []
    for _ in range(repetitions):
        started = time.perf_counter()
        answer = subprocess.run(
            [sys.executable, "-m", "snakemake", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=True
        )
        taken.append(time.perf_counter() - started)
    return round(statistics.median(taken), 2), answer.stdout + answer.stderr


def main() -> None:
    """Measure, write JSON and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", default=".", help="where the finished default study is")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("planning.json"))
    arguments = parser.parse_args()
    large = yaml.safe_load((REPOSITORY / "config/config.yaml").read_text())
    large["seeds"] = list(range(1, 18))
    with tempfile.TemporaryDirectory() as empty:
        config = Path(empty) / "large.yaml"
        config.write_text(yaml.safe_dump(large))
        start, _ = seconds(["--version"], arguments.repetitions)
        finished, said = seconds(["-n", "--directory", arguments.directory], arguments.repetitions)
        large_study = ["--directory", empty, "--configfile", str(config)]
        planned, _ = seconds(["-n", "--quiet", *large_study], arguments.repetitions)
        listed, plan = seconds(["-n", *large_study], arguments.repetitions)
    jobs = re.search(r"^total +(\d+)", plan, re.MULTILINE)
    result = {
        "snakemake_start_seconds": start,
        "finished_study": {"seconds": finished, "nothing_to_do": "Nothing to be done" in said},
        "large_study": {
            "jobs": int(jobs[1]) if jobs else None,
            "seconds": planned,
            "seconds_with_every_job_listed": listed,
        },
    }
    arguments.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
