"""Write the problems of a benchmark: read from its source and checked against what is known of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evals.core.errors import UserError
from evals.core.files import fingerprint, sha256_bytes, sha256_file, write_jsonl, write_text
from evals.core.manifest import Manifest, hash_files
from evals.grading.code.tests import TESTS_FILE, pack
from evals.problems.benchmark import read_benchmark
from evals.problems.gated import withhold_texts
from evals.problems.source import source_of

NOT_OF_THE_CONTENT = ("path", "sha256")
"""Settings that say where to look and what to expect, not what the set is."""


def parse_settings(text: str, required: Sequence[str] = ("name", "grader", "count")) -> dict[str, Any]:
    """A benchmark's or training set's settings from a JSON object.

    Raises:
        UserError: not such an object, or one that lacks a key of ``required``.
    """
    try:
        settings = json.loads(text)
    except ValueError as error:
        raise UserError(f"--settings: is not valid JSON ({error})") from None
    missing = [key for key in required if not isinstance(settings, dict) or key not in settings]
    if missing or not isinstance(settings, dict):
        raise UserError(f"--settings: lacks {', '.join(missing)}; accepted: the keys of an entry, and its name")
    return settings


def write_benchmark(settings: Mapping[str, Any], out: Path) -> None:
    """Write ``problems.jsonl`` and its manifest to ``out``.

    Args:
        settings: a benchmark as ``Study.problem_settings`` describes it.
        out: the directory to write to.

    Raises:
        UserError: the benchmark cannot be read, or is not what the settings say.
    """
    read = read_benchmark(settings)
    rows = withhold_texts(read.rows) if settings.get("gated", False) else read.rows
    content = "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows)
    _check_hash(settings, content)
    path = out / "problems.jsonl"
    write_text(path, content)
    written = [path]
    if read.tests:
        written.append(out / TESTS_FILE)
        write_jsonl(written[-1], [{"id": row["id"], "tests": pack(read.tests[row["id"]])} for row in rows])
    parameters = {key: value for key, value in settings.items() if key not in NOT_OF_THE_CONTENT}
    Manifest(
        kind="problems",
        inputs=_inputs(settings),
        outputs=hash_files(out, *written),
        parameters=parameters,
        fingerprint=fingerprint(parameters),
        details={
            "rows": len(rows),
            "path": settings.get("path"),
            "expected_sha256": settings.get("sha256"),
            "repairs": list(read.repairs),
            "excluded": list(read.excluded),
        },
    ).write(out / "manifest.json")


def _check_hash(settings: Mapping[str, Any], content: str) -> None:
    """Compare what was read with the hash that the entry or the study expects, if it expects one."""
    expected, found = settings.get("sha256"), sha256_bytes(content.encode("utf-8"))
    if expected is not None and found != expected:
        name = settings["name"]
        raise UserError(
            f"{name}: its problems have SHA-256 {found}; expected {expected}: another transcription has other "
            f"prompts or answers; to accept it, write benchmark_sources.{name}.sha256: {found} in the study "
            "(docs/benchmarks.md)"
        )


def _inputs(settings: Mapping[str, Any]) -> dict[str, str]:
    source = source_of(settings)
    return {str(source.path): sha256_file(source.path)} if source.is_file and source.path is not None else {}
