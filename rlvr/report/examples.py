"""A problem of every benchmark with an answer before and after training, chosen by position and not by success."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evals.core.errors import UserError
from evals.core.files import read_jsonl
from evals.core.records import BASE, Condition
from evals.results import Results
from rlvr.report.summary import best_condition

_WITHHELD = "(This benchmark's terms forbid showing its problems; of the responses only the chosen letter is kept.)"


@dataclass(frozen=True)
class Rollout:
    """What a run wrote, and how it was judged."""

    title: str
    run: str
    text: str
    correct: bool
    reason: str


@dataclass(frozen=True)
class Example:
    """The first problem of a benchmark."""

    benchmark: str
    problem: str
    answer: str
    rollouts: tuple[Rollout, ...]


def read_examples(results: Results, directory: Path) -> list[Example]:
    """Each benchmark's first problem and the first sample that the base model and the best method's first seed gave it.

    Args:
        results: runs and scores, from which the best method of the first model is known.
        directory: results/, with problems, samples and grades.

    Raises:
        UserError: a file is missing or malformed, or lacks the problem.
    """
    chosen = _chosen(results)
    examples = []
    for benchmark in results.benchmarks:
        path = directory / "problems" / benchmark / "problems.jsonl"
        problem = {"problem": _WITHHELD, **read_jsonl(path, ("id", "answer"))[0]}
        rollouts = [
            _rollout(directory, condition.title, condition.runs[0].run, benchmark, str(problem["id"]))
            for condition in chosen
        ]
        examples.append(Example(benchmark, str(problem["problem"]), str(problem["answer"]), tuple(rollouts)))
    return examples


def example_files(results: Results, directory: Path) -> list[Path]:
    """The files that :func:`read_examples` reads."""
    files = []
    for benchmark in results.benchmarks:
        files.append(directory / "problems" / benchmark / "problems.jsonl")
        for condition in _chosen(results):
            run = condition.runs[0].run
            files += [directory / stage / run / benchmark / f"{stage}.jsonl" for stage in ("samples", "grades")]
    return files


def _chosen(results: Results) -> list[Condition]:
    """The base model and the best method, of the first model."""
    model = results.runs[0].model
    best = best_condition(results, model)
    chosen = [condition for condition in results.conditions if condition.model == model and condition.method == BASE]
    return chosen + ([best] if best not in chosen else [])


def _rollout(directory: Path, title: str, run: str, benchmark: str, problem: str) -> Rollout:
    sample = _first(directory / "samples" / run / benchmark / "samples.jsonl", problem, "text")
    grade = _first(directory / "grades" / run / benchmark / "grades.jsonl", problem, "correct", "reason")
    return Rollout(title, run, str(sample["text"]), bool(grade["correct"]), str(grade["reason"]))


def _first(path: Path, problem: str, *required: str) -> dict[str, Any]:
    """The first line about a problem; sample files are long and it stands near the top, so the rest is not read."""
    try:
        with open(path, encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                row = json.loads(line)
                if row["problem_id"] == problem:
                    missing = [key for key in required if key not in row]
                    if missing:
                        raise UserError(f"{path}: line {number} lacks {', '.join(missing)}")
                    return dict(row)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: line {number} is not an object with problem_id ({error})") from None
    raise UserError(f"{path}: has no line about problem {problem}")
