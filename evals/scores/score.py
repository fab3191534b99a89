"""The grades of a run and its score on one benchmark: grades in, ``results/scores/{benchmark}.json`` out."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from evals.core.errors import InvalidInput, UserError
from evals.core.files import located, read_json, write_json
from evals.core.manifest import verify_outputs, write_output_manifest
from evals.core.record import read_rows
from evals.core.records import BenchmarkScores, Grade, Score, read_runs, rows_in
from evals.grading.verdict import Kind, Reason
from evals.statistics import accuracy
from evals.statistics.interval import score_interval
from evals.statistics.suite import Clusters, cluster_values, label

CONFIDENCE = 0.95
G_PASS_THRESHOLDS = (0.5, 0.75, 1.0)

ProblemId = str | int

_REASONS = dict.fromkeys(reason.value for reason in Reason)


@dataclass(frozen=True)
class GradedRun:
    """The grades of one run on one benchmark, read from the file ``path``."""

    path: Path
    run: str
    benchmark: str
    grades: Mapping[ProblemId, Sequence[Grade]]  # of each problem, one a sample, as many for each; both in file order
    hashes: Mapping[str, str]  # path -> SHA-256 of every file that a manifest vouches for; empty without a manifest
    by_last_statement: bool = False  # whether the last statement of a response without a mark was its answer
    has_answers: bool = True  # whether the file says which answers the texts gave

    @property
    def samples(self) -> int:
        """Samples per problem, the same for all."""
        return len(next(iter(self.grades.values())))

    def rows(self, problem_ids: Sequence[ProblemId] | None = None) -> list[Sequence[Grade]]:
        """The grades of each problem, in the order of ``problem_ids`` or else ordered by problem id."""
        by_id = sorted(self.grades, key=lambda problem: (str(problem), isinstance(problem, str)))
        return [self.grades[problem] for problem in (by_id if problem_ids is None else problem_ids)]

    @property
    def counts(self) -> tuple[int, ...]:
        """Correct samples of each problem, ordered by problem id."""
        return tuple(sum(grade.correct for grade in row) for row in self.rows())


def read_graded_run(directory: Path) -> GradedRun:
    """Read ``results/grades/{run}/{benchmark}`` after checking it against its manifest."""
    path = rows_in(directory, "grades")
    manifest = verify_outputs(directory / "manifest.json", "grades")
    if path.name not in manifest.outputs:
        raise UserError(f"{directory / 'manifest.json'}: outputs: does not list {path.name}")
    hashes = {(directory / name).as_posix(): digest for name, digest in manifest.outputs.items()}
    folder = located(directory)
    grades = grades_by_problem(path, read_rows(path, Grade))
    stated = manifest.parameters.get("kind") == Kind.LAST_STATEMENT
    return GradedRun(path, folder.parent.name, folder.name, grades, hashes, stated)


def grades_by_problem(path: Path, grades: Sequence[Grade]) -> dict[ProblemId, list[Grade]]:
    """Group the grades of a file by problem, in file order; every problem has to have the same samples, each once.

    The ids 1 and "1" are two problems.
    """
    by_problem: dict[ProblemId, dict[int, Grade]] = {}
    for number, grade in enumerate(grades, start=1):
        samples = by_problem.setdefault(grade.problem_id, {})
        if grade.sample in samples:
            raise UserError(f"{path}: grade {number}: sample {grade.sample} of {grade.problem_id!r} occurs twice")
        if grade.reason not in _REASONS:
            raise InvalidInput(str(path), f"grade {number}", f"reason is {grade.reason!r}", ", ".join(_REASONS))
        samples[grade.sample] = grade
    if not by_problem:
        raise UserError(f"{path}: holds no grades")
    expected = max(map(len, by_problem.values()))
    for problem, samples in by_problem.items():
        missing = sorted(set(range(expected)) - set(samples))
        if missing:
            raise UserError(f"{path}: problem {problem!r} lacks sample {missing[0]} of 0..{expected - 1}")
    return {problem: list(samples.values()) for problem, samples in by_problem.items()}


def write_all_scores(
    benchmarks: Iterable[str], grades: Sequence[Path], runs: Path, out: Path, problems: Path = Path("results/problems")
) -> None:
    """Score every run on every benchmark, into a file of its name in ``out``; ``grades``: the runs' directories."""
    for name in benchmarks:
        of_runs, disjoint = [directory / name for directory in grades], problems / name / "disjoint.json"
        write_scores(name, of_runs, runs, out / f"{name}.json", disjoint)


