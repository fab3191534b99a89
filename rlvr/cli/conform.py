"""Other trainers' losses, held to the papers'."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from evals.core.errors import UserError
from rlvr.cli.command import Commands
from rlvr.cli.options import Paths, Words

commands = Commands()


@commands.add("conform")
def conform(
    trainer: Annotated[str, Argument(help="trl, verl and others, or FILE.py, an adapter (docs/conformance.md)")],
    python: Annotated[
        Path, Option(help="of the environment that has the trainer; default: this one", show_default=False)
    ] = Path(sys.executable),
    checkout: Annotated[
        Path | None, Option(help="directory that the trainer is imported from, if not installed", show_default=False)
    ] = None,
    losses: Annotated[Words, Option(help="objectives to try, or advantages; default: all", show_default=False)] = [],
    chain: Annotated[
        bool, Option("--chain", help="of trl and verl: their loops train a two-layer model, too; minutes")
    ] = False,
    out: Annotated[Path | None, Option(help="file for the report as JSON", show_default=False)] = None,
) -> None:
    """Compare the gradients of another trainer's losses with the papers' on small batches, whole and cut.

    With --chain its own loop also trains a small model, and the gradients that it accumulates and the losses that it
    logs are compared, under gradient accumulation and on two ranks. The status is 1 if a loss is not the paper's under
    any known convention, or depends on how a batch is cut.
    """
    from evals.core.files import write_json
    from rlvr.conform.cases import CASES
    from rlvr.conform.report import is_the_papers, printed, try_trainer

    names = [*(case.name for case in CASES), "advantages"]
    for loss in losses:
        if loss not in names:
            raise UserError(f"--losses: {loss} is no objective; accepted: {', '.join(names)}")
    if checkout is not None and not checkout.is_dir():
        raise UserError(f"--checkout: {checkout} is no directory")
    report = try_trainer(trainer, python, checkout, losses, chain)
    if out is not None:
        write_json(out, report.to_json())
    print("\n".join(printed(report)))
    if not is_the_papers(report):
        raise typer.Exit(1)


@commands.add("conform-page")
def conform_page(reports: Annotated[Paths, Argument(help="files that conform --out wrote")]) -> None:
    """Print the page of conformance reports, docs/conformance.md."""
    from rlvr.conform.report import Report, page

    print(page([Report.read(path) for path in reports]), end="")
