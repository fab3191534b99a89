"""Worker processes that compare answers by algebra: killable, limited, replaced when they die.

Imported by the first comparison that needs one. The first half runs inside a worker, the second half outside.
"""

import logging
import math
import multiprocessing
import resource
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Future, wait
from dataclasses import dataclass, field
from typing import Any

from pebble import ProcessExpired, ProcessPool

from evals.core.errors import UserError
from evals.grading.verdict import WALL_CLOCK, Outcome, Reason

_BACKSTOP = 10  # seconds beyond the wall-clock limit after which a worker that nobody has stopped ends itself

_SYMPY_ERRORS = ArithmeticError, AttributeError, LookupError, NotImplementedError, RecursionError, TypeError, ValueError
"""The exceptions that SymPy raises where it cannot work an expression out."""

Pair = tuple[str, str]
Judge = Callable[[str, str, float], Outcome]

STARTUP_ALLOWANCE = 60.0  # seconds that a worker may take to come up before the pool counts as lost

_NO_WORKERS = (
    "grading: no worker process comes up (its own message stands above); needed: memory for it, and, in a script, the "
    'calls below `if __name__ == "__main__":`, for each worker imports the script'
)
_WINDOW = 32  # comparisons handed to the pool at a time, per worker
_PRELOADED = ["evals.grading.symbolic", "latex2sympy2_extended", "pebble.pool.process"]


def initialise(memory_limit: int) -> None:
    """Bound this process's address space to ``memory_limit`` bytes, and let it die at once."""
    # Pebble's handler runs between two bytecodes; a process deep in C code would ignore it for minutes
    for number in (signal.SIGTERM, signal.SIGALRM, signal.SIGPROF):
        signal.signal(number, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    from evals.grading import symbolic  # noqa: F401  (loaded before the limit, and never on a case's time)

    logging.getLogger("math_verify").setLevel(logging.ERROR)
    resource.setrlimit(resource.RLIMIT_AS, (memory_limit, memory_limit))


def judge(answer: str, gold: str, time_limit: float) -> Outcome:
    """Compare two normalised answers."""
    from evals.grading import symbolic

    return limited(lambda: symbolic.judge(answer, gold), time_limit)


def limited(compare: Callable[[], Reason], time_limit: float) -> Outcome:
    """Make one comparison, whatever it raises; its seconds are of processor time.

    The timer ends the process, whatever else runs on the machine; the alarm ends a worker whose owner has been killed.
    """
    signal.setitimer(signal.ITIMER_PROF, time_limit)
    signal.alarm(math.ceil(WALL_CLOCK * time_limit) + _BACKSTOP)
    start = time.process_time()
    try:
        return Outcome(compare(), time.process_time() - start)
    except _SYMPY_ERRORS:
        return Outcome(Reason.UNPARSABLE, time.process_time() - start)
    except Exception as error:
        return Outcome.of_exception(error, time.process_time() - start)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)


@dataclass
class WorkerProcesses:
    """Compares pairs of normalised answers in processes that may be killed at any moment."""

    workers: int
    time_limit: float  # seconds of processor time per comparison
    memory_limit: int  # bytes of address space per process
    judge: Judge = judge  # compares a pair; a function of a module, which each process imports
    _pool: ProcessPool | None = field(default=None, init=False)

    def close(self) -> None:
        """Kill the processes."""
        if self._pool is not None:
            self._pool.stop()
            self._pool.join()
            self._pool = None

    def compare(self, pairs: Sequence[Pair]) -> dict[Pair, Outcome]:
        """Compare each pair; a process that dies in mid-comparison costs that comparison.

        Where the pool as a whole breaks, a new one is asked for what is missing; if it breaks without having answered
        anything, one comparison at a time, so that the one at fault is the one to pay.
        """
        outcomes: dict[Pair, Outcome] = {}
        window = _WINDOW * self.workers
        while missing := [pair for pair in pairs if pair not in outcomes]:
            answered = len(outcomes)
            if self._ask(missing, outcomes, window):
                break
            self.close()
            if len(outcomes) == answered:
                if window == 1:
                    if not (outcomes or self._ask([("1", "1")], {}, 1)):  # not even two equal numbers can be compared
                        self.close()
                        raise UserError(_NO_WORKERS)
                    outcomes[missing[0]] = Outcome(Reason.WORKER_DIED, 0.0)
                window = 1
        return outcomes

    def _ask(self, pairs: Sequence[Pair], outcomes: dict[Pair, Outcome], window: int) -> bool:
        """Fill in ``outcomes``; False if the pool broke on the way."""
        remaining, wall_clock = iter(pairs), WALL_CLOCK * self.time_limit
        asked: dict[Future[Any], Pair] = {}
        try:
            while True:
                while len(asked) < window and (pair := next(remaining, None)) is not None:
                    arguments = [*pair, self.time_limit]
                    asked[self._started().schedule(self.judge, args=arguments, timeout=wall_clock)] = pair
                if not asked:
                    return True
                done, _ = wait(asked, timeout=wall_clock + STARTUP_ALLOWANCE, return_when=FIRST_COMPLETED)
                if not done:
                    return False
                for future in done:
                    pair = asked.pop(future)
                    try:
                        outcomes[pair] = future.result()
                    except (TimeoutError, ProcessExpired) as error:
                        timed_out = not isinstance(error, ProcessExpired) or error.exitcode == -signal.SIGPROF
                        spent = (Reason.TIMEOUT, self.time_limit) if timed_out else (Reason.WORKER_DIED, 0.0)
                        outcomes[pair] = Outcome(*spent)
        except (BrokenExecutor, CancelledError):
            return False

    def _started(self) -> ProcessPool:
        if self._pool is None:
            # forkserver: workers never inherit the caller's threads, locks or CUDA state, and start in milliseconds,
            # because the server they are forked from has imported what they need once
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload([*_PRELOADED, self.judge.__module__])
            self._pool = ProcessPool(
                max_workers=self.workers, initializer=initialise, initargs=[self.memory_limit], context=context
            )
        if not self._pool.active:
            raise BrokenExecutor("the pool has stopped")
        return self._pool
