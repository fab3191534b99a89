"""Grading of a policy's samples on all its benchmarks, with an audit of the verdicts.

The audit of a benchmark says what could not be judged, and where a second grader disagrees.
"""

import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from itertools import compress, islice
from pathlib import Path

from evals.audit import VERSION, second_grader
from evals.audit.second_grader import judge_choice, judge_text
from evals.core.errors import InvalidInput, UserError
from evals.core.files import located, sha256_bytes, write_json
from evals.core.manifest import verify_outputs, write_output_manifest, write_policy_manifest
from evals.core.record import read_rows, scan_rows
from evals.core.records import Audit, BenchmarkAudit, Disagreement, Grade, GraderName, Sample, SecondOpinion, rows_in
from evals.grading.grade_file import GradedSamples, grade_file, read_golds
from evals.grading.pool import DEFAULT_MEMORY_LIMIT, DEFAULT_TIME_LIMIT, GradingPool
from evals.grading.verdict import CODE, VERIFIER, Kind, Reason
from evals.grading.workers import Judge, WorkerProcesses


def grade_policy(
    run: str,
    kinds: Mapping[str, str],
    verifiers: Mapping[str, str],
    workers: int,
    audited: float,
    out: Path,
    problems: Path = Path("results/problems"),
) -> None:
    """Grade and audit the samples of a policy beside ``out``, a benchmark after the other, into ``out``/RUN/BENCHMARK.

    Args:
        run: the policy's run id.
        kinds: benchmark -> the form in which its responses are read (:class:`evals.grading.verdict.Kind`).
        verifiers: benchmark -> the study's copy of a user's function that grades it.
        workers: processes that grade.
        audited: share of the samples with plain answers that the second grader is asked about.
        problems: where the benchmarks' problems lie.
    """
    from evals.core.single_writer import single_writer  # here: `audit` of files runs without what a study needs

    with ExitStack() as held:
        held.enter_context(single_writer(out / run / ".writer", "grades into this directory"))
        second = held.enter_context(SecondGrader(workers))
        pools: dict[str | None, GradingPool] = {}
        for name, kind in kinds.items():
            samples, of_benchmark = out.parent / "samples" / run / name, problems / name / "problems.jsonl"
            verifier = verifiers[name] if kind == VERIFIER else None
            if verifier not in pools:
                pools[verifier] = held.enter_context(
                    GradingPool(workers, verifier=None if verifier is None else Path(verifier))
                )
            grades = out / run / name
            reasons = grade_file(rows_in(samples, "samples"), of_benchmark, grades, pools[verifier], kind)
            write_audit(samples, grades, of_benchmark, grades / "audit.json", second, audited)
            counts = ", ".join(f"{reason.value} {reasons[reason]}" for reason in Reason if reasons[reason])
            print(f"{grades}: {reasons.total()} samples graded: {counts or 'none'}", file=sys.stderr)
        of_benchmarks = [out / run / name / file for name in kinds for file in ("manifest.json", "audit.manifest.json")]
        write_policy_manifest("policy_grades", out / run, of_benchmarks)


DISAGREEMENTS_LISTED = 20
_TEXTS_AT_A_TIME = 1000

_FAILED = (Reason.TIMEOUT, Reason.MEMORY, Reason.WORKER_DIED, Reason.INVALID_GOLD)
"""Reasons of the second grader that are no opinion."""
_WITHOUT_ANSWER = (Reason.NO_ANSWER, Reason.TRUNCATED)
_PLAIN_ANSWER = re.compile(r"-?\d[\d,.]*|\(?[A-Za-z]\)?")  # a number or a letter
_OTHER_FAILURES = (Reason.MEMORY, Reason.WORKER_DIED, Reason.INVALID_GOLD, Reason.VERIFIER_FAILED, Reason.UNANSWERED)


class SecondGrader(ExitStack[None]):
    """Asks math-verify, in processes that can be killed, about each different pair of text and gold once."""

    def __init__(self, workers: int) -> None:
        super().__init__()
        self._workers = workers
        self._known: dict[str, Reason] = {}
        self._processes: dict[Judge, WorkerProcesses] = {}

    def opinions(self, kind: Kind, pairs: Sequence[tuple[str, str]]) -> list[Reason]:
        """One reason per (text, gold), in order."""
        judge: Judge = judge_choice if kind is Kind.CHOICE else judge_text
        keys = [f"{judge.__name__} {_digest(pair)}" for pair in pairs]
        if missing := {pair: key for key, pair in zip(keys, pairs, strict=True) if key not in self._known}:
            if judge not in self._processes:
                processes = WorkerProcesses(self._workers, DEFAULT_TIME_LIMIT, DEFAULT_MEMORY_LIMIT, judge)
                self._processes[judge] = self.enter_context(closing(processes))
            outcomes = self._processes[judge].compare(list(missing))
            self._known |= {key: outcomes[pair][0] for pair, key in missing.items()}
        return [self._known[key] for key in keys]


