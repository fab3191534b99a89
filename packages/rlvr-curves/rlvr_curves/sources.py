"""Which runs the words of a command mean: files, directories, patterns and parts of resumed runs."""

import glob
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from evals.core.errors import UserError
from evals.core.files import sha256_file
from rlvr_curves.formats import runs_of_database

FILES = {
    "trainer_state.json": "TRL and others on transformers' trainer; the last checkpoint's",
    "metrics.parquet": "this project",
    "run-*.wandb": "wandb, online or offline",
    "*.tfevents.*": "TensorBoard; all of a directory are one run",
    "metrics": "MLflow's directory of a run",
    "*.db": "MLflow's database; its runs are DATABASE/NAME",
    "*.jsonl": "verl's file logger; lines of one object with a step and metrics",
    "*.log": "verl's console",
}
"""What is looked for in a directory; the first kind that is there is read."""
_CHECKPOINT = re.compile(r"checkpoint-(\d{1,12})$")
_HYPERPARAMETERS = re.compile(r"\d+\.\d+$")
"""The name of the directory that TensorBoard's ``add_hparams`` writes into."""


@dataclass(frozen=True)
class Source:
    """A run of a method.

    Attributes:
        path: what a message calls it.
        parts: its files in order, several of a resumed run; of MLflow a directory, or ``DATABASE/ID``.
        home: the run's directory or file, which no two runs share.
    """

    method: str
    path: Path
    parts: tuple[Path, ...]
    home: Path

    @property
    def files(self) -> list[Path]:
        """The files that are read."""
        files = [part.parent if part.parent.is_file() else part for part in self.parts]
        inside = [sorted(path for path in file.rglob("*") if path.is_file()) or [file] for file in files]
        return [file for files in inside for file in files]


def find_sources(words: Sequence[str]) -> list[Source]:
    """Find the runs of all words ``METHOD=PATH``; one that is given twice is an error."""
    sources = [source for word in words for source in _sources(word)]
    sizes = Counter(part.stat().st_size for source in sources for part in source.parts if part.is_file())
    seen: dict[str, Source] = {}
    for source in sources:
        keys = [os.path.realpath(path) for path in (source.home, *source.parts)]
        keys += [sha256_file(part) for part in source.parts if part.is_file() and sizes[part.stat().st_size] > 1]
        if other := next((seen[key] for key in keys if key in seen), None):
            raise UserError(f"{source.path}: is the run of {other.path}; accepted: every seed's own run, once")
        seen |= dict.fromkeys(keys, source)
    return sources


def few(names: Iterable[str], most: int = 6) -> str:
    """The first of many names, and how many more there are."""
    known = list(names)
    return ", ".join(known[:most]) + (f" and {len(known) - most} more" if len(known) > most else "")


def _sources(word: str) -> Iterator[Source]:
    """Find the runs of ``METHOD=PATH``; without a method each is one, by its name."""
    method, equals, rest = word.partition("=")
    if os.path.exists(word) or not equals:  # no error of a name that no file can have
        method, rest = "", word
    elif not method or not rest:
        raise UserError(f"{word}: lacks the {'path' if method else 'method'}; accepted: METHOD=PATH")
    matches = _matches(rest)
    if not matches and "+" in rest:
        runs = [_source("", path) for part in rest.split("+") for _, path in _matches(part) or _refuse(part)]
        yield Source(method or runs[0].path.stem, Path(rest), tuple(p for run in runs for p in run.parts), runs[0].home)
    else:
        yield from (_source(method or name, path) for name, path in matches or _refuse(rest))


def _refuse(text: str) -> list[tuple[str, Path]]:
    raise UserError(f"{text}: no such file" + (" matches the pattern" if glob.has_magic(text) else ""))


def _matches(text: str) -> list[tuple[str, Path]]:
    """The names and paths that a path or a pattern means; of MLflow's database those of its runs."""
    path = Path(text)
    if path.exists():
        return [(path.stem, path)]
    if path.parent.is_file():
        runs = runs_of_database(path.parent)
        fitting = [key for key, name in runs.items() if path.name in (key, name) or fnmatchcase(name, path.name)]
        if not fitting:
            raise UserError(f"{path.parent}: has no run {path.name}; accepted: {few(runs.values())}")
        return [(runs[key], path.with_name(key)) for key in fitting]
    return [(Path(match).stem, Path(match)) for match in sorted(glob.glob(text))]


