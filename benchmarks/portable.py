"""The time of training steps with the portable code paths, relative to the machine's own.

``python benchmarks/portable.py --run results/runs/tiny-dapo-s1/run.json`` prints JSON: processor seconds of a step with
either, and the quartiles of their ratio. Two processes train the same run and take turns, so that other work on the
machine slows both. Nothing is written.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from evals.generation import arithmetic

PATHS = ("own", "portable")


def main() -> None:
    """Measure and print JSON, or be one of the two processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="run.json; its base model and problems are read")
    parser.add_argument("--steps", type=int, default=8, help="of each process, after one that is not counted")
    parser.add_argument("--code-paths", choices=PATHS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.code_paths:
        _train(arguments.run, arguments.steps + 1, arguments.code_paths == "portable")
    else:
        print(json.dumps(_compare(arguments.run, arguments.steps), indent=2))


def _compare(run: Path, steps: int) -> dict[str, object]:
    import pandas as pd

    command = [sys.executable, __file__, "--run", str(run), "--steps", str(steps), "--code-paths"]
    processes = [
        subprocess.Popen([*command, paths], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for paths in PATHS
    ]
    rows = []
    for _ in range(steps + 1):
        row = []
        for process in processes:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("step\n")
            process.stdin.flush()
            row.append(json.loads(process.stdout.readline()))
        rows.append(row)
    seconds = pd.DataFrame(rows[1:], columns=list(PATHS))
    ratios = (seconds["portable"] / seconds["own"]).quantile([0.25, 0.5, 0.75])
    medians = {f"seconds_{name}": round(float(seconds[name].median()), 3) for name in PATHS}
    return {
        "steps": steps,
        **medians,
        **{f"ratio_quantile_{level}": round(ratio, 3) for level, ratio in ratios.items()},
    }


def _train(run: Path, steps: int, portable: bool) -> None:
    """Train a step whenever a line arrives, and answer with its processor seconds; grading is another process's."""
    arithmetic.set_up(1, portable)
    from evals.core.run_spec import LocalRun
    from evals.grading import GradingPool
    from rlvr.engines.local.learner import Learner

    with GradingPool(workers=1) as pool:
        learner = Learner(LocalRun.read(run), "cpu")
        for _ in range(steps):
            sys.stdin.readline()
            before = time.process_time()
            learner.step(pool)
            print(time.process_time() - before, flush=True)


if __name__ == "__main__":
    main()
