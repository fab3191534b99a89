"""The audit of one run's grades on one benchmark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evals.audit import second_grader
from evals.audit.second_grader import judge_choice, judge_text
from evals.core.errors import UserError
from evals.core.files import fingerprint, read_jsonl, sha256_bytes, sha256_file, write_json
from evals.core.manifest import Manifest, hash_files, verify_outputs
from evals.grading.grade_file import read_golds
from evals.grading.pool import DEFAULT_MEMORY_LIMIT, DEFAULT_TIME_LIMIT
from evals.grading.verdict import CODE, Kind, Reason
from evals.grading.workers import Judge, WorkerProcesses

DISAGREEMENTS_LISTED = 20

_GRADE_KEYS = ("problem_id", "sample", "correct", "answer", "reason", "finish_reason")
_FAILED = (Reason.TIMEOUT, Reason.MEMORY, Reason.WORKER_DIED, Reason.INVALID_GOLD)
"""Reasons of the second grader that are no opinion."""

Row = Mapping[str, Any]
Opinions = Callable[[Sequence[tuple[str, str]]], Sequence[Reason]]


@dataclass(frozen=True)
class GradedSamples:
    """One run's samples and grades, line by line of the same sample, with the hash of every file behind them.

    ``kind`` is None for programs, of which there is no second opinion.
    """

    run: str
    benchmark: str
    kind: Kind | None
    samples: Sequence[Row]
    grades: Sequence[Row]
    hashes: Mapping[str, str]


def read_graded_samples(samples: Path, grades: Path) -> GradedSamples:
    """Read the directories ``results/samples/{run}/{benchmark}`` and ``results/grades/{run}/{benchmark}``.

    Raises:
        UserError: a file is missing, changed or malformed, or the grades are not of these samples.
    """
    made = verify_outputs(samples / "manifest.json", "samples")
    judged = verify_outputs(grades / "manifest.json", "grades")
    samples_file, grades_file = samples / "samples.jsonl", grades / "grades.jsonl"
    digest = made.outputs.get("samples.jsonl")
    if digest is None or digest not in judged.inputs.values():
        raise UserError(f"{grades_file}: are not the grades of {samples_file}; grade it again")
    rows = read_jsonl(samples_file, ("problem_id", "sample", "text"))
    verdicts = read_jsonl(grades_file, _GRADE_KEYS)
    if [_name(row) for row in rows] != [_name(row) for row in verdicts]:
        raise UserError(f"{grades_file}: has not the samples of {samples_file} in their order; grade it again")
    kind = judged.parameters.get("kind", Kind.COMPLETION.value)
    accepted = (*(known.value for known in Kind), CODE)
    if kind not in accepted:
        raise UserError(f"{grades / 'manifest.json'}: kind is {kind!r}; accepted: {', '.join(accepted)}")
    where = grades.absolute()
    hashes = {samples_file.as_posix(): digest, grades_file.as_posix(): judged.outputs["grades.jsonl"]}
    read_as = None if kind == CODE else Kind(kind)
    return GradedSamples(where.parent.name, where.name, read_as, rows, verdicts, hashes)


def _name(row: Row) -> tuple[Any, Any]:
    return row["problem_id"], row["sample"]


class SecondGrader:
    """Asks math-verify, in processes that can be killed, about each different pair of text and gold once."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._known: dict[str, Reason] = {}
        self._processes: dict[Judge, WorkerProcesses] = {}

    def close(self) -> None:
        """Stop the processes."""
        for processes in self._processes.values():
            processes.close()
        self._processes.clear()

    def opinions(self, kind: Kind, pairs: Sequence[tuple[str, str]]) -> list[Reason]:
        """One reason per (text, gold), in order."""
        judge: Judge = judge_choice if kind is Kind.CHOICE else judge_text
        keys = [sha256_bytes(f"{judge.__name__}\0{gold}\0{text}".encode("utf-8", "replace")) for text, gold in pairs]
        missing = dict.fromkeys(pair for key, pair in zip(keys, pairs, strict=True) if key not in self._known)
        if missing:
            outcomes = self._started(judge).compare(list(missing))
            self._known |= {key: outcomes[pair][0] for key, pair in zip(keys, pairs, strict=True) if pair in outcomes}
        return [self._known[key] for key in keys]

    def _started(self, judge: Judge) -> WorkerProcesses:
        if judge not in self._processes:
            limits = (self._workers, DEFAULT_TIME_LIMIT, DEFAULT_MEMORY_LIMIT)
            self._processes[judge] = WorkerProcesses(*limits, judge)
        return self._processes[judge]


