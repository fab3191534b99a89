"""From a source's rows to the problems of a benchmark: columns, repairs, option order, exclusions, count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evals.core.errors import UserError
from evals.core.files import sha256_bytes
from evals.grading.boxes import last_boxes
from evals.grading.code.tests import tests_hash
from evals.problems.choices import LETTERS, permutation, with_options
from evals.problems.golds import repair
from evals.problems.programs import program_problem
from evals.problems.source import Source, source_of

Row = dict[str, Any]

_FILE_COLUMNS = {"id": "id", "problem": "problem", "answer": "answer"}
_HASHED_ID_LENGTH = 12


@dataclass(frozen=True)
class ReadProblems:
    """What a source holds.

    Attributes:
        rows: ``{"id", "problem", "answer", "family"}``, with the order of the ``options`` where there are any.
        repairs: ``{"id", "repairs", "was", "is"}`` of every repaired gold.
        excluded: ``{"id", "reason"}`` of every problem left out.
        tests: of a benchmark of programs, by id.
    """

    rows: Sequence[Row]
    repairs: Sequence[Row] = field(default=())
    excluded: Sequence[Row] = field(default=())
    tests: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def read_benchmark(settings: Mapping[str, Any]) -> ReadProblems:
    """Read a benchmark's problems, in the source's order.

    Args:
        settings: what an entry of config/benchmarks says of its problems, with the benchmark's ``name``.

    Raises:
        UserError: the source cannot be read, or does not hold what the entry says.
    """
    source, name = source_of(settings), settings["name"]
    columns = _columns(settings, source)
    found = source.read(_needed(columns))
    where = f"{name}: {source.path or source.repository}"
    if len(found) != settings["count"]:
        raise UserError(f"{where}: has {len(found)} problems; expected {settings['count']}")
    tests: dict[str, Mapping[str, Any]] = {}
    if settings["grader"] == "code":
        rows, repairs = _programs(found, columns, settings, where, tests)
    else:
        read = _choices if settings["grader"] == "choice" else _answers
        rows, repairs = read(found, columns, settings, where)
    if len({row["id"] for row in rows}) != len(rows):
        raise UserError(f"{where}: column {columns['id']}: two problems have the same value")
    return _without_excluded(ReadProblems(rows, repairs, tests=tests), found, columns, settings, where)


def _columns(settings: Mapping[str, Any], source: Source) -> Mapping[str, Any]:
    """Which column holds what; a local file has the project's own names."""
    declared: Mapping[str, Any] = settings.get("columns", _FILE_COLUMNS)
    if not source.is_file:
        return declared
    columns: dict[str, Any] = dict(_FILE_COLUMNS)
    if settings["grader"] == "code":
        columns |= {"answer": None, "tests": "tests"}
    if settings["grader"] == "choice":
        columns["options"] = "options"
    if declared["id"] is None:
        columns["id"] = None
    return columns


def _needed(columns: Mapping[str, Any]) -> list[str]:
    names = [column for value in columns.values() for column in (value if isinstance(value, list) else [value])]
    return [name for name in dict.fromkeys(names) if name is not None]


def _answers(
    found: Sequence[Row], columns: Mapping[str, Any], settings: Mapping[str, Any], where: str
) -> tuple[list[Row], list[Row]]:
    """Problems whose gold is a text, repaired as the entry says."""
    rows, repairs = [], []
    for number, row in enumerate(found, start=1):
        problem = _text(row[columns["problem"]], columns["problem"], number, where)
        was = _text(row[columns["answer"]], columns["answer"], number, where)
        if settings.get("boxed_answer", False):
            was = ", ".join(last_boxes(was) or [was])
        gold, applied = repair(was, settings.get("repairs", ()))
        identifier = _identifier(row, columns, problem, settings["name"])
        if applied:
            repairs.append({"id": identifier, "repairs": applied, "was": was, "is": gold})
        rows.append({"id": identifier, "problem": problem, "answer": gold, "family": settings["name"]})
    return rows, repairs


