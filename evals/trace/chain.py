"""The manifests behind a file, followed down to its sources; every byte on the way is checked.

A manifest holds the SHA-256 of the files that a command wrote and of those that it read. From any file the chain goes
through the manifest that lists it among its outputs, to that manifest's inputs, to the manifests that list those, down
to sources, which nothing here made. Only declared files are sources: a file of another name that no manifest lists has
lost its manifest, and everything behind it is unknown.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from evals.core.errors import UserError
from evals.core.files import fingerprint, located, read_json, read_parquet, sha256_bytes, sha256_file, unpacked
from evals.core.manifest import Manifest, is_sealed, read_any_manifest

_SOURCES = {
    *("study.json", "runs.json"),  # what was asked for
    *("published.csv", "settings.yaml"),  # of config/reference
    "disjoint.json",  # what evaluation shares with training
}
_COSTS = "costs"
"""The directory of Snakemake's measurements."""
_SHOWN = {".html", ".md", ".tex", ".png", ".svg", ".pdf"}  # ends of the names of what shows results to people
_BEGINNINGS = {"problems", "base_model", "corpus", "kept_rollouts", "component"}
"""Kinds of manifests that may be made from no file at all."""
_ENTRIES = {"problems", "base_model", "samples", "decoding_sweep", "token_comparison", "contrast", "page"}
"""Kinds of manifests that may be made from files of elsewhere: local copies of benchmarks, solutions, checkpoints."""


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
    """Everything behind some manifests, whose files lie under ``top``; :meth:`check` compares every byte."""

    def __init__(self, top: Path, first: Sequence[Maker]) -> None:
        self.sources: dict[Path, str] = {}  # files that nothing here made -> SHA-256 they had when they were read
        self.elsewhere: list[Path] = []  # sources outside the study that are not on this machine
        self.faults: list[str] = []  # what does not fit, each a line that names a file
        # Kept for as long as the chain: several manifests name one file.
        self.digest, self.origin, self._read = cache(_digest), cache(self._origin), cache(self._read_maker)
        self.root = _root(top, [name for maker in first for name in maker.manifest.inputs])
        self._results = self.root.joinpath(*top.relative_to(self.root).parts[:1])
        self.makers = self.behind(first)

    @property
    def files(self) -> set[Path]:
        """Every file of the chain: manifests, what they list, and sources."""
        return {file for maker in self.makers for file in (maker.path, *maker.files)} | self.sources.keys()

    def path(self, name: str) -> Path:
        """The file that a manifest names: relative to the root, or absolute."""
        return Path(os.path.normpath(self.root / name))

    def short(self, path: Path) -> str:
        """A path as short as it can be said."""
        return path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else path.as_posix()

    def behind(self, first: Iterable[Maker]) -> list[Maker]:
        """Some manifests and all those that their inputs come from, each once, the latest stage first."""
        behind = {maker.path: maker for maker in first}
        queue = list(behind.values())
        while queue:
            for name in queue.pop(0).manifest.inputs:
                other = self.origin(self.path(name))
                if other is not None and other.path not in behind:
                    behind[other.path] = other
                    queue.append(other)
        return list(behind.values())

    def root_hash(self, *without: Path, of_bytes: bool = False) -> str:
        """One SHA-256 of every result and every source behind, but for the manifests ``without``.

        A study that is made twice has one: it covers kind, parameters and outputs of manifests, without what was
        measured, and without pages, figures and tables as text, which show that. ``of_bytes`` covers all, times too.
        """
        said = _without_times if not of_bytes else lambda maker: self.digest(maker.path)
        # A manifest without outputs stands for others.
        makers = [each for each in self.makers if each.path not in without and (of_bytes or each.manifest.outputs)]
        content = {self.short(maker.path): said(maker) for maker in makers}
        read = (item for maker in self.makers for item in maker.manifest.inputs.items())
        named, sources = os.path.normpath if of_bytes else _named, dict[str, set[str]]()
        for name, of in read:
            if self.origin(self.path(name)) is None and (of_bytes or _COSTS not in Path(name).parts):
                sources.setdefault(named(name) or of, set()).add(of)
        # Sources at different places may share a name.
        return fingerprint(content | {name: " ".join(sorted(of)) for name, of in sources.items()})

    def check(self) -> None:
        """Check every manifest, its outputs and its inputs."""
        for maker in self.makers:
            self._check(maker)

    def _check(self, maker: Maker) -> None:
        """Check that a manifest is as it was written, and that its outputs and inputs have the bytes that it says.

        What was read is checked against its maker, or against the bytes there if nothing here made it.
        """
        name = self.short(maker.path)
        if not is_sealed(maker.path):
            self._fault(maker.path, "was changed after it was written")
        if not maker.manifest.inputs and maker.manifest.kind not in _BEGINNINGS:
            self._fault(maker.path, "does not say what it was made from")
        if maker.manifest.kind == "run":
            self._check_run(maker)
        for file, written in maker.files.items():
            self._check_bytes(file, written, f"{name} lists it", "were written", f"{name} says")
        for input_name, read in maker.manifest.inputs.items():
            file = self.path(input_name)
            origin = self.origin(file)
            if origin is None or origin.path == file:
                self._check_source(file, read, maker, is_manifest=origin is not None)
            elif (written := origin.files[file]) != read:
                than = f"({read[:12]}) than were written last ({written[:12]})"
                self._fault(file, f"{name} was made from other bytes of it {than}")

    def _check_source(self, file: Path, read: str, maker: Maker, is_manifest: bool) -> None:
        """Check a file that no manifest lists: that it may be one, and its bytes."""
        name, is_ours = self.short(maker.path), file.is_relative_to(self._results)
        is_there = os.path.isfile(file)
        if not is_ours and not is_there:
            self.elsewhere.append(file)
            return
        self.sources.setdefault(file, read)
        declared = is_manifest or file.name in _SOURCES or _COSTS in file.parts[:-1]
        if declared or (not is_ours and maker.manifest.kind in _ENTRIES) or not is_there:
            self._check_bytes(file, read, f"{name} was made from it", f"{name} was made from", "then")
        else:
            self._fault(file, f"no manifest lists it, so nothing says what it was made from; {name} was made from it")

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
        asked: Any = None
        with contextlib.suppress(UserError):
            asked = read_json(path)
        if not isinstance(asked, dict):
            self._fault(path, f"is missing, or no JSON object; {self.short(maker.path)} was trained as it asked")
            return
        for name, key_of_path in (("validation", "problems"), ("verifier", "directory")):
            if isinstance(asked.get(name), dict):  # where something lies is no parameter: its bytes are inputs
                asked[name] = {key: value for key, value in asked[name].items() if key != key_of_path}
        made, others = maker.manifest.parameters, {"base", "problems", "versions"}
        if differing := [key for key in {*made, *asked} - others if made.get(key) != asked.get(key)]:
            self._fault(path, f"asks for another {min(differing)} than {self.short(maker.path)} was trained with")

    def _origin(self, path: Path) -> Maker | None:
        """The manifest to go on with from an input: its maker, or itself if the input is a manifest of nothing else."""
        maker = _find_maker(path, self._read)
        is_manifest = maker is None and path.name.endswith("manifest.json") and os.path.isfile(path)
        return self._read(path) if is_manifest else maker

    def _read_maker(self, path: Path) -> Maker | None:
        try:
            return Maker.read(path)
        except UserError as error:
            self.faults.append(str(error))
            return None

    def _fault(self, path: Path, what: str) -> None:
        self.faults.append(f"{self.short(path)}: {what}")


