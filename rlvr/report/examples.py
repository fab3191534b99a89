"""The first responses of runs to the first problems of a benchmark, picked by position and not by success."""

from itertools import islice
from pathlib import Path

import pandas as pd

from evals.core.errors import InvalidInput
from evals.core.files import parse_json, read_lines
from evals.core.record import scan_rows
from evals.core.records import Grade, Sample, rows_in

_WITHHELD = "(This benchmark's terms forbid showing its problems; of the responses only the chosen letter is kept.)"


def first_responses(run: str, benchmark: str, directory: Path, problems: int, longest: int = 0) -> pd.DataFrame:
    """A run's first response to each of the first problems, with its verdict, as far as samples are kept.

    Of files in the order of the problems no more than the beginning is read.

    Args:
        directory: results/.
        longest: characters of a response; what is longer is cut. Default: nothing is.
    """
    rows, files = [], [rows_in(directory / kind / run / benchmark, kind) for kind in ("samples", "grades")]
    lines = islice(read_lines(directory / "problems" / benchmark / "problems.jsonl"), problems)
    waiting = {str(row["id"]): row for row in (parse_json(line, where) for where, line in lines)}
    kept = all(path.exists() for path in files)
    for sample, grade in zip(scan_rows(files[0], Sample), scan_rows(files[1], Grade), strict=False) if kept else ():
        if (sample.problem_id, sample.sample) != (grade.problem_id, grade.sample):
            raise InvalidInput(str(files[1]), "", "has not the samples in their order", "grades of these samples")
        if problem := waiting.pop(str(sample.problem_id), None):
            text, number = sample.text, len(sample.text)
            text = text if not longest or number <= longest else f"{text[:longest]} [... of {number:,} characters]"
            verdict = (grade.correct, grade.answer, problem["answer"], grade.reason)
            statement = problem.get("problem", f"{problem['id']} {_WITHHELD}")
            rows.append([statement, text, *verdict, benchmark, problem["id"]])
        if not waiting:
            break
    # MLflow puts runs side by side by the first column, and shows the second.
    columns = ["problem", "response", "correct", "answer", "expected", "reason", "benchmark", "problem_id"]
    return pd.DataFrame(rows, columns=columns, dtype=object)
