"""What every command has in common: a subcommand's function, a one-line error, an exit status."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from evals.core.errors import UserError


def run_command(parser: argparse.ArgumentParser, argv: Sequence[str] | None = None) -> int:
    """Parse ``argv`` and call the parsed ``run`` function with the arguments.

    Returns:
        0, or 2 after printing a :class:`~evals.core.errors.UserError` as one line.
    """
    arguments = parser.parse_args(argv)
    try:
        arguments.run(arguments)
        sys.stdout.flush()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader, such as head, has seen enough; Python would complain again when it exits
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
