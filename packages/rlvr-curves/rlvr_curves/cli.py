"""The command ``rlvr-bench curves``."""

from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from rlvr.cli.command import Commands

commands = Commands()


@commands.add("curves")
def curves(
    runs: Annotated[
        list[str],
        Argument(help="METHOD=PATH each: a file, a directory or a quoted pattern; runs of one method are its seeds"),
    ],
    axis: Annotated[Literal["steps", "tokens", "seconds"], Option(help="what all curves are drawn over")] = "steps",
    reference: Annotated[
        str | None, Option(help="method that the others are compared with; default: the first", show_default=False)
    ] = None,
    names: Annotated[
        str, Option(help="names of your own metrics, such as reward=rewards/accuracy/mean,step=iteration")
    ] = "",
    out: Annotated[Path, Option(help="directory for index.html, the figure and the tables")] = Path("curves"),
) -> None:
    """Draw and compare runs of TRL, verl and other trainers, from the files that they or their trackers wrote.

    Rewards, lengths, entropies, divergences and clip fractions over one axis, with bands over seeds; the ceiling and
    efficiency of every method where its rewards bend; and its reward against the reference's where it has seeds.
    """
    from evals.tables.layout import markdown
    from rlvr_curves.page import write_curves

    print(markdown(write_curves(runs, axis, reference, names, out)), end="")
