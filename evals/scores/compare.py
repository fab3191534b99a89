"""Every method against the reference method and the base model: scores in, ``results/comparisons.json`` out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from evals.core.errors import UserError
from evals.core.files import fingerprint, sha256_file, write_json
from evals.core.manifest import Manifest, hash_files
from evals.scores.comparison import Settings, compare
from evals.scores.table import read_counts


def write_comparisons(scores: Sequence[Path], settings: Settings, out: Path) -> None:
    """Write the comparisons and a manifest beside them.

    Args:
        scores: files of scores; manifests among them are ignored.
        settings: how methods are compared.
        out: the JSON file.

    Raises:
        UserError: an input is missing, changed or malformed, or the output cannot be written.
    """
    for option, value in (("resamples", settings.bootstrap_resamples), ("permutations", settings.permutations)):
        if value < 100:
            raise UserError(f"--{option}: must be at least 100, got {value}")
    if settings.seed < 0:
        raise UserError(f"--seed: must not be negative, got {settings.seed}")
    paths = [path for path in scores if not path.name.endswith(".manifest.json")]
    if not paths:
        raise UserError("--scores: names no file of scores")
    content = compare([read_counts(path) for path in paths], settings)
    write_json(out, content)
    inputs = {path.as_posix(): sha256_file(path) for path in paths}
    parameters = {key: value for key, value in content.items() if key != "comparisons"}
    Manifest(
        kind="comparisons",
        inputs=inputs,
        outputs=hash_files(out.parent, out),
        parameters=parameters,
        fingerprint=fingerprint({"kind": "comparisons", "parameters": parameters, "inputs": sorted(inputs.values())}),
        details={"comparisons": len(content["comparisons"])},
    ).write(out.with_suffix(".manifest.json"))
