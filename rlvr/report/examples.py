"""A problem of every benchmark with an answer before and after training, chosen by position and not by success."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from evals.core.errors import InvalidInput, UserError
from evals.core.files import read_jsonl
from evals.core.record import R
from evals.core.records import BASE, Condition, Grade, Sample
from evals.results import Results
from rlvr.report.summary import best_condition

_WITHHELD = "(This benchmark's terms forbid showing its problems; of the responses only the chosen letter is kept.)"


@dataclass(frozen=True)
class Rollout:
    """A response of a run, and how it was judged."""

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
        rollouts = [_rollout(directory, condition, benchmark, str(problem["id"])) for condition in chosen]
        examples.append(Example(benchmark, str(problem["problem"]), str(problem["answer"]), tuple(rollouts)))
    return examples


def example_files(results: Results, directory: Path) -> list[Path]:
    """The files that :func:`read_examples` reads."""
    files = []
    for benchmark in results.benchmarks:
        files.append(directory / "problems" / benchmark / "problems.jsonl")
        for condition in _chosen(results):
            files += [_rows_of(stage, directory, condition, benchmark) for stage in ("samples", "grades")]
    return files


def _chosen(results: Results) -> list[Condition]:
    """The base model and the best method, of the first model."""
    model = results.runs[0].model
    best = best_condition(results, model)
    chosen = [condition for condition in results.conditions if condition.model == model and condition.method == BASE]
    return chosen + ([best] if best not in chosen else [])


def _rows_of(stage: str, directory: Path, condition: Condition, benchmark: str) -> Path:
    return directory / stage / condition.runs[0].run / benchmark / f"{stage}.jsonl"


def _rollout(directory: Path, condition: Condition, benchmark: str, problem: str) -> Rollout:
    sample = _first(_rows_of("samples", directory, condition, benchmark), problem, Sample)
    grade = _first(_rows_of("grades", directory, condition, benchmark), problem, Grade)
    return Rollout(condition.title, condition.runs[0].run, sample.text, grade.correct, grade.reason)


def _first(path: Path, problem: str, kind: type[R]) -> R:
    """The first row about a problem; the files are long and it stands near the top, so the rest is not read."""
    try:
        with open(path, encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                row = json.loads(line)
                if str(row["problem_id"]) == problem:
                    return kind.parse(row, f"{path}: line {number}")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: line {number} is not an object with problem_id ({error})") from None
    raise InvalidInput(str(path), "", f"has no line about problem {problem}")
