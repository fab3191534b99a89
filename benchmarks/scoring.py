"""Processor seconds of ``rlvr-bench score`` and ``compare`` on many grades, beside ``json.loads`` of the same lines.

    python benchmarks/scoring.py --problems 12500 --samples 80 --out scoring.json      (a million grades)

Wrong answers are spread widely, so that hardly two problems have the same votes: the hard case for maj@k.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from evals.core.files import write_jsonl
from rlvr.cli import main as rlvr_bench


def write_grades(path: Path, problems: int, samples: int, key: int) -> None:
    """Write grades of problems from impossible to easy, with up to ten wrong answers each."""
    generator = np.random.default_rng(key)

    def grade(problem: int, sample: int, correct: bool) -> dict[str, object]:
        return {
            "problem_id": f"p{problem}",
            "sample": sample,
            "correct": correct,
            "answer": "7" if correct else str(20 + min(9, int(generator.exponential(1.4)))),
            "reason": "match" if correct else "mismatch",
            "tokens": 100 + sample,
            "finish_reason": "stop",
        }

    rates = generator.beta(0.8, 0.8, problems)
    verdicts = (generator.random((problems, samples)) < rates[:, None]).tolist()
    write_jsonl(path, (grade(n, k, right) for n, row in enumerate(verdicts) for k, right in enumerate(row)))


def seconds(work: Callable[[], object]) -> float:
    """Processor seconds of a call whose output is not shown."""
    started = time.process_time()
    with contextlib.redirect_stdout(io.StringIO()):
        work()
    return round(time.process_time() - started, 4)


def main() -> None:
    """Measure, write JSON and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=12_500)
    parser.add_argument("--samples", type=int, default=80)
    parser.add_argument("--out", type=Path, default=Path("scoring.json"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        files = [Path(directory, f"{name}.jsonl") for name in ("one", "other")]
        for key, path in enumerate(files):
            write_grades(path, arguments.problems, arguments.samples, key)
        plain = seconds(lambda: [json.loads(line) for line in files[0].read_text().splitlines()])
        score = seconds(lambda: rlvr_bench(["score", str(files[0])]))
        compare = seconds(lambda: rlvr_bench(["compare", *map(str, files)]))
    result = {
        "grades": arguments.problems * arguments.samples,
        "json_loads_seconds": plain,
        "score_seconds": score,
        "score_over_json_loads": round(score / plain, 1),
        "compare_seconds": compare,
        "peak_mebibytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
    arguments.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
