"""All commands, in the order of the help."""

from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated

import typer

from rlvr.cli import stages
from rlvr.cli.command import Commands


def commands(words: Sequence[str] = ()) -> Commands:
    """The commands that the words of a process may mean.

    A study starts hundreds of processes of `stage`, of which half the time would go to importing other commands.
    """
    application = Commands(help="Compare RLVR training algorithms, and look at what they did.")
    application.callback()(_options)
    modules = [stages]
    if words[:1] != ["stage"]:
        from rlvr.cli import conform, curves, evaluate, judge, study, tokens, training

        modules = [evaluate, study, judge, conform, curves, training, tokens, stages]
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
