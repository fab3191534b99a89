"""The formats of other tools' logs, told apart by content."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evals.core.errors import InvalidInput, UserError
from evals.core.files import parse_json, read_json, read_lines, reading
from evals.logs import documents, rows
from evals.logs.documents import read_zstandard
from evals.logs.response import Log

ACCEPTED = (
    "grades and samples of this project, samples_*.jsonl of lm-eval-harness, .eval and JSON logs of inspect_ai, "
    "details_*.parquet of lighteval, validation JSONL of verl, outputs of matharena, results_*.json of evalchemy, and "
    "any CSV, JSONL or parquet with --columns"
)
IN_DIRECTORIES = ("samples_*.jsonl", "*.eval", "details_*.parquet", "*/details_*.parquet")
"""The files of a directory that are logs, one policy and benchmark each."""

_MATHARENA_FILES = ("[0-9]*.json.zst", "[0-9]*.json")
_ZIP, _ZSTANDARD = b"PK\x03\x04", b"\x28\xb5\x2f\xfd"


def logs_in(directory: Path) -> list[Path]:
    """The logs that a directory holds; itself, where it is matharena's, with one file a problem."""
    logs = sorted(path for pattern in IN_DIRECTORIES for path in directory.glob(pattern))
    return logs or ([directory] if _problem_files(directory) else [])


def read_columns(text: str | None) -> dict[str, str]:
    """The columns of a table, as ``problem=id,correct=is_right`` names them."""
    if text is None:
        return {}
    pairs = dict(part.partition("=")[::2] for part in text.split(","))
    if (
        not {"problem"} <= set(pairs) <= set(rows.COLUMNS)
        or not {"correct", "text"} & set(pairs)
        or "" in pairs.values()
    ):
        accepted = f"problem=COLUMN, correct=COLUMN or text=COLUMN, and if wanted {', '.join(rows.COLUMNS[3:])}"
        raise InvalidInput("--columns", "", f"is {text!r}", accepted)
    return pairs


def read_logs(path: Path, columns: Mapping[str, str]) -> list[Log]:
    """Read the log of another tool, or any table if its ``columns`` are named; what is neither is a UserError."""
    if columns and path.is_file():
        logs = rows.read_table(path, columns)
    elif path.is_dir():
        files = _problem_files(path)
        read = (read_zstandard(file) if file.suffix == ".zst" else read_json(file) for file in files)
        logs = documents.read_matharena(path, list(zip(files, read, strict=True)))
    else:
        logs = _detected(path)
    if not logs or not all(log.responses for log in logs):
        raise UserError(f"{path}: holds no responses")
    return logs


def _problem_files(directory: Path) -> list[Path]:
    files = {path.name.partition(".")[0]: path for pattern in _MATHARENA_FILES for path in directory.glob(pattern)}
    return [files[name] for name in sorted(files, key=lambda name: (len(name), name))]


def _detected(path: Path) -> list[Log]:
    with reading(path), open(path, "rb") as file:
        start = file.read(4)
    if start == _ZIP:
        return documents.read_inspect_archive(path)
    if start == rows.PARQUET:
        names = rows.parquet_columns(path)
        if set(rows.LIGHTEVAL_COLUMNS) <= set(names):
            return rows.read_lighteval(path)
        raise _unknown(path, f"is parquet with the columns {', '.join(names)}")
    if start == _ZSTANDARD:
        return _read_document(path, read_zstandard(path))
    first = next((line for _, line in read_lines(path)), "")
    row = _object(first)
    if row is None and first.lstrip().startswith("{"):  # a document of several lines
        return _read_document(path, read_json(path))
    keys: Sequence[str] = list(row or {})
    if {"doc_id", "resps", "filtered_resps"} <= set(keys):
        return rows.read_lm_eval(path)
    if {"input", "output", "score", "step"} <= set(keys):
        return rows.read_verl(path)
    if row is not None:
        return _read_document(path, row)
    raise _unknown(path, f"begins with {first.strip()[:60]!r}" if first else "is empty")


def _object(line: str) -> dict[str, Any] | None:
    try:
        content = parse_json(line, "")
    except UserError:
        return None
    return content if isinstance(content, dict) else None


def _read_document(path: Path, content: Any) -> list[Log]:
    keys = content if isinstance(content, dict) else {}
    if isinstance(keys.get("eval"), dict) and isinstance(keys.get("samples"), list):
        return documents.read_inspect_json(path, content)
    if {"idx", "correct", "messages"} <= set(keys):
        return documents.read_matharena(path, [(path, content)])
    if isinstance(keys.get("results"), dict):
        if logs := documents.read_evalchemy(path, content):
            return logs
        raise _unknown(path, "has results without examples, as the summaries of lm-eval and lighteval have")
    raise _unknown(path, f"has the keys {', '.join(list(keys)[:12]) or 'of no object'}")


def _unknown(path: Path, complaint: str) -> InvalidInput:
    return InvalidInput(str(path), "", complaint, ACCEPTED)
