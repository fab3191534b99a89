"""Grades and samples under any path that a person types; samples without grades are graded on the way."""

import glob
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from evals.core.errors import UserError
from evals.core.files import read_jsonl
from evals.core.manifest import read_manifest, verify_outputs
from evals.core.record import read_rows
from evals.core.records import Gold, Grade, Sample
from evals.grading.grade_file import grade_samples
from evals.grading.pool import GradingPool
from evals.grading.verdict import Kind
from evals.scores.score import GradedRun, grades_by_problem

_NAMES = ("grades.jsonl", "samples.jsonl")


@dataclass(frozen=True)
class Reader:
    """Reads grades, and grades samples."""

    problems: Sequence[Path]  # for samples; those that a samples' manifest names are found by themselves
    kind: Kind | None  # how samples are read; None: choices if their problems have options, else completions
    workers: int  # processes that grade

    def read(self, paths: Sequence[Path]) -> list[GradedRun]:
        """Read files of grades or samples: those named, and of a directory the ones in it or one level below.

        Where a directory has both, the grades are meant. A file ``{run}/{benchmark}/grades.jsonl`` gives the names of
        run and benchmark; any other file is a run by its own name.
        """
        with GradingPool(self.workers) as pool:
            return [self._read(path, pool) for path in find_files(paths)]

    def _read(self, path: Path, pool: GradingPool) -> GradedRun:
        place, is_standard = path.absolute().parent, path.name in _NAMES
        run, benchmark = (place.parent.name, place.name) if is_standard else (path.stem, "–")
        hashes: dict[str, str] = {}
        if is_standard and (path.parent / "manifest.json").is_file():  # others are read as they are
            outputs = verify_outputs(path.parent / "manifest.json", path.stem).outputs
            hashes = {(path.parent / name).as_posix(): digest for name, digest in outputs.items()}
        rows = read_jsonl(path)
        if not rows:
            raise UserError(f"{path}: is empty")
        if "correct" in rows[0]:
            grades = read_rows(path, Grade)
        elif "text" in rows[0]:
            problems = self._problems_of(path)
            graded, _ = grade_samples(path, problems, pool, self.kind or _kind_of(problems))
            grades = [Grade.parse(row, str(path)) for row in graded]
        else:
            raise UserError(f"{path}: line 1 has neither correct, as grades have, nor text, as samples have")
        return GradedRun(path, run, benchmark, grades_by_problem(path, grades), hashes)

    def _problems_of(self, samples: Path) -> Path:
        """The first file that has all problems of a file of samples, of those given and the one its manifest names."""
        candidates, manifest = list(self.problems), samples.parent / "manifest.json"
        if manifest.is_file():
            # The manifest's paths start where the study was run, a directory above.
            inputs = map(Path, read_manifest(manifest, "samples").inputs)
            names = [name for name in inputs if name.name == "problems.jsonl"]
            places = (top / name for name in names for top in (Path(), *samples.absolute().parents))
            candidates += [place for place in places if place.is_file()][:1]
        wanted = {str(sample.problem_id) for sample in read_rows(samples, Sample)}
        for path in candidates:
            if wanted <= {str(gold.id) for gold in read_rows(path, Gold)}:
                return path
        looked = ", ".join(map(str, candidates)) or "none is known"
        raise UserError(
            f"{samples}: has no grades, and no file of problems has all of its problems ({looked}); --problems"
        )


def find_files(paths: Sequence[Path]) -> list[Path]:
    """Find the files of grades or samples that paths mean, as :meth:`Reader.read` says."""
    found: list[Path] = []
    for path in paths:
        if path.is_file():
            found.append(path)
            continue
        if not path.is_dir():
            raise UserError(f"{path}: no such file or directory")
        files: list[Path] = []
        for directory in (path, *sorted(path.iterdir())):
            files += [directory / name for name in _NAMES if (directory / name).is_file()][:1]
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


def _kind_of(problems: Path) -> Kind:
    rows = read_jsonl(problems)
    if any("tests_sha256" in row for row in rows):
        raise UserError(f"{problems}: is of programs; run them first: rlvr-bench stage grade --kind code")
    return Kind.CHOICE if any("options" in row for row in rows) else Kind.COMPLETION