def _named(source: str) -> str:
    """The name of a source in its study or in the project; none of one elsewhere, of which the bytes count alone."""
    in_project = re.search("(?:^|/)(config/reference/[^/]+)$", source)
    return in_project[1] if in_project else "" if os.path.isabs(source) else os.path.normpath(source)


def _without_times(maker: Maker) -> Any:
    """What a manifest says of its results, without what was measured and what shows it."""
    results: dict[str, Any] = {}
    for name, digest in maker.manifest.outputs.items():
        path = maker.path.parent / name
        if path.suffix not in _SHOWN:
            results[name] = digest, os.path.getsize(path) if os.path.isfile(path) else None  # of one cut or lost
        if path.suffix == ".csv" or path.name == "metrics.parquet":
            with contextlib.suppress(UserError, OSError, ValueError):  # else the bytes that were written stand for it
                frame = pd.read_csv(path, dtype=str) if path.suffix == ".csv" else read_parquet(path)
                frame = frame[[column for column in frame if not re.search("seconds|memory", str(column))]]
                results[name] = sha256_bytes(frame.to_csv().encode())
    parameters = dict(maker.manifest.parameters)
    if os.path.isabs(str(parameters.get("model", ""))):
        del parameters["model"]  # where its directory lies; its files are the outputs
    return {"kind": maker.manifest.kind, "parameters": parameters, "outputs": results}


def follow(path: Path) -> tuple[Chain, Maker]:
    """Check everything behind a file; the second value is the manifest that lists it.

    Raises:
        UserError: the file is missing, or no manifest beside it lists it.
    """
    path = located(path)
    if not os.path.isfile(path):
        raise UserError(f"{path}: no such file")
    maker = _find_maker(path, Maker.read)
    if maker is None:
        raise UserError(f"{path}: no manifest beside it lists it; tables, figures and reports have one")
    chain = Chain(path, [maker])
    chain.check()
    return chain, maker


def root_hash_of(out: Path, inputs: Sequence[Path]) -> str:
    """The root hash of the chain behind a file ``out`` that is to be made from ``inputs``."""
    hashes = {path.as_posix(): sha256_file(path) for path in inputs}
    manifest = Maker(located(out).with_suffix(".manifest.json"), Manifest("", hashes, {}, {}, ""), {})
    return Chain(located(out), [manifest]).root_hash(manifest.path)


def _root(top: Path, names: Iterable[str]) -> Path:
    """The directory that manifests' relative paths start from: the nearest above with most of the inputs.

    The place of the files decides, not where the command is run: results of another study must not stand in for them.
    """
    relative = [name for name in names if not Path(name).is_absolute()]
    above = list(top.parents)
    return max(
        above,
        key=lambda directory: (sum(os.path.isfile(directory / name) for name in relative), -above.index(directory)),
    )


def _find_maker(path: Path, read: Callable[[Path], Maker | None]) -> Maker | None:
    """Find the manifest that lists a file: in its directory or, for checkpoints and the like, one above."""
    beside = unpacked(path).with_suffix(".manifest.json")
    for candidate in dict.fromkeys([beside, path.parent / "manifest.json", path.parent.parent / "manifest.json"]):
        if os.path.isfile(candidate) and candidate != path:
            maker = read(candidate)
            if maker is not None and path in maker.files:
                return maker
    return None


def _digest(path: Path) -> str | None:
    """SHA-256 of a file as it is now; None if it is missing, or has a name that no file can have."""
    return sha256_file(path) if os.path.isfile(path) else None
