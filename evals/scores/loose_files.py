"""Grades, samples and other tools' logs under any path that a person types; what has no grades is graded on the way."""

import glob
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from evals.core.errors import UserError, printable
from evals.core.files import located, parse_json, read_jsonl, read_lines, unpacked
from evals.core.manifest import read_manifest, verify_outputs
from evals.core.record import read_rows, scan_rows
from evals.core.records import Gold, Grade, Sample
from evals.grading.grade_file import GradedSamples, judge_samples, read_golds, scan_samples
from evals.grading.pool import GradingPool
from evals.grading.verdict import Kind
from evals.logs.formats import IN_DIRECTORIES, logs_in, read_logs
from evals.logs.response import Judging, Log, golds_of, samples_of
from evals.scores.score import GradedRun, ProblemId, grades_by_problem

_SAMPLES = ("samples.jsonl.bz2", "samples.jsonl")
_NAMES = ("grades.jsonl.bz2", "grades.jsonl", *_SAMPLES)


@dataclass(frozen=True)
class Reader:
    """Reads grades, and grades samples."""

    problems: Sequence[Path]  # for samples; those that a samples' manifest names are found by themselves
    kind: Kind | None  # how samples are read; None: choices if their problems have options, else completions
    workers: int  # processes that grade
    judging: Judging = field(default_factory=Judging)  # of other tools' logs
    columns: Mapping[str, str] = field(default_factory=dict)  # part of a response -> column, to read any tables
    require_all: bool = False  # a problem without a response is an error, and no warning

    def read(self, paths: Sequence[Path]) -> list[GradedRun]:
        """Read files of grades or samples: those named, and of a directory the ones in it or one level below.

        Where a directory has both, the grades are meant. A file ``{run}/{benchmark}/grades.jsonl.bz2`` gives the names
        of run and benchmark; any other file is a run by its own name. Other tools' logs name their run and benchmark.
        """
        with GradingPool(self.workers) as pool:
            return [run for path in find_files(paths) for run in self._read(path, pool)]

    def read_samples(self, paths: Sequence[Path]) -> Iterator[GradedSamples]:
        """Read and grade files of samples, found as those of :meth:`read`, one at a time."""
        with GradingPool(self.workers) as pool:
            for path in find_files(paths, _SAMPLES):
                if not self._is_ours(path):
                    for log in read_logs(path, self.columns):
                        golds, samples, grades = self._grade_log(log, pool)
                        yield GradedSamples(log.run, log.benchmark, self._kind, partial(iter, samples), grades, golds)
                    continue
                if "text" not in _first_row(path):
                    raise UserError(f"{path}: the first row has no text, as samples have")
                problems, kind, grades = self._grade(path, pool)
                run, benchmark = _names(path)
                read = partial(scan_rows, path, Sample)
                yield GradedSamples(run, benchmark, kind, read, grades, read_golds(problems))

    def _is_ours(self, path: Path) -> bool:
        """Return whether a file has rows of this project's grades or samples."""
        return not self.columns and not path.is_dir() and "problem_id" in _first_row(path)

    @property
    def _kind(self) -> Kind:
        return self.kind or Kind.COMPLETION

    def _read(self, path: Path, pool: GradingPool) -> list[GradedRun]:
        if not self._is_ours(path):
            return [self._read_log(log, pool) for log in read_logs(path, self.columns)]
        hashes, kind = dict[str, str](), None
        if path.name in _NAMES and (path.parent / "manifest.json").is_file():  # others are read as they are
            manifest = verify_outputs(path.parent / "manifest.json", unpacked(path).stem)
            kind = manifest.parameters.get("kind")
            hashes = {(path.parent / name).as_posix(): digest for name, digest in manifest.outputs.items()}
        keys, problems = _first_row(path), self.problems
        if "correct" in keys:
            grades = read_rows(path, Grade)
        elif "text" in keys:
            problems_file, kind, grades = self._grade(path, pool)
            problems = [problems_file]
        else:
            raise UserError(f"{path}: the first row has neither correct, as grades have, nor text, as samples have")
        self._check_all(path, grades, problems)
        by_problem, by_statement = grades_by_problem(path, grades), kind == Kind.LAST_STATEMENT
        return [GradedRun(path, *_names(path), by_problem, hashes, by_statement)]

    def _read_log(self, log: Log, pool: GradingPool) -> GradedRun:
        graded_here = self.judging.grades_here(log)
        grades = self._grade_log(log, pool)[2] if graded_here else self.judging.grades(log)
        self._check_all(log.path, grades, self.problems)
        has_answers = all(grade.answer is not None or grade.reason not in ("match", "mismatch") for grade in grades)
        by_problem, stated = grades_by_problem(log.path, grades), graded_here and self.kind is Kind.LAST_STATEMENT
        return GradedRun(log.path, log.run, log.benchmark, by_problem, {}, stated, has_answers)

    def _grade_log(self, log: Log, pool: GradingPool) -> tuple[Mapping[ProblemId, str], list[Sample], list[Grade]]:
        samples, golds = samples_of(log), golds_of(log)
        if not golds:
            wanted = {sample.problem_id for sample in samples}
            problems = self._problems_with(wanted, log.path, self.problems, as_text=True)
            golds = {str(problem): gold for problem, gold in read_golds(problems).items()}
        rows, _ = judge_samples(samples, golds, pool, self._kind)
        return golds, samples, [Grade.parse(row, str(log.path)) for row in rows]

    def _grade(self, samples: Path, pool: GradingPool) -> tuple[Path, Kind, list[Grade]]:
        problems = self._problems_of(samples)
        kind, rows = self.kind, [] if self.kind else read_jsonl(problems)
        if any("tests_sha256" in row for row in rows):
            raise UserError(f"{problems}: is of programs, which only a study runs (docs/grading.md)")
        kind = kind or (Kind.CHOICE if any("options" in row for row in rows) else Kind.COMPLETION)
        golds = read_golds(problems)
        graded, _ = judge_samples(scan_samples(samples, problems, golds), golds, pool, kind)
        return problems, kind, [Grade.parse(row, str(samples)) for row in graded]

    def _check_all(self, path: Path, grades: Sequence[Grade], candidates: Sequence[Path]) -> None:
        """Say which problems of the file that has a run's problems have no response: they are in no score."""
        answered = {str(grade.problem_id) for grade in grades}
        for file in candidates:
            problems = [str(gold.id) for gold in read_rows(file, Gold)]
            if not answered <= set(problems):
                continue
            if missing := [problem for problem in problems if problem not in answered]:
                message = f"{path}: {len(missing)} of {len(problems)} problems have no response, such as {missing[0]}"
                if self.require_all:
                    raise UserError(message)
                warning = f"warning: {message}; they are in no score, and --require-all refuses them"
                print(printable(warning), file=sys.stderr)
            return

    def _problems_of(self, samples: Path) -> Path:
        """The first file that has all problems of a file of samples, of those given and the one its manifest names."""
        candidates, manifest = list(self.problems), samples.parent / "manifest.json"
        if manifest.is_file():
            # The manifest's paths start where the study was run, a directory above.
            inputs = map(Path, read_manifest(manifest, "samples").inputs)
            names = [name for name in inputs if name.name == "problems.jsonl"]
            places = (top / name for name in names for top in (Path(), *located(samples).parents))
            candidates += [problems_file for problems_file in places if problems_file.is_file()][:1]
        return self._problems_with({sample.problem_id for sample in scan_rows(samples, Sample)}, samples, candidates)

    def _problems_with(
        self, wanted: Set[ProblemId], samples: Path, candidates: Sequence[Path], as_text: bool = False
    ) -> Path:
        """The first of some files that has all problems of a file of samples, ``as_text`` where all ids are text."""
        for path in candidates:
            ids = (gold.id for gold in read_rows(path, Gold))
            if wanted <= {str(problem_id) if as_text else problem_id for problem_id in ids}:
                return path
        looked = ", ".join(map(str, candidates)) or "none is known"
        raise UserError(
            f"{samples}: has no grades, and no file of problems has all of its problems ({looked}); --problems"
        )