def write_scores(benchmark: str, grades: Sequence[Path], runs: Path, out: Path, disjoint: Path | None = None) -> None:
    """Score every run on one benchmark; the grades of one run, and of the first, are in memory at a time.

    Args:
        disjoint: says which problems have one topic, or are near copies (:mod:`evals.problems.disjoint`).
    """
    known, scores = {run.run: run for run in read_runs(runs)}, dict[str, Score]()
    inputs, checked = ([runs, disjoint], read_json(disjoint)) if disjoint else ([runs], {})
    topics = checked.get("topics", {})
    groups = list(topics.values()) or checked.get("repeated", [])
    graded = map(read_graded_run, grades)
    for entry in chain([first := next(graded)], graded):
        about = f"{entry.path}: run {entry.run}"
        if entry.benchmark != benchmark:
            raise UserError(f"{entry.path.parent}: holds grades of {entry.benchmark}, not of {benchmark}")
        if entry.run not in known:
            raise UserError(f"{about} is not in {runs}, which lists {', '.join(known)}")
        if entry.run in scores:
            raise UserError(f"grades: run {entry.run} is given twice")
        if lacking := [problem for problem in first.grades if problem not in entry.grades]:
            raise UserError(f"{about} lacks {len(lacking)} problems that {first.run} has: {lacking[0]} ...")
        if extra := [problem for problem in entry.grades if problem not in first.grades]:
            raise UserError(f"{about} has {len(extra)} problems that {first.run} lacks: {extra[0]} ...")
        if entry.samples != first.samples:
            raise UserError(f"{about} has {entry.samples} samples per problem where {first.run} has {first.samples}")
        if entry.by_last_statement != first.by_last_statement:
            raise UserError(f"{about} has another extraction than {first.run}; grade both alike")
        rows, clusters = entry.rows(tuple(first.grades)), label(tuple(first.grades), groups)
        run, values = known[entry.run], measure(rows, CONFIDENCE, clusters)
        scores[run.run] = Score(**run.model_dump(exclude={"title"}), **values)
        inputs += map(Path, entry.hashes)
    content = BenchmarkScores(
        benchmark=benchmark,
        extraction="last_statement" if first.by_last_statement else None,
        samples_per_problem=first.samples,
        problem_ids=tuple(first.grades),
        clusters=tuple(map(tuple, groups)),
        by_topic=bool(topics),
        scores=tuple(scores.values()),
    )
    write_json(out, content.to_json())
    parameters = {"benchmark": benchmark, "confidence": CONFIDENCE}
    details = {"runs": len(scores), "problems": len(first.grades), "samples_per_problem": first.samples}
    write_output_manifest("scores", out.with_suffix(""), [out.suffix], inputs, parameters, details)


def measure(rows: Sequence[Sequence[Grade]], confidence: float, clusters: Clusters = None) -> dict[str, Any]:
    """Compute every number of a :class:`~evals.core.records.Score` from the grades of each problem, as many each."""
    grades = [grade for row in rows for grade in row]
    tokens = [grade.tokens for grade in grades if grade.tokens is not None]
    has_tokens, has_ends = len(tokens) == len(grades), all(grade.finish_reason is not None for grade in grades)
    samples = len(rows[0])
    counts = np.array([sum(grade.correct for grade in row) for row in rows])
    values = cluster_values(counts / samples, clusters)
    levels = [2**exponent for exponent in range(samples.bit_length())]  # 1, 2, 4 ... up to the number of samples
    return {
        "average_at_k": float(accuracy.average_at_k(counts, samples)),
        "standard_error": float(accuracy.clustered_standard_error(values)) if len(values) > 1 else None,
        "confidence_interval": score_interval(counts, samples, confidence, clusters) if len(values) > 1 else None,
        "sampling_standard_error": float(accuracy.sampling_standard_error(counts, samples)) if samples > 1 else None,
        "pass_at_k": {str(k): float(accuracy.pass_at_k(counts, samples, k)) for k in levels},
        "g_pass_at_k": {
            f"{threshold:g}": float(accuracy.g_pass_at_k(counts, samples, samples, threshold))
            for threshold in G_PASS_THRESHOLDS
        },
        "majority_at_k": majority_of(rows),
        "truncation_rate": _rate(grade.finish_reason == "length" for grade in grades) if has_ends else None,
        "no_answer_rate": _rate(grade.answer is None for grade in grades),
        "timeout_rate": _rate(grade.reason == "timeout" for grade in grades),
        "unparsable_rate": _rate(grade.reason == "unparsable" for grade in grades),
        "mean_tokens": float(np.mean(tokens)) if has_tokens else None,
        "total_tokens": sum(tokens) if has_tokens else None,
        "correct_counts": tuple(counts.tolist()),
    }


def majority_of(rows: Sequence[Sequence[Grade]], k: int | None = None) -> float:
    """maj@k of the grades of each problem; all samples vote if k is None."""
    votes = [[grade.answer for grade in row] for row in rows]
    return accuracy.majority_at_k(votes, [[grade.correct for grade in row] for row in rows], k)


def _rate(flags: Iterable[bool]) -> float:
    return float(np.mean(list(flags)))
