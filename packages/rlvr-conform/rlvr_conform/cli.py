"""The commands: ``rlvr-conform TRAINER``, and ``rlvr-bench conform`` where the two are installed together."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option
from typer.core import TyperCommand

_PLAIN: dict[str, Any] = {"add_completion": False, "rich_markup_mode": None, "pretty_exceptions_enable": False}
app = typer.Typer(**_PLAIN)


class SeveralLosses(TyperCommand):
    """A command whose option --losses takes all words up to the next option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words after repeating the option before each of its values, as Typer wants it."""
        words, is_loss = [], False
        for word in args:
            is_loss = word == "--losses" or (is_loss and not word.startswith("-"))
            words += [] if word == "--losses" else ["--losses", word] if is_loss else [word]
        return super().parse_args(ctx, words)


@app.command("conform", cls=SeveralLosses, short_help="Compare another trainer's losses with the papers'")
def conform(
    trainer: Annotated[str, Argument(help="trl, verl and others, or FILE.py, an adapter")],
    python: Annotated[
        Path | None,
        Option(help="Python of the environment that has the trainer; default: this one, else one that uv makes"),
    ] = None,
    checkout: Annotated[Path | None, Option(help="directory that the trainer is imported from")] = None,
    losses: Annotated[list[str], Option(help="objectives to try, or advantages; default: all")] = [],
    chain: Annotated[
        bool, Option("--chain", help="for trl and verl: let their own loops train a two-layer model too; takes minutes")
    ] = False,
    out: Annotated[Path | None, Option(help="file for the report as JSON")] = None,
) -> None:
    """Compare the gradients of another trainer's losses with the papers' on small batches, whole and cut.

    With --chain its own loop also trains a small model, and the gradients that it accumulates and the losses that it
    logs are compared, under gradient accumulation and on two ranks. The status is 1 if a loss is not the paper's under
    any known convention, or depends on how a batch is cut.
    """
    from rlvr_conform.cases import CASES
    from rlvr_conform.report import is_the_papers, printed, try_trainer
    from rlvr_conform.trainer import UserError

    names = [*(case.name for case in CASES), "advantages"]
    for loss in losses:
        if loss not in names:
            raise UserError(f"--losses: {loss} is no objective; accepted: {', '.join(names)}")
    if checkout is not None and not checkout.is_dir():
        raise UserError(f"--checkout: {checkout} is no directory")
    report = try_trainer(trainer, python, checkout, losses, chain)
    if out is not None:
        try:
            out.write_text(json.dumps(asdict(report), indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise UserError(f"--out: {out} cannot be written ({error.strerror})") from None
    print(_escaped("\n".join(printed(report))))
    if not is_the_papers(report):
        raise typer.Exit(1)


@app.command("conform-page", short_help="Print the page of conformance reports")
def conform_page(reports: Annotated[list[Path], Argument(help="files that conform --out wrote")]) -> None:
    """Print the page of conformance reports, README.md of this package."""
    from rlvr_conform.report import page, read_report

    print(page([read_report(path) for path in reports]), end="")


def _escaped(text: str) -> str:
    """The text without what would move a terminal's cursor: the words of a trainer, and names of files."""
    return "".join(char if char.isprintable() or char == "\n" else ascii(char)[1:-1] for char in text)


def main() -> None:
    """Run the command ``conform`` alone, with the words of the process."""
    alone = typer.Typer(**_PLAIN)
    alone.command(cls=SeveralLosses)(conform)
    try:
        status = typer.main.get_command(alone)(prog_name="rlvr-conform", standalone_mode=False)
    except typer.TyperException as error:
        print(_escaped(f"error: {error.format_message()}"), file=sys.stderr)
        status = 2
    sys.exit(status)
