"""Training problems from a published set: repeated rows once, contradicting ones not at all, every count checked."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evals.core.config.problem_sets import TrainingColumns, TrainingProblems
from evals.core.errors import InvalidInput, UserError
from evals.core.files import sha256_bytes
from evals.problems.problem_set import hash_of, write_problem_set
from evals.problems.source import Source

_HASHED_ID_LENGTH = 12


@dataclass
class _Problem:
    """One problem and everything that the rows say of it."""

    text: str
    answers: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    solution: str | None = None  # of the first row, where the release has solutions


def write_training_set(content: Mapping[str, Any], out: Path) -> None:
    """Read a published training set, without its repetitions."""
    settings = TrainingProblems.parse(content, "settings")
    source, columns = Source(settings), settings.columns
    where = source.where
    if isinstance(columns, str):
        found_rows: Iterable[Mapping[str, Any]] = source.read_release(columns)
        columns = TrainingColumns(id=None, problem="problem", answer="answer")
    else:
        names = [column for column in (columns.id, columns.problem, columns.answer) if column is not None]
        found_rows = source.scan(list(dict.fromkeys(column.split(".")[0] for column in names)))
    problems, counts = _gather(found_rows, settings, columns, where)
    for stage, expected in settings.counts.to_json().items():
        if expected is not None and counts[stage] != expected:
            raise InvalidInput(where, stage, f"is {counts[stage]}; expected {expected}")
    conflicts = [problem for problem in problems if len(problem.answers) > 1]
    _check_conflicts(conflicts, settings.conflicts, where)
    consistent = [problem for problem in problems if len(problem.answers) == 1]
    rows = [
        {"id": problem.ids[0], "problem": problem.text, "answer": problem.answers[0], "family": settings.name}
        | ({"solution": problem.solution} if problem.solution else {})
        for problem in consistent
    ]
    digest = hash_of(rows)
    if settings.sha256 is not None and digest != settings.sha256:
        raise UserError(f"{where}: its problems have SHA-256 {digest}; expected {settings.sha256}")
    if unknown := set(settings.exclude) - {problem.ids[0] for problem in consistent}:
        raise InvalidInput(where, "exclude", f"has no problem {', '.join(sorted(unknown))}")
    rows = [row for row in rows if row["id"] not in settings.exclude]
    details = {
        **counts,
        "written": len(rows),
        "path": settings.path,
        "expected_sha256": settings.sha256,
        "conflicts": [{key: vars(problem)[key] for key in ("text", "answers", "ids")} for problem in conflicts],
    }
    write_problem_set(out, rows, content, source.inputs, details)


def _gather(
    rows: Iterable[Mapping[str, Any]], settings: TrainingProblems, columns: TrainingColumns, where: str
) -> tuple[Sequence[_Problem], dict[str, int]]:
    """Problems by their text without regard to white space, in the order met, and how many were left at each stage."""
    prefix, suffix = settings.prefix, settings.suffix
    problems: dict[str, _Problem] = {}
    seen: set[tuple[str, str, str]] = set()
    texts: set[str] = set()
    number = 0
    for number, row in enumerate(rows, start=1):
        row_name = f"{where}: row {number}"
        wrapped = str(_value(row, columns.problem, row_name))
        if not wrapped.startswith(prefix) or not wrapped.endswith(suffix):
            raise InvalidInput(row_name, columns.problem, "lacks the instruction around its problem")
        text = wrapped.removeprefix(prefix).removesuffix(suffix)
        answer = str(_value(row, columns.answer, row_name)).strip()
        hashed = sha256_bytes(text.encode("utf-8"))[:_HASHED_ID_LENGTH]
        identifier = hashed if columns.id is None else str(_value(row, columns.id, row_name))
        if (identifier, text, answer) in seen:
            continue
        seen.add((identifier, text, answer))
        texts.add(text)
        solution = row.get("solution") if isinstance(settings.columns, str) else None
        problem = problems.setdefault(" ".join(text.split()), _Problem(text, solution=solution))
        problem.ids.append(identifier)
        if answer not in problem.answers:
            problem.answers.append(answer)
    kept = sum(len(problem.answers) == 1 for problem in problems.values())
    counts = {"rows": number, "distinct_rows": len(seen), "distinct_texts": len(texts)}
    return list(problems.values()), {**counts, "distinct_problems": len(problems), "kept": kept}


def _check_conflicts(conflicts: Sequence[_Problem], expected: Sequence[Sequence[str]] | None, where: str) -> None:
    """Check that the problems with two answers are those that are known to have them."""
    if expected is None:
        return
    conflicting, known = ({frozenset(ids) for ids in groups} for groups in ((c.ids for c in conflicts), expected))
    for ids, complaint in [
        (conflicting - known, "has two answers, unexpectedly"),
        (known - conflicting, "has no two answers"),
    ]:
        if ids:
            raise InvalidInput(where, "conflicts", f"{', '.join(sorted(min(ids, key=sorted)))}: {complaint}")


def _value(row: Mapping[str, Any], column: str, where: str) -> Any:
    """A cell, or what is inside it: ``prompt.0.content`` is the content of the first message."""
    value: Any = row
    try:
        for part in column.split("."):
            value = value[int(part)] if isinstance(value, list) else value[part]
    except (KeyError, IndexError, TypeError, ValueError):
        value = None
    if value is None or not str(value).strip():
        raise InvalidInput(where, column, "is empty")
    return value
