"""The grader of evaluation and of rewards.

Answers that text alone decides never leave the calling process; worker processes are started by the first one that
needs algebra. A worker that runs out of time or memory, or is killed, costs the verdict of the case it was on; it is
replaced, and every other case is graded as if nothing had happened.
"""

from __future__ import annotations

import math
import os
import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from evals.core.errors import UserError
from evals.grading.comparison import compare
from evals.grading.exact import canonical_integer, decide
from evals.grading.extraction import extract_answer, extract_gold
from evals.grading.normalisation import is_readable, normalise
from evals.grading.quantities import decide_quantities
from evals.grading.remarks import letters
from evals.grading.verdict import Case, Kind, Reason, Verdict

if TYPE_CHECKING:
    from evals.grading.code.verifier import Verifier
    from evals.grading.workers import WorkerProcesses

DEFAULT_TIME_LIMIT = 5.0
DEFAULT_MEMORY_LIMIT = 2 * 1024**3
MIN_MEMORY_LIMIT = 512 * 1024**2

_REMEMBERED = 50_000
_SETTLED = frozenset({Reason.MATCH, Reason.MISMATCH, Reason.UNPARSABLE})


class GradingPool:
    """Grades cases, in order, whatever they contain.

    Use it as a context manager, keep it as long as there is something to grade, and call :meth:`grade` as often as you
    like: equal comparisons are made once.

    Args:
        workers: processes for algebra; None for one per available core.
        time_limit: seconds of processor time that one comparison may take; 20 times as many of wall-clock time.
        memory_limit: bytes of address space that one worker may have.
        verifier: a user's own function that grades instead, in as many sandboxes as there are workers, with these
            limits for one response; cases then need their ``problem``.
    """

    def __init__(
        self,
        workers: int | None = None,
        time_limit: float = DEFAULT_TIME_LIMIT,
        memory_limit: float = DEFAULT_MEMORY_LIMIT,
        verifier: Path | None = None,
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

    def __enter__(self) -> Self:
        return self

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
        missing = [pair for pair in asked if pair not in self._known]
        outcomes: dict[tuple[str, str], tuple[Reason, float]] = {}
        if missing:
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
            reason, seconds = outcomes.get(pair) or (self._known[pair], 0.0)
            verdicts.append(Verdict.of(item.extracted, reason, item.seconds + seconds))
            if pair in outcomes:
                outcomes[pair] = (reason, 0.0)  # the time is charged to the first case that asked
        self._known.update((pair, reason) for pair, (reason, _) in outcomes.items() if reason in _SETTLED)
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return verdicts


@dataclass(frozen=True, slots=True)
class Undecided:
    """A comparison that needs algebra: both sides normalised, and what has been spent on it so far."""

    extracted: str
    answer: str
    gold: str
    seconds: float


def examine(case: Case) -> Verdict | Undecided:
    """Grade a case as far as text allows. Nothing here evaluates anything: the text's length bounds the time."""
    start = time.perf_counter()
    answer, gold = extract_answer(case.prediction, case.kind, case.truncated, case.in_thinking), extract_gold(case.gold)
    outcome: Reason | bool
    if not gold.strip():
        outcome = Reason.INVALID_GOLD
    elif isinstance(answer, Reason):
        outcome = answer
    elif case.kind is Kind.CHOICE:
        from evals.grading.multiple_choice import gold_letter  # as in extraction

        letter = gold_letter(gold)
        outcome = Reason.INVALID_GOLD if letter is None else answer == letter
    elif case.kind is Kind.ANSWER and _is_verbatim(case):
        answer, outcome = case.prediction, True
    elif (integer := canonical_integer(answer)) and (reference := canonical_integer(gold)):
        outcome = integer == reference  # most answers, and any number of digits: before all else
    elif not is_readable(answer):
        outcome = answer.strip() == gold.strip() or Reason.UNPARSABLE
    elif not is_readable(gold):
        outcome = Reason.INVALID_GOLD
    elif (decision := decide_quantities(answer, gold)) is not None:
        outcome = decision
    else:
        theirs = normalise(gold)
        ours = normalise(answer, letters(theirs))
        decision = compare(ours, theirs, decide)
        if decision is None:
            return Undecided(answer, ours, theirs, time.perf_counter() - start)
        outcome = decision
    if isinstance(outcome, bool):
        outcome = Reason.MATCH if outcome else Reason.MISMATCH
    return Verdict.of(None if isinstance(answer, Reason) else answer, outcome, time.perf_counter() - start)


def _is_verbatim(case: Case) -> bool:
    """Return whether a prediction equals the whole gold text, words included (``odd $n$``)."""
    readable = is_readable(case.prediction) and is_readable(case.gold)
    return readable and decide(normalise(case.prediction), normalise(case.gold)) is True
