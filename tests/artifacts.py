"""Files with the manifest that a stage would write beside them."""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from evals.core.files import fingerprint, sha256_file, write_jsonl
from evals.core.manifest import Manifest, hash_files


def vouch_for(
    path: Path,
    kind: str,
    manifest: Path | None = None,
    parameters: Mapping[str, Any] = {},
    identity: str = "",
    inputs: Iterable[Path] = (),
) -> Path:
    """Write the manifest of one file, by default manifest.json beside it; return the directory of the file."""
    outputs, made_from = hash_files(path.parent, path), {str(file): sha256_file(file) for file in inputs}
    identity = identity or fingerprint({"parameters": dict(parameters), "outputs": outputs})
    Manifest(kind, made_from, outputs, parameters, identity).write(manifest or path.with_name("manifest.json"))
    return path.parent


def write_rows(path: Path, kind: str, rows: Iterable[Mapping[str, Any]], *inputs: Path) -> Path:
    """Write JSON lines, made from the files ``inputs``, with their manifest; return the directory of both."""
    write_jsonl(path, rows)
    return vouch_for(path, kind, inputs=inputs)


def edit(path: Path, change: Callable[[Any], object]) -> None:
    """Change the content of a JSON file."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def grade_row(problem: str, sample: int, correct: bool, **changes: Any) -> dict[str, Any]:
    """A row of a file of grades."""
    row = {"problem_id": problem, "sample": sample, "correct": correct, "answer": "7" if correct else "8"}
    row |= {"reason": "match" if correct else "mismatch", "seconds": 0.0, "tokens": 20, "finish_reason": "stop"}
    return row | changes