def _source(method: str, path: Path) -> Source:
    """The one run of a path; several are an error that names them."""
    names: Iterable[str]
    seeds = ""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise UserError(f"{path}: is a pipe or a device; accepted: a file")
    if path.is_file() and fnmatchcase(path.name, "*.db"):
        found = runs_of_database(path)
        runs, names = {path / key: [path / key] for key in found}, found.values()
        seeds = str(path / "*")
    elif not path.is_dir() or path.name == "metrics":
        runs, names = {_home(path): [path]}, []
    else:
        runs = _runs_below(path)
        names, seeds = [os.path.relpath(home, path) for home in runs], _pattern(runs)
    if not runs:
        kinds = "; ".join(f"{name} ({words})" for name, words in FILES.items())
        raise UserError(f"{path}: has no file of a run; accepted: {kinds}")
    if len(runs) > 1:
        accepted = f"one of them; {f'METHOD={shlex.quote(seeds)}, of which' if seeds else 'METHOD=RUN'} each is a seed"
        accepted += "; METHOD=FIRST+REST, parts of one run"
        raise UserError(f"{path}: holds {len(runs)} runs, {few(sorted(names))}; accepted: {accepted}")
    ((home, parts),) = runs.items()
    return Source(method, path, tuple(parts), home)


def _pattern(runs: Mapping[Path, Sequence[Path]]) -> str:
    """The pattern of the runs, which matches nothing else; empty where there is none."""
    words = zip(*(home.parts for home in runs), strict=False)
    alike = [(set(each), os.path.commonprefix(each)) for each in words]  # noqa: RUF071 (of letters)
    pattern = str(Path(*(glob.escape(start) + "*" * (len(each) > 1) for each, start in alike)))
    matches = {Path(match) for match in glob.glob(pattern)}
    return pattern if runs.keys() <= matches <= {*runs, *(part for parts in runs.values() for part in parts)} else ""


def _home(file: Path) -> Path:
    """What tells a run from others: its directory where it has one, else its file."""
    if file.name == "trainer_state.json":
        return file.parent.parent if _CHECKPOINT.match(file.parent.name) else file.parent
    return file.parent if ".tfevents." in file.name else file


def _runs_below(directory: Path) -> dict[Path, list[Path]]:
    """The runs in a directory, of the first kind in :data:`FILES` that is there: home -> its parts in order."""
    paths = [Path(at, name) for at, names, files in os.walk(directory) for name in (*names, *files)]
    for pattern in FILES:
        runs: dict[Path, list[Path]] = {}
        for path in sorted((path for path in paths if fnmatchcase(path.name, pattern)), key=_order):
            home = _home(path)
            if path.is_dir() and (pattern != "metrics" or not (path.parent / "meta.yaml").is_file()):
                continue
            if pattern == "*.db":
                runs |= {path / key: [path / key] for key in runs_of_database(path)}
                continue
            if pattern == "run-*.wandb":  # a run that was resumed has several directories and one id
                home = next((other for other in runs if other.name == path.name), path)
            if pattern == "*.tfevents.*":  # add_scalars and add_hparams have directories of their own
                home = next((above for above in reversed(path.parents) if above in runs), home)
                if _HYPERPARAMETERS.match(path.parent.name) and home != path.parent:
                    continue
            runs.setdefault(home, []).append(path)
        if runs:
            return {home: parts[-1:] if pattern == "trainer_state.json" else parts for home, parts in runs.items()}
    return {}


def _order(path: Path) -> tuple[int, int, str]:
    """Files before those in directories beside them; checkpoints by their step, and last the state beside them."""
    checkpoint = _CHECKPOINT.match(path.parent.name)
    depth = 0 if path.name == "trainer_state.json" else len(path.parts)
    return depth, int(checkpoint[1]) if checkpoint else 10**12, str(path)
