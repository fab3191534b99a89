"""What runs inside a worker process: limits first, then one comparison at a time."""

from __future__ import annotations

import logging
import math
import resource
import signal
import time
from collections.abc import Callable

from evals.grading.verdict import Reason

_BACKSTOP = 10  # seconds beyond the limit on time after which a worker that nobody has stopped ends itself

_CANNOT_WORK_OUT = (
    ArithmeticError,
    AttributeError,
    LookupError,
    NotImplementedError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What SymPy raises, depending on the place, where it cannot work an expression out."""


def initialise(memory_limit: int) -> None:
    """Bound this process's memory and let it die at once.

    Args:
        memory_limit: bytes of address space that the process may have in all.
    """
    # Pebble's handler runs between two bytecodes; a process deep in C code would ignore it for minutes
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    from evals.grading import symbolic  # noqa: F401  (loaded before the limit, and never on a case's time)

    logging.getLogger("math_verify").setLevel(logging.ERROR)
    resource.setrlimit(resource.RLIMIT_AS, (memory_limit, memory_limit))


def judge(answer: str, gold: str, time_limit: float) -> tuple[Reason, float]:
    """Compare two normalised answers.

    Returns:
        The reason of the verdict, and the seconds that it took.
    """
    from evals.grading import symbolic

    return limited(lambda: symbolic.judge(answer, gold), time_limit)


def limited(compare: Callable[[], Reason], time_limit: float) -> tuple[Reason, float]:
    """Make one comparison, whatever it raises.

    The pool's owner keeps the limit on time; the alarm set here ends a worker whose owner has itself been killed.

    Returns:
        The reason of the verdict, and the seconds that it took.
    """
    signal.alarm(math.ceil(time_limit) + _BACKSTOP)
    start = time.perf_counter()
    try:
        reason = compare()
    except MemoryError:
        reason = Reason.MEMORY
    except _CANNOT_WORK_OUT:
        reason = Reason.UNPARSABLE
    finally:
        signal.alarm(0)
    return reason, time.perf_counter() - start
