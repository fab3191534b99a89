"""Throughput of the grader, beside plain math-verify on the same texts in the same run; JSON on standard output.

``python benchmarks/grading.py [--workers 4] [--output results/benchmarks/grading.json] [--beside CHECKOUT]``

With ``--beside``, only integers, long texts and texts that choose an option, in turn by this code and by that of
another checkout, and the ratio of the two. Otherwise three measurements: integer answers, 20 kB texts with and without
an answer (interleaved with math-verify's own ``parse`` and ``verify`` on a part of the same texts), and a mixture of
10,000 answers with every resource bomb in it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from evals.core.files import write_json
from evals.grading import Case, GradingPool, Kind

INTEGER_ANSWERS = 100_000
LONG_TEXTS = 2_000
LONG_TEXT_LENGTH = 20_000
ROUNDS = 5
PLAIN_TEXTS_PER_ROUND = 10
MIXED_ANSWERS = 10_000
GRADER_CASES = Path(__file__).parents[2] / "shared/data/grader_cases.jsonl"

SENTENCE = (
    "We add the first terms, so that $x = {0}$ and the answer is near $\\frac{{{0}}}{{7}}$; checking once more.\n"
)

BOMBS = (
    r"10^{10^{10}}",
    r"2^{2^{2^{2^{2^{2}}}}}",
    "1000000000!",
    "((10!)!)!",
    r"\sum_{k=1}^{10^{12}} \frac{1}{k}",
    r"\prod_{k=1}^{100000000} k",
    r"\int_0^\infty \frac{\sin(x^{x})}{x^{x^{x}}}dx",
    r"\binom{10^{9}}{5\cdot 10^{8}}",
    r"\binom{1000000000}{500000000}",
    r"\Gamma(100000000)",
    "+".join(f"x_{{{index}}}" for index in range(250)),
    r"\sqrt{" * 40 + "x" + "}" * 40,
    "(" * 50 + "1" + ")" * 50,
    "{" * 50_000 + "}" * 50_000,
    "1" * 50_000,
    "x" * 1_900,
    "x" * 20_000,
    r"\frac{" * 2_000 + "1",
    "1," * 900 + "1",
)
FORMS: tuple[tuple[str, str], ...] = (
    ("{n}", "{n}"),
    ("{n}", "{m}"),
    (r"\frac{{{n}}}{{{m}}}", "{n}/{m}"),
    (r"\sqrt{{{n}}}+\frac{{1}}{{{m}}}", r"\frac{{1}}{{{m}}}+\sqrt{{{n}}}"),
    (r"{n}\sqrt{{5}}", r"{m}\sqrt{{5}}"),
    ("({n}, {m})", "({n},{m})"),
    (r"x^2+{n}x+{m}", r"{m}+{n}x+x^2"),
    (r"[{n}, \infty)", r"x \ge {n}"),
    (r"{n}\pi\text{{ cm}}^2", r"{n}\pi"),
    (r"\text{{Evelyn}}", "Evelyn"),
)


def boxed(answer: str) -> str:
    """A sentence that ends in a boxed answer."""
    return rf"So the value is $\boxed{{{answer}}}$."


def integer_cases() -> list[Case]:
    """Right and wrong integers."""
    return [Case(boxed(str(index % 1000)), str(index * 7 % 1000)) for index in range(INTEGER_ANSWERS)]


def long_texts() -> list[Case]:
    """Texts of 20 kB, all different; every other one ends in a box."""
    cases = []
    for index in range(LONG_TEXTS):
        filler = SENTENCE.format(index) * (LONG_TEXT_LENGTH // len(SENTENCE) + 1)
        text = filler[: LONG_TEXT_LENGTH - 40] + (boxed(str(index)) if index % 2 else " and that is all")
        cases.append(Case(text, str(index)))
    return cases


def choice_cases(length: int, count: int) -> list[Case]:
    """Texts that discuss three options and choose one at their end; every fifth chooses none."""
    cases = []
    for index in range(count):
        filler = (
            f"{SENTENCE.format(index)}(A) is too large. We compare option B with {index}. The value in C is smaller. "
        )
        text = (filler * (length // len(filler) + 1))[: length - 25]
        cases.append(Case(text + (". The answer is (D)." if index % 5 else " and that is all."), "D", Kind.CHOICE))
    return cases


def mixed_cases() -> list[Case]:
    """Answers of ten forms, all different, with every bomb among them."""
    golds = ("42", r"\frac{x^2}{3}")
    bombs = [Case(boxed(bomb), gold) for bomb in BOMBS for gold in golds]
    if GRADER_CASES.is_file():
        rows = [json.loads(line) for line in GRADER_CASES.read_text(encoding="utf-8").splitlines()]
        bombs += [Case(row["pred"], row["gold"]) for row in rows if row["source"] == "constructed:resource"]
    cases = []
    for index in range(MIXED_ANSWERS - len(bombs)):
        answer, gold = FORMS[index % len(FORMS)]
        cases.append(Case(boxed(answer.format(n=index, m=index + 1)), gold.format(n=index, m=index + 1)))
    spacing = max(len(cases) // len(bombs), 1)
    for position, bomb in enumerate(bombs):
        cases.insert(position * (spacing + 1), bomb)
    return cases


def plain_math_verify(cases: Sequence[Case]) -> None:
    """Grade as most trainers do: parse the whole text, with the library's own timeouts."""
    from math_verify import parse, verify

    for case in cases:
        verify(parse(f"${case.gold}$"), parse(case.prediction))


