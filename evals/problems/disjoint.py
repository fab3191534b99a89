"""Check that no evaluation problem was trained on, on the bytes of the files themselves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from evals.artifacts import fingerprint, read_jsonl, sha256_file, write_json
from evals.errors import UserError
from evals.problems.problem_set import load


def normalise(statement: str) -> str:
    """What counts as the same problem: the text without regard to case and white space."""
    return "".join(statement.split()).casefold()


def check_disjoint(benchmark: Path, trained_on: Sequence[Path], out: Path) -> None:
    """Compare a benchmark's problems with every file that something is trained on; write what was compared to ``out``.

    Args:
        benchmark: directory of the benchmark's problems.
        trained_on: JSONL files with a ``problem`` in every row.
        out: where the finding goes.

    Raises:
        UserError: a problem is in both, or a file is damaged.
    """
    path = benchmark / "problems.jsonl"
    evaluated = {normalise(row["problem"]): row["id"] for row in load(benchmark).rows}
    rows_checked = {}
    for other in trained_on:
        rows = read_jsonl(other, required=("problem",))
        for number, row in enumerate(rows, start=1):
            if (shared := evaluated.get(normalise(row["problem"]))) is not None:
                raise UserError(f"{path}: problem {shared} is also trained on ({other}, line {number})")
        rows_checked[str(other)] = {"rows": len(rows), "sha256": sha256_file(other)}
    finding = {"benchmark": benchmark.name, "problems": len(evaluated), "sha256": sha256_file(path)}
    content = {**finding, "trained_on": rows_checked, "shared": 0}
    write_json(out, {**content, "fingerprint": fingerprint(content)})
