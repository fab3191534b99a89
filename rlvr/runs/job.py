"""The process of a job of the workflow: its log, its errors in one line, and its end after a SIGTERM."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from evals.core.errors import UserError
from rlvr.runs.termination import end_with_snakemake, exit_if_interrupted


@contextmanager
def job(log: str) -> Iterator[None]:
    """Write what the block and its processes print to the file ``log``; end with one line after a user's mistake.

    After a SIGTERM the block ends with its state saved, and the status is 143.
    """
    end_with_snakemake()
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    sys.stdout.flush()
    os.dup2(file, 1)
    os.dup2(file, 2)
    try:
        with exit_if_interrupted():
            yield
    except UserError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        sys.exit(2)
