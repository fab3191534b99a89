"""Declare commands: options that take several words, groups of options, errors in one line."""

import dataclasses
import functools
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable
from typing import Annotated, Any, TypeVar, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from rlvr.cli.options import HELP

F = TypeVar("F", bound=Callable[..., None])


class Command(TyperCommand):
    """A command whose options of several values take all words up to the next option: ``--scores a.json b.json``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words after repeating the option before each of its values, as Typer wants it."""
        several = {
            name for each in self.params if isinstance(each, TyperOption) and each.multiple for name in each.opts
        }
        return super().parse_args(ctx, list(_repeated(args, several)))

    def invoke(self, ctx: Any) -> Any:
        """Run the command; a reader of its output, such as head, may leave before the end."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:  # Python would complain again when it exits
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        return result


class Group(TyperGroup):
    """Commands under one name, listed in the order of their declaration; without one, the help is shown."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args or ([] if self.invoke_without_command else ["--help"]))


def _repeated(words: Iterable[str], several: set[str]) -> Iterable[str]:
    current = ""
    for word in words:
        if word.startswith("--"):
            current = word if word in several else ""
            if not current:
                yield word
        elif current:
            yield from (current, word)
        else:
            yield word


class Commands(typer.Typer):
    """A Typer application of :class:`Command`, without shell markup in its texts."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            cls=Group,
            add_completion=False,
            rich_markup_mode=None,
            pretty_exceptions_enable=False,
            context_settings={"max_content_width": 110},
            **options,
        )

    def add(self, name: str) -> Callable[[F], F]:
        """Declare a function as the command ``name``; its parameters are options, and those of a dataclass its fields.

        An option's help is that of its annotation, of the dataclass's docstring, or the one that it has everywhere.
        """

        def declare(function: F) -> F:
            self.command(name, cls=Command)(_with_fields(function))
            return function

        return declare


def _with_fields(function: F) -> Callable[..., None]:
    records: dict[str, Any] = {}
    flat: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        if dataclasses.is_dataclass(parameter.annotation):
            records[name] = parameter.annotation
            flat += _fields(parameter.annotation)
        elif parameter.annotation is typer.Context:
            flat.append(parameter)
        else:
            flat.append(_option(name, parameter.annotation, parameter.default))

    @functools.wraps(function)
    def run(**given: Any) -> None:
        for name, record in records.items():
            given[name] = record(**{field.name: given.pop(field.name) for field in dataclasses.fields(record)})
        function(**given)

    run.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
    return run


def _option(name: str, annotation: Any, default: Any, text: str = "") -> inspect.Parameter:
    if not hasattr(annotation, "__metadata__"):
        annotation = Annotated[annotation, typer.Option(help=text or HELP[name])]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _fields(record: Any) -> Iterable[inspect.Parameter]:
    hints = get_type_hints(record, include_extras=True)
    texts = dict(re.findall(r"^        (\w+): (.+(?:\n {12}.+)*)", record.__doc__ or "", re.MULTILINE))
    for field in dataclasses.fields(record):
        text = " ".join(texts.get(field.name, "").replace("``", "").split()).rstrip(".")
        default = inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        yield _option(field.name, hints[field.name], default, text)


def describe(error: typer.TyperException) -> str:
    """One line on what is wrong with the words of a command."""
    parameter = getattr(error, "param", None)
    if parameter is None:
        return " ".join(error.format_message().split())
    name = max(parameter.opts, key=len) if isinstance(parameter, TyperOption) else parameter.name.upper()
    return f"{name}: {' '.join((error.message or 'is missing').split())}"
