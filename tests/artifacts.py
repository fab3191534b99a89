"""Files of rows with the manifest that a stage would write beside them."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from evals.core.files import sha256_file, write_jsonl
from evals.core.manifest import Manifest, hash_files


def write_rows(path: Path, kind: str, rows: Iterable[Mapping[str, Any]], *inputs: Path) -> Path:
    """Write JSON lines, made from the files ``inputs``, and manifest.json; return the directory of both."""
    write_jsonl(path, rows)
    made_from = {str(file): sha256_file(file) for file in inputs}
    Manifest(kind, made_from, hash_files(path.parent, path), {}, "f").write(path.with_name("manifest.json"))
    return path.parent
