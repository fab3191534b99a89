"""The one object that grades, for evaluation and for rewards alike.

Answers that text alone decides never leave the calling process; worker processes are started by the first one that
needs algebra. A worker that runs out of time or memory, or is killed, costs the verdict of the case it was on; it is
replaced, and every other case is graded as if nothing had happened.
"""

from __future__ import annotations

import math
import os
from collections import OrderedDict
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING

from evals.core.errors import UserError
from evals.grading.examine import Undecided, examine
from evals.grading.verdict import Case, Reason, Verdict

if TYPE_CHECKING:
    from evals.grading.processes import WorkerProcesses

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
        time_limit: seconds of wall-clock time that one comparison may take.
        memory_limit: bytes of address space that one worker may have.

    Raises:
        UserError: a limit is out of range.
    """

    def __init__(
        self,
        workers: int | None = None,
        time_limit: float = DEFAULT_TIME_LIMIT,
        memory_limit: int = DEFAULT_MEMORY_LIMIT,
    ) -> None:
        self.workers = len(os.sched_getaffinity(0)) if workers is None else workers
        self.time_limit = time_limit
        self.memory_limit = memory_limit
        if self.workers < 1:
            raise UserError(f"workers: {workers} is not a number of processes; accepted: 1 or more")
        if not (math.isfinite(time_limit) and time_limit > 0):
            raise UserError(f"time limit: {time_limit} is not a number of seconds; accepted: more than 0")
        if memory_limit < MIN_MEMORY_LIMIT:
            raise UserError(f"memory limit: {memory_limit} bytes is too little; accepted: {MIN_MEMORY_LIMIT} or more")
        self._processes: WorkerProcesses | None = None
        self._known: OrderedDict[tuple[str, str], Reason] = OrderedDict()

    def __enter__(self) -> GradingPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop the worker processes; a closed pool may be used again, and starts new ones if it needs them."""
        if self._processes is not None:
            self._processes.close()
            self._processes = None

    def grade(self, cases: Iterable[Case]) -> list[Verdict]:
        """Grade cases.

        Returns:
            One verdict per case, in the same order.
        """
        examined = [examine(case) for case in cases]
        asked = {(item.answer, item.gold): None for item in examined if isinstance(item, Undecided)}
        outcomes = self._compare([pair for pair in asked if pair not in self._known])
        verdicts: list[Verdict] = []
        for item in examined:
            if isinstance(item, Verdict):
                verdicts.append(item)
                continue
            pair = (item.answer, item.gold)
            reason, seconds = outcomes.get(pair) or (self._known[pair], 0.0)
            verdicts.append(item.verdict(reason, seconds))
            if pair in outcomes:
                outcomes[pair] = (reason, 0.0)  # the time is charged to the first case that asked
        self._remember(outcomes)
        return verdicts

    def _compare(self, pairs: list[tuple[str, str]]) -> dict[tuple[str, str], tuple[Reason, float]]:
        if not pairs:
            return {}
        if self._processes is None:
            from evals.grading.processes import WorkerProcesses  # here: multiprocessing costs more than all the rest

            self._processes = WorkerProcesses(self.workers, self.time_limit, self.memory_limit)
        return self._processes.compare(pairs)

    def _remember(self, outcomes: dict[tuple[str, str], tuple[Reason, float]]) -> None:
        self._known.update((pair, reason) for pair, (reason, _) in outcomes.items() if reason in _SETTLED)
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