def audit_run(graded: GradedSamples, golds: Mapping[str, str], second: SecondGrader) -> dict[str, Any]:
    """The audit of one run (docs/architecture.md, ``audits/``).

    Rates of failure are counted from the grades alone. The second grader is asked about every sample's text, unless the
    texts were withheld.

    Raises:
        UserError: a sample is of an unknown problem.
    """
    reasons = Counter(str(row["reason"]) for row in graded.grades)
    counts = {
        "run": graded.run,
        "samples": len(graded.grades),
        "correct": sum(bool(row["correct"]) for row in graded.grades),
        "truncated": sum(row["finish_reason"] == "length" for row in graded.grades),
        "no_answer": sum(row["answer"] is None for row in graded.grades),
        "timeouts": reasons[Reason.TIMEOUT],
        "unparsable": reasons[Reason.UNPARSABLE],
        "other_failures": reasons[Reason.MEMORY] + reasons[Reason.WORKER_DIED] + reasons[Reason.INVALID_GOLD],
    }
    unknown = next((row["problem_id"] for row in graded.samples if row["problem_id"] not in golds), None)
    if unknown is not None:
        raise UserError(f"{graded.run} on {graded.benchmark}: problem {unknown} is not among the problems")
    if any("text_sha256" in row for row in graded.samples):
        return {**counts, "no_second_because": "withheld", "second": None}
    if graded.kind is None:
        return {**counts, "no_second_because": CODE, "second": None}
    pairs = [(row["text"], golds[row["problem_id"]]) for row in graded.samples]
    compared = _compared(graded.grades, second.opinions(graded.kind, pairs))
    return {**counts, "no_second_because": None, "second": compared}


def _compared(grades: Sequence[Row], opinions: Sequence[Reason]) -> dict[str, Any]:
    """Our verdicts beside the second grader's, where it has one."""
    both = [(row, reason) for row, reason in zip(grades, opinions, strict=True) if reason not in _FAILED]
    apart = [(row, reason) for row, reason in both if bool(row["correct"]) != (reason is Reason.MATCH)]
    return {
        "compared": len(both),
        "failed": len(grades) - len(both),
        "only_ours": sum(bool(row["correct"]) for row, _ in apart),
        "only_second": sum(not row["correct"] for row, _ in apart),
        "disagreements": [
            {"problem_id": row["problem_id"], "sample": row["sample"], "ours": row["reason"], "second": reason.value}
            for row, reason in apart[:DISAGREEMENTS_LISTED]
        ],
    }


def write_audit(
    benchmark: str, grades: Sequence[Path], samples: Sequence[Path], problems: Path, workers: int, out: Path
) -> None:
    """Write the audit of one benchmark, and a manifest beside it.

    Args:
        benchmark: its name.
        grades: directories of the grades of each run.
        samples: directories of their samples, in the same order.
        problems: problems.jsonl of the benchmark.
        workers: processes of the second grader.
        out: the JSON file.

    Raises:
        UserError: an input is missing, changed or malformed, or the output cannot be written.
    """
    if len(grades) != len(samples):
        raise UserError(f"--samples: are {len(samples)}; accepted: one for each of --grades, {len(grades)}")
    if workers < 1:
        raise UserError(f"--workers: is {workers}; accepted: 1 or more")
    golds = read_golds(problems)
    inputs = {problems.as_posix(): sha256_file(problems)}
    audits = []
    second = SecondGrader(workers)
    try:
        for sampled, graded_as in zip(samples, grades, strict=True):  # one run in memory at a time
            graded = read_graded_samples(sampled, graded_as)
            if graded.benchmark != benchmark:
                raise UserError(f"{graded_as}: holds grades of {graded.benchmark}, not of {benchmark}")
            inputs |= graded.hashes
            audits.append(audit_run(graded, golds, second))
    finally:
        second.close()
    grader = {"name": second_grader.NAME, "version": second_grader.VERSION}
    write_json(out, {"benchmark": benchmark, "second_grader": grader, "audits": audits})
    parameters = {"benchmark": benchmark, "second_grader": grader}
    Manifest(
        kind="audit",
        inputs=inputs,
        outputs=hash_files(out.parent, out),
        parameters=parameters,
        fingerprint=fingerprint({"kind": "audit", "parameters": parameters, "inputs": sorted(inputs.values())}),
        details={"runs": len(audits), "samples": sum(audit["samples"] for audit in audits)},
    ).write(out.with_suffix(".manifest.json"))
