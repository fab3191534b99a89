"""The manifest beside a table or figure: the hash of every file that it was made from and of every file it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evals.core.files import fingerprint, sha256_file
from evals.core.manifest import Manifest, hash_files


def write_output_manifest(
    kind: str, out: Path, endings: Sequence[str], inputs: Sequence[Path], parameters: Mapping[str, Any]
) -> None:
    """Write ``{out}.manifest.json`` for the files ``{out}{ending}``.

    Raises:
        UserError: an input or output is missing, or the manifest cannot be written.
    """
    hashes = {path.as_posix(): sha256_file(path) for path in inputs}
    outputs = hash_files(out.parent, *(out.with_name(out.name + ending) for ending in endings))
    identity = fingerprint({"kind": kind, "inputs": sorted(hashes.values()), "parameters": dict(parameters)})
    Manifest(kind, hashes, outputs, parameters, identity).write(out.with_name(f"{out.name}.manifest.json"))
