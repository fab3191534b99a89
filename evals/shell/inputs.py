"""Finding graded samples under the paths that a person types, and grading samples that have no grades yet."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evals.core.errors import UserError
from evals.core.files import read_jsonl
from evals.core.manifest import read_manifest, verify_outputs
from evals.core.record import read_rows
from evals.core.records import Grade
from evals.grading.grade_file import SAMPLE_KEYS, grade_samples
from evals.grading.pool import GradingPool
from evals.grading.verdict import Kind
from evals.scores.grades import grades_by_problem

_NAMES = ("grades.jsonl", "samples.jsonl")


@dataclass(frozen=True)
class Answers:
    """One file's graded samples.

    Attributes:
        path: of the file.
        run: whose they are, by the file's place (``{run}/{benchmark}/grades.jsonl``), or the file's own name.
        benchmark: likewise, or a dash.
        grades: problem id -> its samples' grades.
        samples: samples per problem.
        verified: whether a manifest beside the file vouches for its bytes.
    """

    path: Path
    run: str
    benchmark: str
    grades: Mapping[str, Sequence[Grade]]
    samples: int
    verified: bool

    @property
    def rows(self) -> list[Sequence[Grade]]:
        """The grades of each problem, ordered by problem id."""
        return [self.grades[problem] for problem in sorted(self.grades)]

    @property
    def counts(self) -> tuple[int, ...]:
        """Correct samples of each problem, in that order."""
        return tuple(sum(grade.correct for grade in row) for row in self.rows)


def find_files(paths: Sequence[Path]) -> list[Path]:
    """Files of grades or samples: those named, and of a directory the ones in it or one level below.

    Where a directory has both, the grades are meant.

    Raises:
        UserError: a path does not exist, or a directory holds neither.
    """
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


def _in_directory(directory: Path) -> Path | None:
    return next((directory / name for name in _NAMES if (directory / name).is_file()), None)


def read_answers(files: Sequence[Path], problems: Sequence[Path], kind: Kind | None, workers: int) -> list[Answers]:
    """Read grades; grade samples.

    Args:
        files: from :func:`find_files`.
        problems: files of problems, for samples; those that a samples' manifest names are found by themselves.
        kind: how samples are to be read; None: choices if their problems have options, else completions.
        workers: processes that grade.

    Raises:
        UserError: a file is malformed or not what its manifest says, or no file has the problems of a file of samples.
    """
    with contextlib.ExitStack() as stack:
        pool: GradingPool | None = None
        answers = []
        for path in files:
            verified = _verify(path)
            rows: Sequence[Mapping[str, Any]] = read_jsonl(path, ("problem_id", "sample"))
            if not rows:
                raise UserError(f"{path}: is empty")
            if "correct" in rows[0]:
                grades = read_rows(path, Grade)
            elif "text" in rows[0]:
                golds = _problems_of(path, {str(row["problem_id"]) for row in read_jsonl(path, SAMPLE_KEYS)}, problems)
                pool = pool or stack.enter_context(GradingPool(workers))
                rows, _ = grade_samples(path, golds, pool, kind or _kind_of(golds))
                grades = [Grade.parse(row, str(path)) for row in rows]
            else:
                raise UserError(f"{path}: line 1 has neither correct, as grades have, nor text, as samples have")
            by_problem, samples = grades_by_problem(path, grades)
            standard = path.name in _NAMES
            place = path.absolute().parent
            answers.append(
                Answers(
                    path,
                    place.parent.name if standard else path.stem,
                    place.name if standard else "–",
                    by_problem,
                    samples,
                    verified,
                )
            )
    return answers


def _verify(path: Path) -> bool:
    """Whether a manifest beside the file vouches for it; files without one are read as they are.

    Raises:
        UserError: the manifest speaks of other bytes.
    """
    manifest = path.parent / "manifest.json"
    if path.name not in _NAMES or not manifest.is_file():
        return False
    verify_outputs(manifest, path.stem)
    return True


def _problems_of(samples: Path, wanted: set[str], given: Sequence[Path]) -> Path:
    """The file of problems that has all problems of a file of samples."""
    candidates = [*given, *_recorded_problems(samples)]
    for path in candidates:
        if wanted <= {str(row["id"]) for row in read_jsonl(path, ("id", "answer"))}:
            return path
    looked = ", ".join(map(str, candidates)) or "none is known"
    raise UserError(f"{samples}: has no grades, and no file of problems has all of its problems ({looked}); --problems")


def _recorded_problems(samples: Path) -> list[Path]:
    """The problems that the samples' manifest names; its paths start where the study was run, a directory above."""
    manifest = samples.parent / "manifest.json"
    if not manifest.is_file():
        return []
    names = [Path(name) for name in read_manifest(manifest, "samples").inputs if Path(name).name == "problems.jsonl"]
    return [
        top / name
        for name in names
        for top in (Path(), *samples.absolute().parents)
        if (top / name).is_file()
    ][:1]  # fmt: skip


def _kind_of(problems: Path) -> Kind:
    rows = read_jsonl(problems)
    if any("tests_sha256" in row for row in rows):
        raise UserError(f"{problems}: is of programs; run them first: rlvr-bench stage grade --kind code")
    return Kind.CHOICE if any("options" in row for row in rows) else Kind.COMPLETION
