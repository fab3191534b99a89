"""Verdicts of the grader on cases with known verdicts: a table of right and wrong by family and kind.

``python benchmarks/grader_cases.py CASES.jsonl ... [--workers 2] [--output FILE.json] [--wrong]
[--verdicts DIRECTORY] [--before DIRECTORY]``

A line is a case: ``id``, ``text`` or ``pred``, ``answer`` or ``gold``, ``kind`` or ``form``, ``expected`` (the right
verdict) and, if the sample was cut off, ``truncated``. A case with ``documented_policy``, ``policy``, ``contested`` or
``questionable`` is no core case: what it expects is a convention. The family is what stands before the id's number.
Of a real output (``benchmarks/real_outputs.py``) nobody may know the right verdict: ``expected`` is null.

``--verdicts`` keeps what came out, and ``--before`` lists every case that got another verdict or another answer then,
as from an older checkout (``PYTHONPATH=CHECKOUT python benchmarks/grader_cases.py ... --verdicts DIRECTORY``).
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evals.core.files import read_jsonl, write_json, write_jsonl
from evals.grading import VERSION, Case, GradingPool, Kind, Verdict

CONVENTIONS = ("documented_policy", "policy", "contested", "questionable")
Row = dict[str, Any]


def family(row: Row) -> str:
    """The first words of an id: ``adv-choice-137`` is of ``adv-choice``."""
    return str(row["id"]).rstrip("0123456789").rstrip("-")


def kind_of(row: Row) -> Kind:
    """The form of a case's text: ``form`` where ``kind`` says what the case is about."""
    return Kind(row.get("form", row["kind"]))


def grade(rows: Sequence[Row], workers: int) -> list[Verdict]:
    """The verdicts on cases, in their order."""
    cases = [
        Case(
            row.get("text", row.get("pred")),
            row.get("gold", row.get("answer")),
            kind_of(row),
            bool(row.get("truncated")),
        )
        for row in rows
    ]
    with GradingPool(workers) as pool:
        return pool.grade(cases)


def tally(rows: Sequence[Row], verdicts: Sequence[Verdict]) -> list[Row]:
    """One row for each family and kind, the last one for all: how many are right, and how the others are wrong."""
    groups: dict[tuple[str, str], Row] = defaultdict(
        lambda: {"core": 0, "right": 0, "false_positives": 0, "false_negatives": 0, "conventions": 0, "as_expected": 0}
    )
    for row, verdict in zip(rows, verdicts, strict=True):
        if row["expected"] is None:
            continue
        right = verdict.correct == row["expected"]
        for name in ((family(row), str(kind_of(row))), ("all", "")):
            counts = groups[name]
            if any(row.get(key) for key in CONVENTIONS):
                counts["conventions"] += 1
                counts["as_expected"] += right
            else:
                counts["core"] += 1
                counts["right"] += right
                counts["false_positives"] += verdict.correct and not right
                counts["false_negatives"] += not verdict.correct and not right
    everything = groups.pop(("all", ""), {})
    named = [{"family": name, "kind": kind, **counts} for (name, kind), counts in sorted(groups.items())]
    return [*named, {"family": "all", "kind": "", **everything}]


def kept(row: Row, verdict: Verdict) -> Row:
    """The record of a case that ``--verdicts`` keeps."""
    return {"id": row["id"], "correct": verdict.correct, "answer": verdict.answer, "reason": verdict.reason.value}


def list_changes(rows: Sequence[Row], verdicts: Sequence[Verdict], before: Sequence[Row]) -> None:
    """Print the cases with another verdict or answer than before, and how many there are."""
    earlier = {row["id"]: row for row in before}
    changed: dict[str, int] = defaultdict(int)
    for row, verdict in zip(rows, verdicts, strict=True):
        old, new = earlier[row["id"]], kept(row, verdict)
        if old == new:
            continue
        verdict_changed = old["correct"] != new["correct"]
        changed[f"correct: {old['correct']} -> {new['correct']}" if verdict_changed else "another answer"] += 1
        if verdict_changed or old["answer"] != new["answer"]:
            gold, text = row.get("gold", row.get("answer")), str(row.get("text", row.get("pred")))[-160:]
            print(f"{row['id']}: {old['reason']} {old['answer']!r} -> {new['reason']} {new['answer']!r}", end=" ")
            print(f"for {gold!r}, expected {row['expected']}: {text!r}")
    print(f"{sum(changed.values())} of {len(rows)} changed: {dict(changed)}")


def main() -> int:
    """Grade the cases, and print or write what came out."""
    parser = argparse.ArgumentParser(description="Compare the grader with cases of known verdicts.")
    parser.add_argument("cases", type=Path, nargs="+")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--output", type=Path, help="file of JSON to write beside the tables")
    parser.add_argument("--wrong", action="store_true", help="list the cases with another verdict than expected")
    parser.add_argument(
        "--verdicts", type=Path, help="directory to keep the verdicts in, a file for each file of cases"
    )
    parser.add_argument("--before", type=Path, help="directory of earlier verdicts, to list what changed since")
    options = parser.parse_args()
    report: Row = {"grader_version": VERSION}
    for path in options.cases:
        rows = read_jsonl(path)
        verdicts = grade(rows, options.workers)
        table = tally(rows, verdicts)
        report[path.name] = table
        print(f"\n{path.name}, grader version {VERSION}\n")
        print("| " + " | ".join(name.replace("_", " ") for name in table[0]) + " |")
        print("|" + "---|" * len(table[0]))
        for line in table:
            print("| " + " | ".join(map(str, line.values())) + " |")
        for row, verdict in zip(rows, verdicts, strict=True):
            if options.wrong and row["expected"] not in (None, verdict.correct):
                text = str(row.get("text", row.get("pred")))[-200:]
                gold, kind = row.get("gold", row.get("answer")), kind_of(row)
                policy = " (convention)" if any(row.get(key) for key in CONVENTIONS) else ""
                print(f"{row['id']}{policy} {kind}: {text!r} for {gold!r}: {verdict.reason}, {verdict.answer!r}")
        if options.verdicts:
            write_jsonl(options.verdicts / path.name, map(kept, rows, verdicts))
        if options.before:
            list_changes(rows, verdicts, read_jsonl(options.before / path.name))
    if options.output:
        write_json(options.output, report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
