"""All commands, in the order of the help: some by name, the core's, then those of the packages beside it."""

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points, version
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from evals.core.errors import UserError, first_line, printable
from rlvr.cli.command import Commands

GROUP = "rlvr_bench.commands"
"""The entry points of packages: each is a Typer application, whose commands become those of rlvr-bench."""
PACKAGES: Mapping[str, Sequence[str]] = {
    "rlvr-board": ["site", "submission", "replay"],
    "rlvr-claims": ["claims"],
    "rlvr-conform": ["conform", "conform-page"],
    "rlvr-curves": ["curves"],
}
"""The commands of the packages of packages/, for who has not installed one."""
_FIRST = ("judge", "eval", "compare", "conform", "curves")
"""The commands that the list begins with."""


def commands(words: Sequence[str] = ()) -> Any:
    """The commands that the words of a process may mean, as the group that parses them.

    A study starts hundreds of processes of `train` and `sample`, which import no other commands.
    """
    application = Commands(help="Compare RLVR training algorithms, and look at what they did.")
    application.callback()(_options)
    is_job = words[:1] in (["train"], ["sample"])
    for module in ("training",) if is_job else ("evaluate", "study", "training"):
        application.add_typer(import_module(f"rlvr.cli.{module}").commands)
    group: Any = typer.main.get_group(application)
    if not is_job:
        add_packages(group.commands, entry_points(group=GROUP))
        group.commands = {name: group.commands[name] for name in (*_FIRST, *group.commands)}
    return group


def add_packages(known: MutableMapping[str, Any], points: Iterable[EntryPoint]) -> None:
    """Add the commands of packages to those known by name; of one that is not installed, what says so."""
    for point in sorted(points, key=lambda point: point.name):
        try:
            known.update(typer.main.get_group(point.load()).commands)
        except ModuleNotFoundError:  # of the package, or of what it needs
            continue
        except Exception as error:  # of the package's own code: the other commands need none of it
            why = f"cannot be loaded: {type(error).__name__}: {first_line(error)}"
            package = getattr(point.dist, "name", point.name)
            known.update({name: _absent(name, package, why) for name in PACKAGES.get(package, [point.name])})
    for package, names in PACKAGES.items():
        why = f"is not installed: pip install {package}"
        known.update({name: _absent(name, package, why) for name in names if name not in known})


def _absent(name: str, package: str, why: str) -> TyperCommand:
    """A command of a package that is not installed, or damaged: whatever its words are, one line says so."""

    def refuse(*_: Any) -> None:
        raise UserError(f"{name} is a command of the package {package}, which {why}")

    command = TyperCommand(name, short_help=printable(f"({why.removeprefix('is ')})"))
    command.parse_args = refuse  # type: ignore[assignment]
    return command


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
