"""The command ``rlvr-bench site``."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from rlvr.cli.command import Commands

commands = Commands()


@commands.add("site")
def site(
    results: Annotated[list[Path], Argument(help="directories of studies, or their results/")],
    out: Annotated[Path, Option(help="directory of the pages: a new one, or a board to replace")],
) -> None:
    """Write a board of finished studies: static pages that need no network and no server.

    Every study is checked first, as by verify; one that was altered is refused by name, and nothing is written. Methods
    stand in one table where task, model, budget and reference method are the same; elsewhere the page says in what they
    are not comparable. Each study has a page with its curves and its file. The same studies give the same bytes.
    """
    from rlvr_board.site import write_board

    for line in write_board(results, out):
        print(line)
