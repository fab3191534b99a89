"""All commands, in the order of the help."""

from collections.abc import Sequence
from importlib.metadata import entry_points, version
from typing import Annotated

import typer

from rlvr.cli import stages
from rlvr.cli.command import Commands

PACKAGES = "rlvr_bench.commands"
"""The entry points by which packages beside this one add commands: a function, or a Typer application."""


def commands(words: Sequence[str] = ()) -> Commands:
    """The commands that the words of a process may mean.

    A study starts hundreds of processes of `stage`, of which half the time would go to importing other commands.
    """
    application = Commands(help="Compare RLVR training algorithms, and look at what they did.")
    application.callback()(_options)
    modules = [stages]
    if words[:1] != ["stage"]:
        from rlvr.cli import conform, diagnose, evaluate, judge, study, training

        modules = [evaluate, study, judge, conform, training, diagnose, stages]
    for module in modules:
        application.add_typer(module.commands)
    if words[:1] != ["stage"]:
        for entry in sorted(entry_points(group=PACKAGES)):
            declared = entry.load()
            if isinstance(declared, typer.Typer):
                application.add_typer(declared, name=entry.name)
            else:
                application.add(entry.name)(declared)
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