def _names(path: Path) -> tuple[str, str]:
    folder = located(path).parent
    return (folder.parent.name, folder.name) if path.name in _NAMES else (unpacked(path).stem, "–")


def find_files(paths: Sequence[Path], names: Sequence[str] = _NAMES) -> list[Path]:
    """Find the files of grades or samples that paths mean, as :meth:`Reader.read` says, with these ``names``."""
    readable: list[Path] = []
    for path in paths:
        if path.is_file():
            readable.append(path)
            continue
        if not path.is_dir():
            raise UserError(f"{path}: no such file or directory")
        files: list[Path] = []
        for directory in (path, *sorted(path.iterdir())):
            files += [directory / name for name in names if (directory / name).is_file()][:1]
        files = files or logs_in(path)
        if not files:
            looked = " or ".join((*names, *IN_DIRECTORIES))
            raise UserError(f"{path}: holds no {looked}, nor do the directories in it")
        readable += files
    return list(dict.fromkeys(readable))


def find_seeds(side: str, text: str) -> list[Path]:
    """The paths that an argument names: several separated by commas, or patterns; ``side`` is its name."""
    paths: list[Path] = []
    for part in text.split(","):
        matches = sorted(glob.glob(part)) if glob.has_magic(part) else [part]
        if not part or not matches:
            raise UserError(f"{side}: {text}: {'names nothing' if part else 'has an empty part'}")
        paths += map(Path, matches)
    return paths


def _first_row(path: Path) -> dict[str, Any]:
    """The first row of a file of JSONL; empty for a file that is none.

    A whole file need not be parsed to see what it is.
    """
    try:
        where, first = next(read_lines(path), (str(path), ""))
        row = parse_json(first, where)
    except UserError:
        return {}
    return row if isinstance(row, dict) else {}
