"""Grading of a policy's samples on all its benchmarks, each with the audit of its verdicts."""

import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from evals.audit.run import SecondGrader, write_audit
from evals.core.single_writer import single_writer
from evals.grading.grade_file import grade_file
from evals.grading.pool import GradingPool
from evals.grading.verdict import VERIFIER, Reason


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
            reasons = grade_file(samples / "samples.jsonl", of_benchmark, grades, pools[verifier], kind)
            write_audit(samples, grades, of_benchmark, grades / "audit.json", second, audited)
            counts = ", ".join(f"{reason.value} {reasons[reason]}" for reason in Reason if reasons[reason])
            print(f"{grades}: {reasons.total()} samples graded: {counts or 'none'}", file=sys.stderr)