def write_audit(
    samples: Path, grades: Path, problems: Path, out: Path, second: SecondGrader, share: float = 1.0
) -> None:
    """Measure how far the grades of a policy on a benchmark can be trusted (docs/grading.md).

    Args:
        samples, grades: directories of one run and benchmark.
        share: as of :func:`audit_run`.

    Raises:
        UserError: an input is missing, changed or malformed, or the output cannot be written.
    """
    graded = _read_graded_samples(samples, grades, problems)
    audit = audit_run(graded, second, share)
    grader = GraderName(name=second_grader.NAME, version=second_grader.VERSION)
    content = BenchmarkAudit(
        benchmark=graded.benchmark,
        extraction="last_statement" if graded.kind == Kind.LAST_STATEMENT else None,
        second_grader=grader,
        audit=audit,
    )
    write_json(out, content.to_json())
    parameters = {"benchmark": graded.benchmark, "second_grader": grader.to_json(), "share": share, "version": VERSION}
    inputs = [problems, rows_in(samples, "samples"), rows_in(grades, "grades")]
    write_output_manifest("audit", out.with_suffix(""), [out.suffix], inputs, parameters, {"samples": audit.samples})


def _read_graded_samples(samples: Path, grades: Path, problems: Path) -> GradedSamples:
    """Read both directories of one run; UserError if the grades are not of these samples, or not as written."""
    samples_file, grades_file = rows_in(samples, "samples"), rows_in(grades, "grades")
    digest = verify_outputs(samples / "manifest.json", "samples").outputs.get(samples_file.name)
    judged = verify_outputs(grades / "manifest.json", "grades")
    if digest is None or digest not in judged.inputs.values():
        raise UserError(f"{grades_file}: are not the grades of {samples_file}; grade it again")
    verdicts = read_rows(grades_file, Grade)
    sampled = [(row.problem_id, row.sample) for row in scan_rows(samples_file, Sample)]
    if sampled != [(row.problem_id, row.sample) for row in verdicts]:
        raise UserError(f"{grades_file}: has not the samples of {samples_file} in their order; grade it again")
    kind = judged.parameters.get("kind", Kind.COMPLETION.value)
    accepted = (*(known.value for known in Kind), CODE, VERIFIER)
    if kind not in accepted:
        raise InvalidInput(str(grades / "manifest.json"), "", f"kind is {kind!r}", ", ".join(accepted))
    directory = located(grades)
    read = partial(scan_rows, samples_file, Sample)
    return GradedSamples(directory.parent.name, directory.name, kind, read, verdicts, read_golds(problems))


def audit_run(graded: GradedSamples, second: SecondGrader, share: float = 1.0) -> Audit:
    """Audit one run: failures are counted from its grades, and the second grader is asked about its texts.

    Of the texts that are easy to grade (:func:`_is_easy`) it is asked about a ``share``, which hashes of text and right
    answer draw: the same ones in every repetition. It is not asked about texts that were withheld, nor about
    programs and what a verifier graded. UserError if a sample is of an unknown problem.
    """
    if unknown := [row.problem_id for row in graded.grades if row.problem_id not in graded.golds]:
        raise UserError(f"{graded.run} on {graded.benchmark}: problem {unknown[0]} is not among the problems")
    no_second_because, opinion = None, None
    if any(row.text_sha256 is not None for row in graded.samples()):
        no_second_because = "withheld"
    elif graded.kind in (CODE, VERIFIER):
        no_second_because = graded.kind
    else:
        opinions, asked, rows = list[Reason](), list[Grade](), zip(graded.samples(), graded.grades, strict=True)
        while batch := list(islice(rows, _TEXTS_AT_A_TIME)):
            pairs = [(sample.text, graded.golds[sample.problem_id]) for sample, _ in batch]
            places = [int(_digest(pair)[:8], 16) / 2**32 for pair in pairs]  # in [0, 1), the same ones each time
            drawn = [not _is_easy(row) or place < share for place, (_, row) in zip(places, batch, strict=True)]
            opinions += second.opinions(Kind(graded.kind), list(compress(pairs, drawn)))
            asked += compress([row for _, row in batch], drawn)
        opinion = _opinion(asked, opinions, share)
    reasons, ends = Counter(row.reason for row in graded.grades), [row.finish_reason for row in graded.grades]
    return Audit(
        run=graded.run,
        samples=len(graded.grades),
        correct=sum(row.correct for row in graded.grades),
        truncated=None if None in ends else ends.count("length"),
        no_answer=sum(row.answer is None for row in graded.grades),
        timeouts=reasons[Reason.TIMEOUT],
        unparsable=reasons[Reason.UNPARSABLE],
        other_failures=sum(reasons[reason] for reason in _OTHER_FAILURES),
        no_second_because=no_second_because,
        second=opinion,
    )


def _is_easy(row: Grade) -> bool:
    """Return whether a number or a letter was graded, or nothing that could be one."""
    if row.reason in (Reason.MATCH, Reason.MISMATCH):
        return row.answer is not None and _PLAIN_ANSWER.fullmatch(row.answer) is not None
    return row.reason in _WITHOUT_ANSWER


def _digest(pair: tuple[str, str]) -> str:
    return sha256_bytes("\0".join(pair).encode("utf-8", "replace"))


def _opinion(grades: Sequence[Grade], opinions: Sequence[Reason], share: float) -> SecondOpinion:
    """The verdicts of the second grader, where it has one, beside ours."""
    both = [(row, reason) for row, reason in zip(grades, opinions, strict=True) if reason not in _FAILED]
    apart = [(row, reason) for row, reason in both if row.correct != (reason is Reason.MATCH)]
    only_ours = sum(row.correct for row, _ in apart)
    listed = tuple(
        Disagreement(problem_id=row.problem_id, sample=row.sample, ours=row.reason, second=reason.value)
        for row, reason in apart[:DISAGREEMENTS_LISTED]
    )
    return SecondOpinion(
        compared=len(both),
        failed=len(grades) - len(both),
        only_ours=only_ours,
        only_second=len(apart) - only_ours,
        disagreements=listed,
        share=share,
    )
