"""Problem sets under ``results/problems``: ``problems.jsonl`` and its manifest, written and loaded.

The texts of a gated benchmark may not be published: GPQA is given out on the promise that no example appears in plain
text. Its problem file holds ids, answer letters, option orders and a hash of each text; the texts stay in the source
and in memory.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evals.core.config.problem_sets import BenchmarkProblems
from evals.core.errors import UserError
from evals.core.files import fingerprint, sha256_bytes, write_jsonl
from evals.core.manifest import Manifest, hash_files, verify_outputs
from evals.core.record import read_rows
from evals.core.records import Gold, Problem
from evals.core.values import PLACEHOLDER

NOT_OF_THE_CONTENT = ("path", "sha256")
"""Settings that say where to look and what to expect, not what the set is."""


def hash_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """SHA-256 of the ``problems.jsonl`` of these rows."""
    return _sha256("".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows))


def _sha256(text: str) -> str:
    return sha256_bytes(text.encode("utf-8"))


def write_problem_set(
    out: Path,
    rows: Sequence[Mapping[str, Any]],
    content: Mapping[str, Any],
    inputs: Mapping[str, str],
    details: Mapping[str, Any],
    *beside: Path,
) -> None:
    """Write ``problems.jsonl`` and its manifest, which lists further files of the set too (``beside``).

    ``content`` are the settings of the set, ``inputs`` path -> hash of the files that it was made from.
    """
    path = out / "problems.jsonl"
    write_jsonl(path, rows)
    parameters = {key: value for key, value in content.items() if key not in NOT_OF_THE_CONTENT}
    outputs = hash_files(out, path, *beside)
    manifest = Manifest("problems", inputs, outputs, parameters, fingerprint(parameters), details)
    manifest.write(out / "manifest.json")


def write_benchmark(content: Mapping[str, Any], out: Path) -> None:
    """Read a benchmark from the Hub or from files."""
    from evals.grading.code.tests import TESTS_FILE, pack  # here, for everyone who samples loads problems
    from evals.problems.benchmark import read_benchmark
    from evals.problems.source import Source

    settings = BenchmarkProblems.parse(content, "settings")
    read = read_benchmark(settings)
    rows = read.rows
    if settings.gated:
        rows = [{**row, "problem_sha256": _sha256(row["problem"])} for row in rows]
        rows = [{key: value for key, value in row.items() if key != "problem"} for row in rows]
    digest, expected, name = hash_of(rows), settings.sha256, settings.name
    if expected not in (None, digest):
        raise UserError(
            f"{name}: its problems have SHA-256 {digest}; expected {expected}: another transcription has other "
            f"prompts or answers; to accept it, write benchmark_sources.{name}.sha256: {digest} in the study "
            "(docs/benchmarks.md)"
        )
    if read.tests:
        write_jsonl(out / TESTS_FILE, [{"id": row["id"], "tests": pack(read.tests[row["id"]])} for row in rows])
    details = {
        "rows": len(rows),
        "path": settings.path,
        "expected_sha256": expected,
        "repairs": read.repairs,
        "excluded": read.excluded,
    }
    write_problem_set(out, rows, content, Source(settings).inputs, details, *([out / TESTS_FILE] if read.tests else []))


@dataclass(frozen=True)
class ProblemSet:
    """The problems of one directory, with their texts, in the file's order.

    Those of a ``gated`` set may be read and answered, and written nowhere: no artifact, table or message may hold them,
    nor a response that could quote them.
    """

    problems: Sequence[Problem]
    gated: bool

    def prompts(self, template: str) -> list[str]:
        """The prompt of each problem."""
        return [render_prompt(template, problem.problem) for problem in self.problems]


def load(directory: Path) -> ProblemSet:
    """Load the problems of a directory; a gated set's texts come from its source, and no message quotes them."""
    manifest = verify_outputs(directory / "manifest.json", "problems")
    path = directory / "problems.jsonl"
    if not manifest.parameters.get("gated", False):
        return ProblemSet(read_rows(path, Problem), gated=False)
    from evals.problems.benchmark import read_benchmark

    content = {**manifest.parameters, "path": manifest.details.get("path"), "sha256": None}
    settings = BenchmarkProblems.parse(content, str(directory / "manifest.json"))
    texts = {row["id"]: row["problem"] for row in read_benchmark(settings).rows}
    problems = []
    for gold in read_rows(path, Gold):
        if gold.id not in texts or _sha256(texts[gold.id]) != gold.problem_sha256:
            raise UserError(f"{settings.name}: the source no longer holds problem {gold.id} as it was first read")
        problems.append(Problem(**gold.model_dump(), problem=texts[gold.id]))
    return ProblemSet(problems, gated=True)


def render_prompt(template: str, problem: str) -> str:
    r"""``template`` with the problem's text in place of ``{problem}``; other braces, as in ``\boxed{}``, are text."""
    return template.replace(PLACEHOLDER, problem)
