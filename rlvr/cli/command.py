"""Declare commands: options that take several words, groups of options, errors in one line."""

from __future__ import annotations

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
        """Parse the words up to the command's name."""
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
        """Declare a function as the command ``name``; a parameter of a dataclass type stands for its fields."""

        def declare(function: F) -> F:
            self.command(name, cls=Command)(_with_fields(function))
            return function

        return declare


def _with_fields(function: F) -> Callable[..., None]:
    """The function with the fields of its dataclass parameters as parameters of its own.

    A field without a help text of its own gets what the dataclass's docstring says of it.
    """
    records: dict[str, Any] = {}
    flat: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        if not dataclasses.is_dataclass(parameter.annotation):
            flat.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        records[name] = parameter.annotation
        flat += _fields(parameter.annotation)

    @functools.wraps(function)
    def run(**given: Any) -> None:
        for name, record in records.items():
            given[name] = record(**{field.name: given.pop(field.name) for field in dataclasses.fields(record)})
        function(**given)

    run.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
    return run


def _fields(record: Any) -> Iterable[inspect.Parameter]:
    hints = get_type_hints(record, include_extras=True)
    texts = dict(re.findall(r"^        (\w+): (.+(?:\n {12}.+)*)", record.__doc__ or "", re.MULTILINE))
    for field in dataclasses.fields(record):
        annotation = hints[field.name]
        if not hasattr(annotation, "__metadata__"):
            text = " ".join(texts[field.name].replace("``", "").split()).rstrip(".")
            annotation = Annotated[annotation, typer.Option(help=text)]
        default = inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        yield inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def describe(error: typer.TyperException) -> str:
    """One line on what is wrong with the words of a command."""
    parameter = getattr(error, "param", None)
    if parameter is None:
        return " ".join(error.format_message().split())
    name = max(parameter.opts, key=len) if isinstance(parameter, TyperOption) else parameter.name.upper()
    return f"{name}: {' '.join((error.message or 'is missing').split())}"
