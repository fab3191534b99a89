"""What runs inside a worker process: limits first, then one comparison at a time."""

from __future__ import annotations

import contextlib
import logging
import resource
import signal
import time

from evals.grading.verdict import Reason


def initialise(memory_limit: int) -> None:
    """Bound this process's memory and let it die at once.

    Args:
        memory_limit: bytes of address space that the process may have in all.
    """
    # Pebble's handler runs between two bytecodes; a process deep in C code would ignore it for minutes
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    from evals.grading import symbolic  # noqa: F401  (loaded before the limit, and never on a case's time)

    logging.getLogger("math_verify").setLevel(logging.ERROR)
    resource.setrlimit(resource.RLIMIT_AS, (memory_limit, memory_limit))


def judge(answer: str, gold: str) -> tuple[Reason, float]:
    """Compare two normalised answers.

    Returns:
        The reason of the verdict, and the seconds that it took.
    """
    from evals.grading import symbolic

    start = time.perf_counter()
    reason = Reason.MEMORY
    with contextlib.suppress(MemoryError):
        try:
            reason = symbolic.judge(answer, gold)
        except (
            RecursionError,
            ArithmeticError,
            ValueError,
            TypeError,
            NotImplementedError,
            AttributeError,
            IndexError,
            KeyError,
        ):
            reason = Reason.UNPARSABLE  # SymPy reports by any of these that it cannot work an expression out
    return reason, time.perf_counter() - start
