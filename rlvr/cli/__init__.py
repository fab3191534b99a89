"""The one command of the project: ``rlvr-bench``, or ``python -m rlvr`` where only the source is there."""

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, of the words of the process if none are given.

    Returns:
        0, 2 after an error that the user can mend (one line), or the status that the command asks for.
    """
    # Imported here, because the grader's worker processes import the script that started them.
    import typer

    from evals.core.errors import UserError
    from rlvr.cli.application import commands
    from rlvr.cli.command import describe

    words = list(sys.argv[1:] if argv is None else argv)
    try:
        status = typer.main.get_command(commands(words))(args=words, prog_name="rlvr-bench", standalone_mode=False)
    except (typer.TyperException, UserError) as error:
        print(f"error: {error if isinstance(error, UserError) else describe(error)}", file=sys.stderr)
        return 2
    return status if isinstance(status, int) else 0
