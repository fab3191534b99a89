"""Following manifests from a file to everything that it was made from, and checking every byte on the way.

A manifest holds the SHA-256 of the files that a command wrote and of those that it read. From any file the chain goes
through the manifest that lists it among its outputs, to that manifest's inputs, to the manifests that list those, down
to files that nothing here made: run sheets, cost measurements, published numbers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from evals.core.errors import UserError
from evals.core.files import sha256_file
from evals.core.manifest import SCHEMA, is_sealed


@dataclass(frozen=True)
class Maker:
    """A manifest, as the maker of the files that it lists.

    Attributes:
        path: of the manifest.
        kind: of what it made.
        inputs: path as written -> SHA-256 of what was read.
        outputs: path relative to the manifest's directory -> SHA-256 of what was written.
        parameters: what the command was asked for.
    """

    path: Path
    kind: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    parameters: Mapping[str, Any]

    @cached_property
    def files(self) -> dict[Path, str]:
        """Absolute path -> SHA-256 of what was written."""
        return {self.path.parent / name: digest for name, digest in self.outputs.items()}


@dataclass
class Chain:
    """Everything behind one file.

    Attributes:
        root: the directory that the manifests' relative paths start from.
        makers: manifest path -> the manifest, in the order met: the file's own first.
        sources: files that nothing here made -> SHA-256 they had when they were read.
        faults: what does not fit, each a line that names a file.
        unsealed: manifests that carry no checksum of their own, written before there was one.
    """

    root: Path
    makers: dict[Path, Maker] = field(default_factory=dict)
    sources: dict[Path, str] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    unsealed: list[Path] = field(default_factory=list)
    _digests: dict[Path, str | None] = field(default_factory=dict)
    _made: dict[Path, Maker | None] = field(default_factory=dict)

    def digest(self, path: Path) -> str | None:
        """SHA-256 of a file as it is now; None if it is missing."""
        if path not in self._digests:
            self._digests[path] = sha256_file(path) if path.is_file() else None
        return self._digests[path]

    def shown(self, path: Path) -> str:
        """A path as short as it can be said."""
        return path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else path.as_posix()

    def maker_of(self, path: Path) -> Maker | None:
        """The manifest that lists ``path``; None if nothing here made it."""
        if path not in self._made:
            self._made[path] = find_maker(path)
        return self._made[path]

    def leads_to(self, path: Path) -> Maker | None:
        """The manifest to go on with from an input: its maker, or itself if the input is a manifest."""
        maker = self.maker_of(path)
        if maker is None and _is_manifest(path) and path.is_file():
            maker = self._made[path] = _read(path)
        return maker

    def behind(self, maker: Maker) -> list[Maker]:
        """A manifest and all those that its inputs come from, each once, the latest stage first."""
        found = {maker.path: maker}
        queue = [maker]
        while queue:
            for name in queue.pop(0).inputs:
                other = self.leads_to(self.located(name))
                if other is not None and other.path not in found:
                    found[other.path] = other
                    queue.append(other)
        return list(found.values())

    def located(self, name: str) -> Path:
        """Where an input lies, from the way a manifest writes it."""
        path = Path(name)
        return path if path.is_absolute() else self.root / path


def follow(path: Path) -> Chain:
    """Check everything behind ``path``.

    Raises:
        UserError: the file is missing, no manifest beside it lists it, or its manifest is none.
    """
    path = path.absolute()
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    maker = find_maker(path)
    if maker is None:
        raise UserError(f"{path}: no manifest beside it lists it; tables, figures and reports have one")
    chain = Chain(_root(path, maker))
    _visit(chain, maker)
    return chain


def _visit(chain: Chain, first: Maker) -> None:
    """Breadth first through the manifests, checking outputs against them and inputs against their makers."""
    queue = [first]
    while queue:
        maker = queue.pop(0)
        if maker.path in chain.makers:
            continue
        chain.makers[maker.path] = maker
        _check_manifest(chain, maker)
        _check_request(chain, maker)
        for file, written in maker.files.items():
            now = chain.digest(file)
            if now is None:
                chain.faults.append(f"{chain.shown(file)}: is missing; {chain.shown(maker.path)} lists it")
            elif now != written:
                chain.faults.append(f"{chain.shown(file)}: its bytes differ from those that were written "
                                    f"({now[:12]}, {chain.shown(maker.path)} says {written[:12]})")  # fmt: skip
        for name, read in maker.inputs.items():
            file = chain.located(name)
            origin = chain.leads_to(file)
            if origin is None or origin.path == file:
                _check_source(chain, maker, file, read)
            elif origin.files[file] != read:
                chain.faults.append(f"{chain.shown(file)}: {chain.shown(maker.path)} was made from other bytes of it "
                                    f"({read[:12]}) than were written last ({origin.files[file][:12]})")  # fmt: skip
            if origin is not None:
                queue.append(origin)


def _check_manifest(chain: Chain, maker: Maker) -> None:
    sealed = is_sealed(maker.path)
    if sealed is None:
        chain.unsealed.append(maker.path)
    elif not sealed:
        chain.faults.append(f"{chain.shown(maker.path)}: was changed after it was written")


def _check_request(chain: Chain, maker: Maker) -> None:
    """A run was trained as the run.json beside it asks: they agree on everything that both name."""
    path = maker.path.parent / "run.json"
    if maker.kind != "run" or not path.is_file():
        return
    try:
        asked = json.loads(path.read_text(encoding="utf-8"))
        differing = [key for key, value in asked.items() if maker.parameters.get(key, value) != value]
    except (ValueError, AttributeError):
        chain.faults.append(f"{chain.shown(path)}: is not a JSON object")
        return
    if differing:
        chain.faults.append(f"{chain.shown(path)}: asks for another {differing[0]} than {chain.shown(maker.path)} "
                            "was trained with")  # fmt: skip


def _check_source(chain: Chain, maker: Maker, file: Path, read: str) -> None:
    """A file that nothing here made, and which is only known by what was read."""
    chain.sources.setdefault(file, read)
    now = chain.digest(file)
    if now is None:
        chain.faults.append(f"{chain.shown(file)}: is missing; {chain.shown(maker.path)} was made from it")
    elif now != read:
        chain.faults.append(f"{chain.shown(file)}: its bytes differ from those that {chain.shown(maker.path)} "
                            f"was made from ({now[:12]}, then {read[:12]})")  # fmt: skip


def find_maker(path: Path) -> Maker | None:
    """The manifest that lists a file: in its directory or, for checkpoints and the like, one above."""
    beside = path.with_suffix(".manifest.json")
    for candidate in _unique([beside, path.parent / "manifest.json", path.parent.parent / "manifest.json"]):
        if candidate.is_file() and candidate != path:
            maker = _read(candidate)
            if path in maker.files:
                return maker
    return None


def _is_manifest(path: Path) -> bool:
    return path.name == "manifest.json" or path.name.endswith(".manifest.json")


def _unique(paths: Iterable[Path]) -> list[Path]:
    return list(dict.fromkeys(paths))


def _read(path: Path) -> Maker:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["schema"] != SCHEMA:
            raise UserError(f"{path}: is a manifest of schema {content['schema']}; accepted: {SCHEMA}")
        return Maker(path, content["kind"], content["inputs"], content["outputs"], content["parameters"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: is not a manifest ({error!r}); nothing behind it can be followed") from None


def _root(path: Path, maker: Maker) -> Path:
    """The directory that the manifest's relative paths start from: the nearest above with most of its inputs.

    The file's own place decides, not where the command is run: results of another study must not stand in for them.
    """
    names = [name for name in maker.inputs if not Path(name).is_absolute()]
    above = list(path.parents)
    return max(above, key=lambda top: (sum((top / name).is_file() for name in names), -above.index(top)))
