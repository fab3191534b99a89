"""The grader of evaluation and of rewards.

Answers that text alone decides never leave the calling process; worker processes are started by the first one that
needs algebra. A worker that is killed, or an exception, costs the verdict of its case and of no other one.
"""

from __future__ import annotations

import math
import os
import time
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from evals.core.errors import UserError
from evals.grading.comparison import compare, decide_quantities
from evals.grading.exact import canonical_integer, decide
from evals.grading.extraction import extract_answer, extract_gold
from evals.grading.normalisation import is_readable, normalise
from evals.grading.remarks import letters
from evals.grading.verdict import Case, Kind, Outcome, Reason, Verdict

if TYPE_CHECKING:
    from evals.grading.code.verifier import Verifier
    from evals.grading.workers import WorkerProcesses

DEFAULT_TIME_LIMIT = 5.0
DEFAULT_MEMORY_LIMIT = 2 * 1024**3
MIN_MEMORY_LIMIT = 512 * 1024**2

_REMEMBERED = 50_000
_SETTLED = frozenset({Reason.MATCH, Reason.MISMATCH, Reason.UNPARSABLE})


class GradingPool(AbstractContextManager["GradingPool"]):
    """Grades cases, in order, whatever they contain.

    Use it as a context manager, and keep it as long as there is something to grade: equal comparisons are made once.
    """

    def __init__(
        self,
        workers: int | None = None,  # processes for algebra; None for one per available core
        time_limit: float = DEFAULT_TIME_LIMIT,  # seconds of processor time that one comparison may take
        memory_limit: float = DEFAULT_MEMORY_LIMIT,  # bytes of address space of one worker
        verifier: Path | None = None,  # a user's own function that grades instead; cases then need their problem
    ) -> None:
        self.workers = len(os.sched_getaffinity(0)) if workers is None else workers
        self.time_limit = time_limit
        if self.workers < 1:
            raise UserError(f"workers: {workers} is not a number of processes; accepted: 1 or more")
        if not (math.isfinite(time_limit) and time_limit > 0):
            raise UserError(f"time limit: {time_limit} is not a number of seconds; accepted: more than 0")
        if not MIN_MEMORY_LIMIT <= memory_limit < math.inf:
            raise UserError(f"memory limit: {memory_limit} is no number of bytes; accepted: {MIN_MEMORY_LIMIT} or more")
        self.memory_limit = int(memory_limit)
        self._processes: WorkerProcesses | None = None
        self.verifier = verifier
        self._verifier: Verifier | None = None
        if verifier is not None:
            from evals.grading.code.verifier import Verifier  # here, as few need one

            self._verifier = Verifier(verifier, self.workers, time_limit, self.memory_limit)
        self._known: OrderedDict[tuple[str, str], Reason] = OrderedDict()

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the worker processes; a closed pool may be used again, and starts new ones if it needs them."""
        if self._verifier is not None:
            self._verifier.close()
        if self._processes is not None:
            self._processes.close()
            self._processes = None

    def grade(self, cases: Iterable[Case]) -> list[Verdict]:
        """Grade cases: one verdict per case, in the same order."""
        if self._verifier is not None:
            return self._verifier.grade(cases)
        examined = [examine(case) for case in cases]
        asked = dict.fromkeys((item.answer, item.gold) for item in examined if isinstance(item, Undecided))
        outcomes: dict[tuple[str, str], Outcome] = {}
        if missing := [pair for pair in asked if pair not in self._known]:
            if self._processes is None:
                from evals.grading.workers import WorkerProcesses  # here: multiprocessing costs more than all the rest

                self._processes = WorkerProcesses(self.workers, self.time_limit, self.memory_limit)
            outcomes = self._processes.compare(missing)
        verdicts: list[Verdict] = []
        for item in examined:
            if isinstance(item, Verdict):
                verdicts.append(item)
                continue
            pair = (item.answer, item.gold)
            reason, seconds, error = outcomes.get(pair) or Outcome(self._known[pair], 0.0)
            verdicts.append(Verdict.of(item.extracted, reason, item.seconds + seconds, error))
            if pair in outcomes:
                outcomes[pair] = Outcome(reason, 0.0, error)  # the time is charged to the first case that asked
        self._known.update((pair, outcome.reason) for pair, outcome in outcomes.items() if outcome.reason in _SETTLED)
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return verdicts


class Undecided(NamedTuple):
    """A comparison that needs algebra: both sides normalised, and what has been spent on it so far."""

    extracted: str
    answer: str
    gold: str
    seconds: float


def examine(case: Case) -> Verdict | Undecided:
    """Grade a case as far as text allows. Nothing here evaluates anything: the text's length bounds the time."""
    start = time.perf_counter()
    try:
        answer, decision = _decide(case)
    except Exception as error:
        return Verdict.of(None, *Outcome.of_exception(error, time.perf_counter() - start))
    seconds = time.perf_counter() - start
    if isinstance(decision, tuple):
        return Undecided(answer or "", *decision, seconds)
    return Verdict.of(answer, decision, seconds)


def _decide(case: Case) -> tuple[str | None, Reason | tuple[str, str]]:
    """The answer of a case, and the reason of its verdict or the two sides that algebra has to compare."""
    answer, gold = extract_answer(case.prediction, case.kind, case.truncated, case.in_thinking), extract_gold(case.gold)
    found = None if isinstance(answer, Reason) else answer
    equal: bool | None
    if not gold.strip():
        return found, Reason.INVALID_GOLD
    if isinstance(answer, Reason):
        return found, answer
    if case.kind is Kind.CHOICE:
        from evals.grading.multiple_choice import gold_letter  # as in extraction

        letter = gold_letter(gold)
        if letter is None:
            return answer, Reason.INVALID_GOLD
        equal = answer == letter
    elif (
        case.kind is Kind.ANSWER  # the whole text, words included: ``odd $n$``
        and is_readable(case.prediction)
        and is_readable(case.gold)
        and decide(normalise(case.prediction), normalise(case.gold))
    ):
        return case.prediction, Reason.MATCH
    elif (integer := canonical_integer(answer)) and (reference := canonical_integer(gold)):
        equal = integer == reference  # most answers, and any number of digits: before all else
    elif not is_readable(answer):
        return answer, Reason.MATCH if answer.strip() == gold.strip() else Reason.UNPARSABLE
    elif not is_readable(gold):
        return answer, Reason.INVALID_GOLD
    elif (equal := decide_quantities(answer, gold)) is None:
        theirs = normalise(gold)
        ours = normalise(answer, letters(theirs))
        equal = compare(ours, theirs, decide)
        if equal is None:
            return answer, (ours, theirs)
    return answer, Reason.MATCH if equal else Reason.MISMATCH