def seconds(action: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """The time of one call, by the wall or another clock."""
    start = clock()
    action()
    return clock() - start


def measure_long_texts(pool: GradingPool) -> dict[str, Any]:
    """Alternate ours and plain math-verify on slices of the same texts."""
    cases = long_texts()
    ours, plain = [], []
    plain_math_verify(cases[:2])
    for index in range(ROUNDS):
        part = cases[index::ROUNDS]
        ours.append(len(part) / seconds(lambda part=part: pool.grade(part)))  # type: ignore[misc]
        shorter = part[:PLAIN_TEXTS_PER_ROUND]
        plain.append(len(shorter) / seconds(lambda shorter=shorter: plain_math_verify(shorter)))  # type: ignore[misc]
    return {
        "texts": len(cases),
        "characters": LONG_TEXT_LENGTH,
        "per_second": statistics.median(ours),
        "per_second_rounds": ours,
        "math_verify_per_second": statistics.median(plain),
        "math_verify_per_second_rounds": plain,
        "ratio": statistics.median(mine / theirs for mine, theirs in zip(ours, plain, strict=True)),
    }


def measure_mixture(pool: GradingPool) -> dict[str, Any]:
    """Grade the mixture once, from cold workers."""
    cases = mixed_cases()
    start = time.perf_counter()
    verdicts = pool.grade(cases)
    elapsed = time.perf_counter() - start
    reasons = Counter(verdict.reason.value for verdict in verdicts)
    return {"answers": len(cases), "seconds": elapsed, "reasons": dict(sorted(reasons.items()))}


def rates_once() -> dict[str, float]:
    """Cases a second of processor time, measured once: none of them leaves the process."""
    groups = {
        "integer_answers": integer_cases(),
        "long_texts": long_texts(),
        "choices_in_short_texts": choice_cases(500, 2_000),
        "choices_in_long_texts": choice_cases(LONG_TEXT_LENGTH, 100),
    }
    rates = {}
    with GradingPool(1) as pool:
        for name, cases in groups.items():
            rates[name] = len(cases) / seconds(lambda cases=cases: pool.grade(cases), time.process_time)  # type: ignore[misc]
    return rates


def measure_beside(other: Path) -> dict[str, Any]:
    """The rates of this checkout and of another, measured in turn in processes of their own."""
    measured: dict[str, list[dict[str, float]]] = {"here": [], "there": []}
    for _ in range(ROUNDS):
        for name, checkout in (("here", Path(__file__).parents[1]), ("there", other)):
            command = [sys.executable, __file__, "--rates"]
            answer = subprocess.run(
                command, env={**os.environ, "PYTHONPATH": str(checkout)}, capture_output=True, text=True, check=True
            )
            measured[name].append(json.loads(answer.stdout))
    report: dict[str, Any] = {}
    for kind in measured["here"][0]:
        here, there = ([kinds[kind] for kinds in measured[name]] for name in ("here", "there"))
        ratio = statistics.median(mine / theirs for mine, theirs in zip(here, there, strict=True))
        report[kind] = {"here": statistics.median(here), "there": statistics.median(there), "ratio": ratio}
    return report


def main() -> int:
    """Measure, and print or write the JSON."""
    parser = argparse.ArgumentParser(description="Measure the grader.")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--output", type=Path, help="file to write instead of standard output")
    parser.add_argument(
        "--beside", type=Path, metavar="CHECKOUT", help="another checkout to measure in turn with this one"
    )
    parser.add_argument("--rates", action="store_true", help="print the rates of this process's code and stop")
    options = parser.parse_args()
    if options.rates or options.beside:
        measured = rates_once() if options.rates else measure_beside(options.beside)
        print(json.dumps(measured, indent=None if options.rates else 2))
        return 0
    integers = integer_cases()
    with GradingPool(options.workers) as pool:
        rates = [len(integers) / seconds(lambda: pool.grade(integers)) for _ in range(ROUNDS)]
        report = {
            "machine": {
                "platform": platform.platform(),
                "cores": len(os.sched_getaffinity(0)),
                "workers": options.workers,
            },
            "integer_answers": {"answers": len(integers), "per_second": statistics.median(rates), "rounds": rates},
            "long_texts": measure_long_texts(pool),
            "mixture": measure_mixture(pool),
        }
    if options.output:
        write_json(options.output, report)
    else:
        print(json.dumps(report, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
