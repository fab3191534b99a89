"""A problem of every benchmark with an answer before and after training, chosen by position and not by success."""

import json
from pathlib import Path
from typing import Any

from evals.core.errors import InvalidInput, UserError
from evals.core.files import read_jsonl
from evals.core.record import R
from evals.core.records import BASE, Gold, Grade, Sample
from evals.results import Results
from rlvr.report.summary import best_condition

_WITHHELD = "(This benchmark's terms forbid showing its problems; of the responses only the chosen letter is kept.)"


def read_examples(results: Results, directory: Path) -> tuple[list[dict[str, Any]], list[Path]]:
    """Each benchmark's first problem and the first sample that the base model and the best method's first seed gave it.

    Both are those of the first model; ``directory`` is results/, with problems, samples and grades. The second value is
    the files that were read.
    """
    model = results.runs[0].model
    chosen = [condition for condition in results.conditions if (condition.model, condition.method) == (model, BASE)]
    chosen = list(dict.fromkeys([*chosen, best_condition(results, model)]))
    examples, files = list[dict[str, Any]](), list[Path]()
    for benchmark in results.benchmarks:
        path = directory / "problems" / benchmark / "problems.jsonl"
        files.append(path)
        line = read_jsonl(path)[0]
        gold, rollouts = Gold.parse(line, f"{path}: line 1"), []
        for condition in chosen:
            run = condition.runs[0].run
            samples, grades = (directory / kind / run / benchmark / f"{kind}.jsonl" for kind in ("samples", "grades"))
            sample, grade = _first(samples, str(gold.id), Sample), _first(grades, str(gold.id), Grade)
            rollouts.append({"title": condition.title, "run": run, "sample": sample, "grade": grade})
            files += [samples, grades]
        problem = line.get("problem", _WITHHELD)
        examples.append({"benchmark": benchmark, "problem": problem, "answer": gold.answer, "rollouts": rollouts})
    return examples, files


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