def _choices(
    found: Sequence[Row], columns: Mapping[str, Any], settings: Mapping[str, Any], where: str
) -> tuple[list[Row], list[Row]]:
    """Problems whose gold is the letter of an option, after the options have been put in the problem's own order."""
    rows = []
    for number, row in enumerate(found, start=1):
        question = _text(row[columns["problem"]], columns["problem"], number, where)
        options = _options(row, columns["options"], number, where)
        identifier = _identifier(row, columns, question, settings["name"])
        order = permutation(identifier, len(options), settings["option_seed"])
        rows.append(
            {
                "id": identifier,
                "problem": with_options(question, [options[index] for index in order]),
                "answer": LETTERS[order.index(_right_option(row, columns, len(options), number, where))],
                "family": settings["name"],
                "options": order,
            }
        )
    return rows, []


def _programs(
    found: Sequence[Row],
    columns: Mapping[str, Any],
    settings: Mapping[str, Any],
    where: str,
    tests: dict[str, Mapping[str, Any]],
) -> tuple[list[Row], list[Row]]:
    """Problems whose answer is a program; what it has to pass is put into ``tests``, and its hash into the row."""
    rows = []
    declared = {**settings, "tests_format": "own"} if columns["tests"] == "tests" else settings
    for number, row in enumerate(found, start=1):
        problem, own = program_problem(row, columns, declared, f"{where}: row {number}")
        identifier = _identifier(row, columns, problem, settings["name"])
        tests[identifier] = own
        gold = {"answer": own.get("entry_point", "standard output"), "tests_sha256": tests_hash(own)}
        rows.append({"id": identifier, "problem": problem.strip(), "family": settings["name"], **gold})
    return rows, []


def _options(row: Row, column: str | list[str], number: int, where: str) -> list[str]:
    """A column that lists the options, or one column for each."""
    values = [row[name] for name in column] if isinstance(column, list) else row[column]
    if not isinstance(values, list) or not 2 <= len(values) <= len(LETTERS):
        raise UserError(f"{where}: row {number}: {column}: is no list of 2 to {len(LETTERS)} options")
    return [_text(value, str(column), number, where) for value in values]


def _right_option(row: Row, columns: Mapping[str, Any], count: int, number: int, where: str) -> int:
    """Position of the right option in the source's order: the first, unless a column gives its letter."""
    if columns["answer"] is None:
        return 0
    letter = str(row[columns["answer"]]).strip()
    if len(letter) != 1 or letter not in LETTERS[:count]:
        raise UserError(f"{where}: row {number}: {columns['answer']}: is no letter of its {count} options")
    return LETTERS.index(letter)


def _text(value: Any, column: str, number: int, where: str) -> str:
    """A cell as text: numbers as written, a list of one item as that item."""
    if isinstance(value, list):
        value = ", ".join(str(item) for item in value)
    if value is None or not str(value).strip():
        raise UserError(f"{where}: row {number}: {column}: is empty")
    return str(value).strip()


def _identifier(row: Row, columns: Mapping[str, Any], text: str, name: str) -> str:
    """The upstream id after the benchmark's name; a hash of the text where upstream has none."""
    if columns["id"] is None:
        return f"{name}-{sha256_bytes(text.encode('utf-8'))[:_HASHED_ID_LENGTH]}"
    return f"{name}-{row[columns['id']]}"


def _without_excluded(
    read: ReadProblems,
    found: Sequence[Row],
    columns: Mapping[str, Any],
    settings: Mapping[str, Any],
    where: str,
) -> ReadProblems:
    """Leave out the problems that the entry excludes, having checked that it speaks of the same golds."""
    excluded = []
    wrong = {f"{settings['name']}-{entry['id']}": entry for entry in settings.get("exclude", ())}
    golds = {row["id"]: row["answer"] for row in read.rows}
    for identifier, entry in wrong.items():
        if golds.get(identifier) != entry["answer"]:
            raise UserError(
                f"{where}: exclude: the gold of {identifier} is {golds.get(identifier)!r}, not {entry['answer']!r}; "
                "the reason to exclude it may be gone"
            )
        excluded.append({"id": identifier, "reason": entry["reason"]})
    return ReadProblems(
        [row for row in read.rows if row["id"] not in wrong],
        [row for row in read.repairs if row["id"] not in wrong],
        excluded,
        {identifier: tests for identifier, tests in read.tests.items() if identifier not in wrong},
    )
