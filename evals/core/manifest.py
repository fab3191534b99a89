"""Manifests: what an artifact was made from, by which command, and the hash of every byte on both sides."""

import contextlib
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from evals.core import arithmetic
from evals.core.errors import InvalidInput, UserError
from evals.core.files import canonical_json, fingerprint, json_text, read_json, sha256_file, write_json

SCHEMA = 1
_RECORDED_PACKAGES = ("torch", "transformers", "math-verify", "numpy", "pandas", "scipy", "snakemake")

_TYPES: Mapping[str, tuple[type, type]] = {
    "kind": (str, str),
    **{key: (dict, str) for key in ("inputs", "outputs")},
    "parameters": (dict, object),
    "fingerprint": (str, str),
    **{key: (dict, object) for key in ("details", "environment")},
    **{"created": (str, str), "sizes": (dict, int)},
}
"""Key of a manifest -> its type, and that of the values in it."""


@dataclass(frozen=True)
class Manifest:
    """The content of a ``manifest.json``."""

    kind: str  # what the artifact is: problems, base_model, run, samples, grades, scores, comparisons ..
    inputs: Mapping[str, str]  # file path -> SHA-256 of the bytes that were read
    outputs: Mapping[str, str]  # path, relative to the manifest's directory -> SHA-256 of what was written
    parameters: Mapping[str, Any]  # every resolved setting that the artifact depends on
    fingerprint: str  # identity of what was asked for; results of another fingerprint are never read as these
    details: Mapping[str, Any] = field(default_factory=dict)  # counts and measurements (rows, steps, seconds)
    environment: Mapping[str, Any] = field(default_factory=dict)  # versions and machine, for the reader
    created: str = ""
    sizes: Mapping[str, int] = field(default_factory=dict)  # bytes of each output; empty in older manifests

    def write(self, path: Path) -> None:
        """Write this manifest to ``path``, stamped with the time and the environment."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        content = {"schema": SCHEMA, "kind": self.kind, "created": now, "fingerprint": self.fingerprint}
        content |= {key: dict(getattr(self, key)) for key in ("inputs", "outputs", "parameters", "details")}
        content["environment"] = describe_environment()
        files = {name: path.parent / name for name in self.outputs}
        content["sizes"] = {name: file.stat().st_size for name, file in files.items() if file.is_file()}
        write_json(path, content | {"sha256": fingerprint(content)})


def hash_files(directory: Path, *paths: Path) -> dict[str, str]:
    """SHA-256 of files under ``directory``, keyed by their path relative to it."""
    return {path.relative_to(directory).as_posix(): sha256_file(path) for path in paths}


def write_output_manifest(
    kind: str,
    out: Path,
    endings: Sequence[str],
    inputs: Sequence[Path],
    parameters: Mapping[str, Any],
    details: Mapping[str, Any] | None = None,
) -> None:
    """Write ``{out}.manifest.json`` for the files ``{out}{ending}``."""
    hashes = {path.as_posix(): sha256_file(path) for path in inputs}
    outputs = hash_files(out.parent, *(out.with_name(out.name + ending) for ending in endings))
    identity = fingerprint({"kind": kind, "inputs": sorted(hashes.values()), "parameters": dict(parameters)})
    manifest = Manifest(kind, hashes, outputs, parameters, identity, details or {})
    manifest.write(out.with_name(f"{out.name}.manifest.json"))


def write_policy_manifest(kind: str, directory: Path, manifests: Iterable[Path]) -> None:
    """Write the manifest of a policy's ``directory``, which stands for the ``manifests`` of all its benchmarks."""
    inputs = {path.as_posix(): sha256_file(path) for path in manifests}
    Manifest(kind, inputs, {}, {}, fingerprint(inputs)).write(directory / "manifest.json")


def is_sealed(path: Path) -> bool:
    """Return whether a manifest has the bytes it was written with."""
    content = read_json(path)
    if not isinstance(content, dict) or "sha256" not in content:
        return False
    rest = {key: value for key, value in content.items() if key != "sha256"}
    try:
        return bool(content["sha256"] == fingerprint(rest) and path.read_bytes() == json_text(content).encode("utf-8"))
    except ValueError:  # half a surrogate pair, or a number that JSON has not: nothing of ours
        return False


def read_manifest(path: Path, kind: str) -> Manifest:
    """Read a manifest of the given kind; another file is a :class:`UserError`, here and below."""
    manifest = read_any_manifest(path)
    if manifest.kind != kind:
        raise UserError(f"{path}: is a manifest of kind {manifest.kind!r}, expected {kind!r}")
    return manifest


def read_any_manifest(path: Path) -> Manifest:
    """Read a manifest of any kind."""
    if os.path.exists(path) and not os.path.isfile(path):  # a pipe, or a device without an end
        raise UserError(f"{path}: is no file")
    content = read_json(path)
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise UserError(f"{path}: is not a manifest of schema {SCHEMA}")
    if missing := [key for key in _TYPES if key not in content and key != "sizes"]:
        raise UserError(f"{path}: lacks {', '.join(missing)}")
    for key, (kind, of) in _TYPES.items():
        value = content.get(key, {})
        if not isinstance(value, kind):
            raise InvalidInput(str(path), key, f"is {value!r:.80}", "text" if kind is str else "a mapping")
        for name, entry in value.items() if isinstance(value, dict) and of is not object else ():
            if not isinstance(entry, of) or not name.isprintable():
                accepted = f"file names with {of.__name__}"
                raise InvalidInput(str(path), f"{key}.{name!r:.80}", f"is {entry!r:.80}", accepted)
    try:
        canonical_json(content).encode()
    except ValueError as error:  # no hash is of such a number, or of half a character
        raise UserError(f"{path}: holds a number that is not finite, or half a surrogate pair") from error
    if outside := [name for name in content["outputs"] if os.path.normpath(name).startswith(("..", "/"))]:
        raise InvalidInput(str(path), f"outputs.{outside[0]!r:.80}", "leads out of its directory", "files beside it")
    return Manifest(**{key: content[key] for key in _TYPES if key in content})


def verify_outputs(manifest_path: Path, kind: str) -> Manifest:
    """Read a manifest and check that every file it lists still has the bytes it was written with."""
    manifest = read_manifest(manifest_path, kind)
    for name, expected in manifest.outputs.items():
        path = manifest_path.parent / name
        if not path.is_file():
            raise UserError(f"{path}: is missing, though {manifest_path} lists it; delete that to make it again")
        if sha256_file(path) != expected:
            raise UserError(f"{path}: its bytes differ from {manifest_path}; delete both to compute them again")
    return manifest


@cache
def installed_packages() -> Mapping[str, str]:
    """The versions of the packages that decide results, as far as they are installed."""
    packages: dict[str, str] = {}
    for name in _RECORDED_PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            packages[name] = version(name)
    return packages


def describe_environment() -> dict[str, Any]:
    """Versions and machine, for the reader of a manifest."""
    return {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "command": " ".join(Path(part).name if index == 0 else part for index, part in enumerate(sys.argv)),
        "packages": dict(installed_packages()),
        "arithmetic": arithmetic.describe(),
        **({"commit": commit} if (commit := source_commit()) else {}),
    }


@cache
def source_commit() -> str | None:
    """The git commit of this source, followed by ``-dirty`` if files differ from it; None outside a clone."""
    clone = Path(__file__).parents[2]
    if not (clone / ".git").exists():  # installed, perhaps somewhere in a clone of something else
        return None
    command = ["git", "--no-optional-locks", "-C", str(clone)]  # the user may be committing
    command += ["describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        described = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
        return described.stdout.strip()
    return None
