"""Time and memory of local training steps under two versions of the code: same run, same steps, in turns.

    git worktree add ../before COMMIT
    python benchmarks/training.py --run results/runs/tiny-dapo-s1/run.json --before ../before --out training.json

The run's problems and base model are read, its results are left alone. Each version is a process of its own that makes
the run's first steps in memory, and the validation that is due after each, while the other one waits. Processor time is
counted, which other work on the machine disturbs less than wall time; ``start`` is what a process takes before its
first step, its imports included. Rewards and lengths of the steps are put down too: the two versions have sampled the
same responses for as long as they agree.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

SIDES = ("before", "after")
PARTS = ("rollout", "reward", "log_probs", "token_weights", "update")


def work(run_file: Path, threads: int) -> None:
    """Make a step of the run for every line of the standard input, and answer with a line of JSON each."""
    import torch

    from evals.core.run_spec import LocalRun
    from evals.grading import GradingPool
    from rlvr.engines.local.learner import Learner

    torch.set_num_threads(threads)
    with redirect_stdout(sys.stderr):  # which it tells how responses end
        learner = Learner(LocalRun.read(run_file), "cpu")
    with GradingPool(workers=1) as pool:
        print(json.dumps({"seconds": time.process_time()}), flush=True)
        for _ in sys.stdin:
            started = time.process_time()
            row = learner.step(pool)
            learner.position.metrics.append(row)
            learner.validate(pool)
            seconds = time.process_time() - started
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(json.dumps({"seconds": seconds, "peak_mib": peak, "metrics": row}), flush=True)


def measure(arguments: argparse.Namespace) -> dict[str, object]:
    """Alternate the two processes and compare within each step."""
    here = Path(__file__).resolve()
    processes = {}
    for side, code in zip(SIDES, (arguments.before.resolve(), here.parents[1]), strict=True):
        threads = str(arguments.threads)
        command = [sys.executable, str(here), "--work", "--run", str(arguments.run), "--threads", threads]
        environment = {**os.environ, "PYTHONPATH": str(code), "OMP_NUM_THREADS": threads}
        processes[side] = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
    start = {side: _answer(process) for side, process in processes.items()}
    rows: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    for _ in range(arguments.steps):
        for side, process in processes.items():
            assert process.stdin is not None
            print(file=process.stdin, flush=True)
            rows[side].append(_answer(process))
    for process in processes.values():
        process.communicate()
    pairs = list(zip(*rows.values(), strict=True))[arguments.warm_up :]
    ratios = sorted(before["seconds"] / after["seconds"] for before, after in pairs)

    def median(side: str, part: str) -> float:
        return round(statistics.median(row["metrics"][f"seconds_{part}"] for row in rows[side][arguments.warm_up :]), 4)

    def rounded(side: str, key: str) -> float:
        return round(statistics.median(row[key] for row in rows[side][arguments.warm_up :]), 4)

    def course(name: str) -> dict[str, list[float]]:
        return {side: [round(row["metrics"][name], 4) for row in rows[side]] for side in SIDES}

    return {
        "run": str(arguments.run),
        "threads": arguments.threads,
        "steps": len(ratios),
        "speed_up": {
            "median": round(statistics.median(ratios), 3),
            "lowest": round(ratios[0], 3),
            "highest": round(ratios[-1], 3),
            "of_all_together": round(
                sum(row["seconds"] for row, _ in pairs) / sum(row["seconds"] for _, row in pairs), 3
            ),
        },
        "seconds_of_a_step": {side: rounded(side, "seconds") for side in SIDES},
        "wall_seconds_of_its_parts": {side: {part: median(side, part) for part in PARTS} for side in SIDES},
        "seconds_to_start": {side: round(start[side]["seconds"], 2) for side in SIDES},
        "peak_mib": {side: round(rows[side][-1]["peak_mib"]) for side in SIDES},
        "tokens": course("tokens_generated"),
        "reward": course("reward_mean"),
        "gradient_norm": course("grad_norm"),
    }


def _answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        sys.exit(f"a worker ended with status {process.wait()}")
    answer: dict[str, Any] = json.loads(line)
    return answer


def main() -> None:
    """Measure, write JSON and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="run.json; its paths are relative to this directory")
    parser.add_argument("--before", type=Path, default=Path(), help="checkout of the version to compare with")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warm-up", type=int, default=1, help="first steps that are not counted")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("training.json"))
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments.run, arguments.threads)
        return
    result = measure(arguments)
    arguments.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
