"""The manifests behind a file, followed down to its sources; every byte on the way is checked.

A manifest holds the SHA-256 of the files that a command wrote and of those that it read. From any file the chain goes
through the manifest that lists it among its outputs, to that manifest's inputs, to the manifests that list those, down
to files that nothing here made: run sheets, cost measurements, published numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from evals.core.errors import UserError
from evals.core.files import read_json, sha256_file
from evals.core.manifest import Manifest, is_sealed, read_any_manifest


@dataclass(frozen=True)
class Maker:
    """A manifest, as the maker of ``files``: absolute path -> SHA-256 of what was written."""

    path: Path
    manifest: Manifest
    files: Mapping[Path, str]

    @classmethod
    def read(cls, path: Path) -> Maker:
        manifest = read_any_manifest(path)
        return cls(path, manifest, {path.parent / name: digest for name, digest in manifest.outputs.items()})


class Chain:
    """Everything behind one ``file``, checked; ``maker`` is the manifest that lists it."""

    def __init__(self, file: Path, maker: Maker) -> None:
        self.file, self.maker = file, maker
        self.sources: dict[Path, str] = {}  # files that nothing here made -> SHA-256 they had when they were read
        self.faults: list[str] = []  # what does not fit, each a line that names a file
        self.unsealed: list[Path] = []  # manifests without a checksum of their own, written before there was one
        # Kept for as long as the chain: several manifests name one file.
        self.digest, self.origin = cache(_digest), cache(_origin)
        self.makers = self.behind(maker)
        for each in self.makers:
            self._check(each)

    @cached_property
    def root(self) -> Path:
        """The directory that the manifests' relative paths start from: the nearest above with most of the inputs.

        The file's own place decides, not where the command is run: results of another study must not stand in for them.
        """
        names = [name for name in self.maker.manifest.inputs if not Path(name).is_absolute()]
        above = list(self.file.parents)
        return max(above, key=lambda top: (sum((top / name).is_file() for name in names), -above.index(top)))

    def short(self, path: Path) -> str:
        """A path as short as it can be said."""
        return path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else path.as_posix()

    def behind(self, first: Maker) -> list[Maker]:
        """A manifest and all those that its inputs come from, each once, the latest stage first."""
        found = {first.path: first}
        queue = [first]
        while queue:
            for name in queue.pop(0).manifest.inputs:
                other = self.origin(self.root / name)  # of an absolute name this is the name
                if other is not None and other.path not in found:
                    found[other.path] = other
                    queue.append(other)
        return list(found.values())

    def is_intact(self, path: Path, written: str) -> bool:
        """Return whether a file has the bytes that were written and no fault names it."""
        named = any(fault.startswith(f"{self.short(path)}:") for fault in self.faults)
        return self.digest(path) == written and not named

    def _check(self, maker: Maker) -> None:
        """Check that a manifest is as it was written, and that its outputs and inputs have the bytes that it says.

        What was read is checked against its maker, or against the bytes there if nothing here made it.
        """
        name, sealed = self.short(maker.path), is_sealed(maker.path)
        if sealed is None:
            self.unsealed.append(maker.path)
        elif not sealed:
            self._fault(maker.path, "was changed after it was written")
        if maker.manifest.kind == "run":
            self._check_run(maker)
        for file, written in maker.files.items():
            self._check_bytes(file, written, f"{name} lists it", "were written", f"{name} says")
        for input_name, read in maker.manifest.inputs.items():
            file = self.root / input_name
            origin = self.origin(file)
            if origin is None or origin.path == file:
                self.sources.setdefault(file, read)
                self._check_bytes(file, read, f"{name} was made from it", f"{name} was made from", "then")
            elif (written := origin.files[file]) != read:
                than = f"({read[:12]}) than were written last ({written[:12]})"
                self._fault(file, f"{name} was made from other bytes of it {than}")

    def _check_bytes(self, file: Path, expected: str, role: str, those: str, source: str) -> None:
        """Check that a file is there with the ``expected`` digest; the other texts are parts of the fault."""
        now = self.digest(file)
        if now is None:
            self._fault(file, f"is missing; {role}")
        elif now != expected:
            self._fault(file, f"its bytes differ from those that {those} ({now[:12]}, {source} {expected[:12]})")

    def _check_run(self, maker: Maker) -> None:
        """Check that a run was trained as the run.json beside its manifest asks."""
        path = maker.path.parent / "run.json"
        if not path.is_file():
            return
        try:
            asked = read_json(path)
        except UserError:
            asked = None
        if not isinstance(asked, dict):
            self._fault(path, "is not a JSON object")
            return
        if isinstance(asked.get("validation"), dict):  # where its problems lie is no parameter: their bytes are inputs
            own = {key: value for key, value in asked["validation"].items() if key != "problems"}
            asked = {**asked, "validation": own}
        if differing := [key for key, value in asked.items() if maker.manifest.parameters.get(key, value) != value]:
            self._fault(path, f"asks for another {differing[0]} than {self.short(maker.path)} was trained with")

    def _fault(self, path: Path, what: str) -> None:
        self.faults.append(f"{self.short(path)}: {what}")


def follow(path: Path) -> Chain:
    """Check everything behind a file; UserError if it is missing, or no manifest beside it lists it."""
    path = path.absolute()
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    maker = _find_maker(path)
    if maker is None:
        raise UserError(f"{path}: no manifest beside it lists it; tables, figures and reports have one")
    return Chain(path, maker)


def _find_maker(path: Path) -> Maker | None:
    """Find the manifest that lists a file: in its directory or, for checkpoints and the like, one above."""
    beside = path.with_suffix(".manifest.json")
    for candidate in dict.fromkeys([beside, path.parent / "manifest.json", path.parent.parent / "manifest.json"]):
        if candidate.is_file() and candidate != path:
            maker = Maker.read(candidate)
            if path in maker.files:
                return maker
    return None


def _origin(path: Path) -> Maker | None:
    """The manifest to go on with from an input: its maker, or itself if the input is a manifest of nothing else."""
    maker = _find_maker(path)
    is_manifest = maker is None and path.name.endswith("manifest.json") and path.is_file()
    return Maker.read(path) if is_manifest else maker


def _digest(path: Path) -> str | None:
    """SHA-256 of a file as it is now; None if it is missing."""
    return sha256_file(path) if path.is_file() else None
