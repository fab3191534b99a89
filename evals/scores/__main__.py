"""``python -m evals.scores score|compare``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from evals.core.errors import UserError
from evals.scores import compare, score


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 0, or 2 after a one-line error."""
    parser = argparse.ArgumentParser(prog="python -m evals.scores", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, module, summary in (
        ("score", score, "score every run on one benchmark"),
        ("compare", compare, "compare every method with a reference method and with the base model"),
    ):
        command = commands.add_parser(name, help=summary, description=module.__doc__)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    arguments = parser.parse_args(argv)
    try:
        arguments.run(arguments)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
