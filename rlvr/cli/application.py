"""All commands, in the order of the help."""

from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated

import typer

from rlvr.cli.command import Commands


def commands(words: Sequence[str] = ()) -> Commands:
    """The commands that the words of a process may mean.

    A study starts hundreds of processes of `train` and `sample`, which import no other commands.
    """
    application = Commands(help="Compare RLVR training algorithms, and look at what they did.")
    application.callback()(_options)
    if words[:1] in (["train"], ["sample"]):
        from rlvr.cli import training

        modules = [training]
    else:
        from rlvr.cli import conform, curves, diagnose, evaluate, judge, study, training

        modules = [evaluate, study, judge, conform, curves, training, diagnose]
    for module in modules:
        application.add_typer(module.commands)
    return application


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"rlvr-bench {version('rlvr-bench')}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Take the options that stand before a command."""
