"""Writing the problems of a benchmark after checking them against what is known of it, and reading them again.

The texts of a gated benchmark may not be published: GPQA is given out on the promise that no example appears in plain
text. Its problem file holds ids, answer letters, option orders and a hash of each text; the texts stay in the source
and in memory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evals.core.config.problem_sets import BenchmarkProblems
from evals.core.errors import UserError
from evals.core.files import fingerprint, sha256_bytes, write_jsonl, write_text
from evals.core.manifest import Manifest, hash_files
from evals.core.records import Gold, Problem
from evals.grading.code.tests import TESTS_FILE, pack
from evals.problems.benchmark import read_benchmark
from evals.problems.source import Source

NOT_OF_THE_CONTENT = ("path", "sha256")
"""Settings that say where to look and what to expect, not what the set is."""


def parse_json(text: str) -> Any:
    """Parse the value of ``--settings``.

    Raises:
        UserError: it is not JSON.
    """
    try:
        return json.loads(text)
    except ValueError as error:
        raise UserError(f"--settings: is not valid JSON ({error})") from None


def write_benchmark(content: Mapping[str, Any], out: Path) -> None:
    """Write ``problems.jsonl`` and its manifest to ``out``.

    Args:
        content: of a :class:`evals.core.config.problem_sets.BenchmarkProblems`.
        out: the directory to write to.

    Raises:
        UserError: the benchmark cannot be read, or is not what the settings say.
    """
    settings = BenchmarkProblems.parse(content, "--settings")
    read = read_benchmark(settings)
    rows = [_without_text(row) for row in read.rows] if settings.gated else read.rows
    text = "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows)
    _check_hash(settings, text)
    path = out / "problems.jsonl"
    write_text(path, text)
    written = [path]
    if read.tests:
        written.append(out / TESTS_FILE)
        write_jsonl(written[-1], [{"id": row["id"], "tests": pack(read.tests[row["id"]])} for row in rows])
    parameters = {key: value for key, value in content.items() if key not in NOT_OF_THE_CONTENT}
    Manifest(
        kind="problems",
        inputs=Source(settings).inputs,
        outputs=hash_files(out, *written),
        parameters=parameters,
        fingerprint=fingerprint(parameters),
        details={
            "rows": len(rows),
            "path": settings.path,
            "expected_sha256": settings.sha256,
            "repairs": list(read.repairs),
            "excluded": list(read.excluded),
        },
    ).write(out / "manifest.json")


def restore_texts(golds: Sequence[Gold], settings: BenchmarkProblems) -> list[Problem]:
    """Read the texts of a gated benchmark's problems again from the source.

    Args:
        golds: the lines of its problem file.
        settings: of the benchmark, as it was read.

    Raises:
        UserError: the source cannot be read, or no longer holds these texts; the message names an id, never a text.
    """
    texts = {row["id"]: row["problem"] for row in read_benchmark(settings).rows}
    for gold in golds:
        if gold.id not in texts or _hash(texts[gold.id]) != gold.problem_sha256:
            raise UserError(f"{settings.name}: the source no longer holds problem {gold.id} as it was first read")
    return [Problem(**gold.model_dump(), problem=texts[gold.id]) for gold in golds]


def _without_text(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with a hash in place of the problem's text."""
    return {key: value for key, value in row.items() if key != "problem"} | {"problem_sha256": _hash(row["problem"])}


def _hash(text: str) -> str:
    return sha256_bytes(text.encode("utf-8"))


def _check_hash(settings: BenchmarkProblems, content: str) -> None:
    """Compare the problems with the hash that the benchmark's file or the study expects, if it expects one."""
    expected, found, name = settings.sha256, _hash(content), settings.name
    if expected is not None and found != expected:
        raise UserError(
            f"{name}: its problems have SHA-256 {found}; expected {expected}: another transcription has other "
            f"prompts or answers; to accept it, write benchmark_sources.{name}.sha256: {found} in the study "
            "(docs/benchmarks.md)"
        )
