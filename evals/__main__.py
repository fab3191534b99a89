"""``python -m evals score|compare|power|trace``: evaluation from the shell, on any files in our format."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from evals.command_line import run_command
from evals.shell import compare, power, score, trace

_COMMANDS = (
    ("score", score, "avg@k with errors and interval, pass@k, maj@k, G-Pass@k of samples or grades"),
    ("compare", compare, "whether A is better than B, paired by problem"),
    ("power", power, "what difference can be detected, or how much it takes"),
    ("trace", trace, "which bytes a table, figure or report was made from, and whether they are still those"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; 0, or 2 after a one-line error."""
    parser = argparse.ArgumentParser(prog="python -m evals", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, module, summary in _COMMANDS:
        command = commands.add_parser(
            name, help=summary, description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return run_command(parser, argv)


if __name__ == "__main__":
    sys.exit(main())
