"""The commands ``rlvr-bench site``, ``submission`` and ``replay``."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from rlvr.cli.command import Commands

commands = Commands()


@commands.add("site")
def site(
    results: Annotated[list[Path], Argument(help="directories of studies, or their results/")],
    out: Annotated[Path, Option(help="directory of the pages: a new one, or a board to replace")],
    responses: Annotated[int, Option(help="number of each method's seeds whose responses are shown", min=0)] = 0,
) -> None:
    """Write a board of finished studies: static pages that need no network and no server.

    Every study is checked first, as by verify; one that was altered is refused by name, and nothing is written. Methods
    stand in one table where task, model, budget and reference method are the same; elsewhere the page says in what they
    are not comparable. Each study has a page with its curves and its file. The same studies give the same bytes.
    """
    from rlvr_board.site import write_board

    for line in write_board(results, out, responses):
        print(line)


@commands.add("submission")
def submission(
    study: Annotated[Path, Argument(help="directory of a finished study, or its results/")],
    out: Annotated[Path, Option(help="file to write")],
    address: Annotated[list[str], Option(help="where the results can be had; may be given several times")] = [],
) -> None:
    """Write the small file by which a study is submitted to a board: configuration, table, and hashes of every run.

    The study is checked first, as by verify. Its runs must have the same bytes on every machine: engine local, on a
    CPU, in float32.
    """
    from rlvr_board.submission import write_submission

    print(*write_submission(study, address, out), sep="\n")


@commands.add("replay")
def replay(
    study: Annotated[Path, Argument(help="directory of a finished study, or the file of a submission")],
    seed: Annotated[str, Option(help="text that draws the cells, such as the hash of a commit made after the study")],
    cells: Annotated[int, Option(help="number of training runs to make again")] = 5,
    cores: Annotated[
        int | None, Option(help="number of cores for all jobs together; default: all", min=1, show_default=False)
    ] = None,
) -> None:
    """Make some runs of a study again from nothing, and compare their bytes with those that the study names.

    Problems, base model, training run, samples and grades are made by the study's configuration and this version of
    the code, in a temporary directory. The command says how likely such a replay is to find a false run. A difference
    ends with status 2.
    """
    from rlvr_board.submission import replay

    for line in replay(study, cells, seed, cores):
        print(line)
