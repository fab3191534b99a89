"""Grades and samples under any path that a person types; samples without grades are graded on the way."""

from __future__ import annotations

import contextlib
import functools
import glob
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from evals.core.errors import UserError
from evals.core.files import read_jsonl
from evals.core.manifest import read_manifest, verify_outputs
from evals.core.record import read_rows
from evals.core.records import Grade
from evals.grading.grade_file import SAMPLE_KEYS, grade_samples
from evals.grading.pool import GradingPool
from evals.grading.verdict import Kind
from evals.scores.grades import GradedRun, grades_by_problem

_NAMES = ("grades.jsonl", "samples.jsonl")


@dataclass(frozen=True)
class Reader:
    """Reads grades, and grades samples.

    Attributes:
        problems: files of problems, for samples; those that a samples' manifest names are found by themselves.
        kind: how samples are read; None: choices if their problems have options, else completions.
        workers: processes that grade.
    """

    problems: Sequence[Path]
    kind: Kind | None
    workers: int

    def read(self, paths: Sequence[Path]) -> list[GradedRun]:
        """Read files of grades or samples: those named, and of a directory the ones in it or one level below.

        Where a directory has both, the grades are meant. A file ``{run}/{benchmark}/grades.jsonl`` gives the names of
        run and benchmark; any other file is a run by its own name.

        Raises:
            UserError: a path does not exist, a directory holds neither, a file is malformed or not what its manifest
                says, or no file has the problems of a file of samples.
        """
        with contextlib.ExitStack() as stack:
            pool = functools.cache(lambda: stack.enter_context(GradingPool(self.workers)))
            return [self._read(path, pool) for path in find_files(paths)]

    def _read(self, path: Path, pool: Callable[[], GradingPool]) -> GradedRun:
        hashes = _verify(path)
        rows = read_jsonl(path, ("problem_id", "sample"))
        if not rows:
            raise UserError(f"{path}: is empty")
        if "correct" in rows[0]:
            grades = read_rows(path, Grade)
        elif "text" in rows[0]:
            grades = self._grade(path, pool())
        else:
            raise UserError(f"{path}: line 1 has neither correct, as grades have, nor text, as samples have")
        standard, place = path.name in _NAMES, path.absolute().parent
        run, benchmark = (place.parent.name, place.name) if standard else (path.stem, "–")
        by_problem, samples = grades_by_problem(path, grades)
        return GradedRun(path, run, benchmark, by_problem, samples, hashes)

    def _grade(self, path: Path, pool: GradingPool) -> list[Grade]:
        wanted = {str(row["problem_id"]) for row in read_jsonl(path, SAMPLE_KEYS)}
        problems = self._problems_of(path, wanted)
        rows, _ = grade_samples(path, problems, pool, self.kind or _kind_of(problems))
        return [Grade.parse(row, str(path)) for row in rows]

    def _problems_of(self, samples: Path, wanted: set[str]) -> Path:
        """The file of problems that has all problems of a file of samples."""
        candidates = [*self.problems, *_recorded_problems(samples)]
        for path in candidates:
            if wanted <= {str(row["id"]) for row in read_jsonl(path, ("id", "answer"))}:
                return path
        looked = ", ".join(map(str, candidates)) or "none is known"
        raise UserError(
            f"{samples}: has no grades, and no file of problems has all of its problems ({looked}); --problems"
        )


def find_files(paths: Sequence[Path]) -> list[Path]:
    """Find the files of grades or samples that paths mean; errors as for :meth:`Reader.read`."""
    found: list[Path] = []
    for path in paths:
        if path.is_file():
            found.append(path)
            continue
        if not path.is_dir():
            raise UserError(f"{path}: no such file or directory")
        inside = [_in_directory(directory) for directory in (path, *sorted(path.iterdir()))]
        files = [file for file in inside if file is not None]
        if not files:
            raise UserError(f"{path}: holds no {' or '.join(_NAMES)}, nor do the directories in it")
        found += files
    return list(dict.fromkeys(found))


def find_seeds(side: str, text: str) -> list[Path]:
    """The paths that an argument names: several separated by commas, or patterns; ``side`` is its name."""
    paths: list[Path] = []
    for part in text.split(","):
        matches = sorted(glob.glob(part)) if glob.has_magic(part) else [part]
        if not part or not matches:
            raise UserError(f"{side}: {text}: {'names nothing' if part else 'has an empty part'}")
        paths += map(Path, matches)
    return paths


def _in_directory(directory: Path) -> Path | None:
    return next((directory / name for name in _NAMES if (directory / name).is_file()), None)


def _verify(path: Path) -> dict[str, str]:
    """The hashes of a manifest beside the file; empty if there is none: such files are read as they are.

    Raises:
        UserError: the manifest speaks of other bytes.
    """
    manifest = path.parent / "manifest.json"
    if path.name not in _NAMES or not manifest.is_file():
        return {}
    outputs = verify_outputs(manifest, path.stem).outputs
    return {(path.parent / name).as_posix(): digest for name, digest in outputs.items()}


def _recorded_problems(samples: Path) -> list[Path]:
    """The problems that the samples' manifest names; its paths start where the study was run, a directory above."""
    manifest = samples.parent / "manifest.json"
    if not manifest.is_file():
        return []
    names = [Path(name) for name in read_manifest(manifest, "samples").inputs if Path(name).name == "problems.jsonl"]
    places = (top / name for name in names for top in (Path(), *samples.absolute().parents))
    return [place for place in places if place.is_file()][:1]


def _kind_of(problems: Path) -> Kind:
    rows = read_jsonl(problems)
    if any("tests_sha256" in row for row in rows):
        raise UserError(f"{problems}: is of programs; run them first: rlvr-bench stage grade --kind code")
    return Kind.CHOICE if any("options" in row for row in rows) else Kind.COMPLETION
