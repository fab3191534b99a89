"""Stored texts as cases of benchmarks/grader_cases.py: word problems, golds and their neighbours, outputs, cases.

``python benchmarks/stored_texts.py DATA OUT`` reads ../shared/data and writes text.jsonl, golds.jsonl and cases.jsonl.
Nobody says what is right (``expected`` is null): for ``--verdicts`` with one checkout and ``--before`` with another.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from evals.core.files import read_jsonl, write_jsonl

CASES = ("grader_cases.jsonl", "grader_cases_2.jsonl", "grader_cases_3.jsonl", "grader_cases_4.jsonl")
OWN_CASES = Path(__file__).parents[1] / "tests/unit/grading/cases.jsonl"
KINDS = ("completion", "last_statement", "answer", "choice")
Row = tuple[str, str, str]  # kind, gold, text


def word_problems(data: Path) -> Iterator[Row]:
    """GSM8K's solutions with and without their mark and as choices, its questions, and those of SVAMP."""
    rows = [row for part in ("train", "test") for row in read_jsonl(data / f"word_problems/gsm8k_{part}.jsonl")]
    golds = [row["answer"].split("####")[1].strip() for row in rows]
    for index, row in enumerate(rows):
        solution, gold = row["answer"].split("####")[0].strip(), golds[index]
        plain = re.sub(r"<<.*?>>", "", solution)
        last, letter = plain.split("\n")[-1], "ABCDEFGHIJ"[index % 10]
        yield "completion", gold, row["answer"]
        yield "last_statement", gold, plain
        yield "last_statement", golds[(index + 1) % len(golds)], solution
        yield "completion", gold, f"{plain}\nThe answer is {last[:1].lower()}{last[1:]}"
        yield "completion", gold, f"{row['question']}\nAnswer: {last}"
        yield "answer", gold, last
        yield "choice", letter, plain if index % 2 else f"{plain}\nSo the answer is {letter}. {last}"
        yield "choice", letter, row["question"]
    for row in json.loads((data / "word_problems/svamp.json").read_text(encoding="utf-8")):
        question, gold = f"{row['Body']}. {row['Question']}", f"{row['Answer']:g}"
        yield "last_statement", gold, question
        yield "completion", gold, f"{question} The answer is {gold} {row['Body'].split()[-1]}."


def outputs(data: Path) -> Iterator[Row]:
    """The outputs with labels, in every kind; the problems of the benchmarks and MATH's solutions."""
    for row in read_jsonl(data / "outputs/qwen25math_math100x8.jsonl"):
        for text in row["completions"]:
            yield from ((kind, "A" if kind == "choice" else row["answer"], text) for kind in KINDS)
    for row in read_jsonl(data / "outputs/llama32-3b_aime2020_8samples_17problems.jsonl"):
        yield from (("answer", row["answer"], str(text)) for text in row["extracted"])
    for path in sorted((data / "benchmarks").glob("*.jsonl")):
        for row in read_jsonl(path):
            for text in filter(None, (row["problem"], (row.get("meta") or {}).get("solution"))):
                yield from (
                    (kind, "A" if kind == "choice" else str(row["answer"]), text) for kind in KINDS if kind != "answer"
                )


def golds(data: Path) -> Iterator[Row]:
    """The golds of the benchmarks beside themselves, the next one, a changed digit and another spelling."""
    for path in sorted((data / "benchmarks").glob("*.jsonl")):
        answers = [str(row["answer"]) for row in read_jsonl(path)]
        for gold, following in zip(answers, [*answers[1:], answers[0]], strict=True):
            changed = re.sub(r"\d", lambda digit: str((int(digit[0]) + 1) % 10), gold, count=1)
            spelled = gold.replace("frac", "dfrac").replace(",", ", ") + r" \text{ units}"
            yield "answer", gold, gold
            yield "completion", gold, f"The answer is ${gold}$."
            yield from (("completion", gold, rf"\boxed{{{text}}}") for text in (gold, following, changed, spelled))


def cases(data: Path) -> Iterator[Row]:
    """The texts of all cases, in every kind, and as golds."""
    for path in (*(data / name for name in CASES), OWN_CASES):
        for row in read_jsonl(path):
            own, text, gold = (
                row.get("form", row["kind"]),
                row.get("text", row.get("pred")),
                row.get("gold", row.get("answer")),
            )
            yield own, gold, text
            yield from ((kind, "B" if kind == "choice" else gold, text) for kind in KINDS if kind != own)
            yield "completion", text[:1500], rf"\boxed{{{gold}}}"


def main() -> int:
    """Write the three files."""
    data, out = map(Path, sys.argv[1:])
    for name, rows in {
        "text": (*word_problems(data), *outputs(data)),
        "golds": golds(data),
        "cases": cases(data),
    }.items():
        kept = [
            {"id": f"{name}-{index}", "kind": kind, "answer": gold, "text": text, "expected": None}
            for index, (kind, gold, text) in enumerate(rows)
        ]
        write_jsonl(out / f"{name}.jsonl", kept)
        print(f"{name}: {len(kept)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
