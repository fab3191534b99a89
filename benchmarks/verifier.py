"""Cost of a user's verifier per response, and of starting its sandbox; JSON on standard output.

``python benchmarks/verifier.py [--file FILE] [--case '{"response": "...", "problem": {}}'] [--responses 256]``
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

import psutil

from evals.grading import Case, GradingPool

_EXAMPLE = (
    "import re\n\n\n"
    "def verify(problem, response):\n"
    '    boxes = re.findall(r"\\\\boxed\\{([^{}]*)\\}", response)\n'
    '    return bool(boxes) and boxes[-1].strip() == problem["answer"]\n'
)
_PROBLEM = {"id": "p", "problem": "Compute 3*3.", "answer": "9", "family": "chain"}


def processor_seconds() -> float:
    """Processor time of this process and of all sandboxes, with the processes that they have waited for."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return sum(sum(each.cpu_times()[:4]) for each in processes)


def measure(file: Path, given: str | None, responses: int, rounds: int) -> dict[str, object]:
    """Judge ``responses`` one after the other in one sandbox, ``rounds`` times: all alike if one is ``given``."""
    cases = [Case(rf"3*3={n % 10} \boxed{{{n % 10}}}", "9", problem=_PROBLEM) for n in range(responses)]
    if given is not None:
        case = json.loads(given)
        cases = [Case(case["response"], "", problem=case["problem"])] * responses
    with GradingPool(1, verifier=file) as pool:
        begin = time.perf_counter()
        (verdict,) = pool.grade(cases[:1])
        first, wall, processor = time.perf_counter() - begin, [], []
        for _ in range(rounds):
            begin, before = time.perf_counter(), processor_seconds()
            pool.grade(cases)
            wall.append((time.perf_counter() - begin) / responses * 1000)
            processor.append((processor_seconds() - before) / responses * 1000)
    return {
        "reward_first": verdict.reward,
        "responses": responses,
        "rounds": rounds,
        "load": os.getloadavg()[0],
        "seconds_first": round(first, 3),
        "milliseconds": [round(each, 2) for each in sorted(wall)],
        "processor_milliseconds": [round(each, 2) for each in sorted(processor)],
        "processor_milliseconds_median": round(statistics.median(processor), 2),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path)
    parser.add_argument("--case")
    parser.add_argument("--responses", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        example = Path(scratch, "example.py")
        example.write_text(_EXAMPLE)
        print(json.dumps(measure(given.file or example, given.case, given.responses, given.rounds), indent=2))
