"""The grading stage of a benchmark of programs: samples and tests in, a file of grades out.

``rlvr-bench stage grade --kind code --samples ... --problems ... --out results/grades/R/B``
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evals.core.errors import UserError
from evals.core.files import sha256_file
from evals.core.manifest import verify_outputs
from evals.grading.code import VERSION
from evals.grading.code.extraction import extract_program
from evals.grading.code.run import ALL_CASES_SECONDS, CANDIDATE, CASE, EXAMINER, run_tests
from evals.grading.code.sandbox import require_sandbox
from evals.grading.code.tests import TESTS_FILE, read_tests
from evals.grading.grade_file import check_origin, grade_row, read_samples, write_grades
from evals.grading.pool import MAX_ANSWER_KEPT
from evals.grading.verdict import CODE, Reason, Verdict


def grade_programs(samples: Path, problems: Path, out: Path, workers: int) -> Counter[Reason]:
    """Grade a file of samples by running each one's program against its problem's tests.

    Args:
        samples: ``samples.jsonl``, with its manifest beside it.
        problems: ``problems.jsonl``, with its manifest and ``tests.jsonl`` beside it.
        out: directory of ``grades.jsonl`` and ``manifest.json``.
        workers: programs that run at a time.

    Returns:
        How often each reason was given.

    Raises:
        UserError: no sandbox works here, or a file is missing, changed or malformed.
    """
    require_sandbox()
    problems_hash = sha256_file(problems)
    samples_hash = check_origin(samples, problems, problems_hash)
    tests_file = problems.parent / TESTS_FILE
    known = verify_outputs(problems.parent / "manifest.json", "problems").outputs
    if TESTS_FILE not in known:
        raise UserError(f"{problems.parent / 'manifest.json'}: does not list {TESTS_FILE}: no benchmark of programs")
    rows = read_samples(samples, problems)
    verdicts = _verdicts(rows, tests_file, workers)
    missing = next((row["problem_id"] for row, verdict in zip(rows, verdicts, strict=True) if verdict is None), None)
    if missing is not None:
        raise UserError(f"{tests_file}: has no tests of problem {missing!r}")
    judged = [verdict for verdict in verdicts if verdict is not None]
    inputs = {str(samples): samples_hash, str(problems): problems_hash, str(tests_file): known[TESTS_FILE]}
    limits = {"candidate": asdict(CANDIDATE), "examiner": asdict(EXAMINER), "case": asdict(CASE)}
    parameters = {"grader_version": VERSION, "kind": CODE, "limits": limits, "all_cases_seconds": ALL_CASES_SECONDS}
    graded = [grade_row(row, verdict) for row, verdict in zip(rows, judged, strict=True)]
    return write_grades(out, graded, judged, inputs, parameters)


def _verdicts(rows: Sequence[Mapping[str, Any]], tests_file: Path, workers: int) -> list[Verdict | None]:
    """One verdict per sample, in order; None where its problem has no tests. One problem's tests are held at a time."""
    places: dict[str, list[int]] = {}
    for place, row in enumerate(rows):
        places.setdefault(str(row["problem_id"]), []).append(place)
    verdicts: list[Verdict | None] = [None] * len(rows)
    with ThreadPoolExecutor(workers) as pool:
        for identifier, tests in read_tests(tests_file):
            mine = places.get(identifier, [])
            for place, verdict in zip(mine, _of_problem([rows[place] for place in mine], tests, pool), strict=True):
                verdicts[place] = verdict
    return verdicts


def _of_problem(rows: Sequence[Mapping[str, Any]], tests: Mapping[str, Any], pool: ThreadPoolExecutor) -> list[Verdict]:
    """Verdicts on one problem's samples; equal programs are run once."""
    found = [extract_program(row["text"], tests.get("entry_point"), row["finish_reason"] == "length") for row in rows]
    programs = list(dict.fromkeys(each.answer for each in found if each.answer is not None))
    outcomes = dict(zip(programs, pool.map(lambda program: _timed(program, tests), programs), strict=True))
    verdicts = []
    for each in found:
        if each.answer is None:
            verdicts.append(Verdict(False, None, each.reason or Reason.NO_ANSWER, 0.0))
            continue
        reason, seconds = outcomes[each.answer]
        outcomes[each.answer] = (reason, 0.0)  # the time is charged to the first sample that has this program
        verdicts.append(Verdict(reason is Reason.MATCH, _kept(each.answer), reason, seconds))
    return verdicts


def _timed(program: str, tests: Mapping[str, Any]) -> tuple[Reason, float]:
    start = time.perf_counter()
    return run_tests(program, tests), time.perf_counter() - start


def _kept(program: str) -> str:
    """Cut a program to the length that a grade holds, and make it writable as UTF-8."""
    return program.strip()[:MAX_ANSWER_KEPT].encode("utf-8", "replace").decode("utf-8")
