"""Declare commands: options that take several words, groups of options, errors in one line."""

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from evals.core.errors import InvalidInput
from rlvr.cli.options import HELP

F = TypeVar("F", bound=Callable[..., None])


def _short_help(command: Any, limit: int = 0) -> str:
    """The first sentence of a command's help, whole, for the list of commands; Click would cut it."""
    text = " ".join(inspect.cleandoc(command.help or "").partition("\n\n")[0].split())
    return re.split(r"(?<=[\w)`])\.(?:\s|$)", text, maxsplit=1)[0]


class Command(TyperCommand):
    """A command whose options of several values take all words up to the next option: ``--scores a.json b.json``."""

    get_short_help_str = _short_help

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words after repeating the option before each of its values, as Typer wants it."""
        several = {name for option in self.params if getattr(option, "multiple", False) for name in option.opts}
        words, repeated = list[str](), ""
        for word in args:
            if word.startswith("--"):
                repeated = word if word in several else ""
                words += [] if repeated else [word]
            else:
                words += [repeated, word] if repeated else [word]
        return super().parse_args(ctx, words)


class Group(TyperGroup):
    """Commands under one name, listed in the order of their declaration; without one, the help is shown."""

    get_short_help_str = _short_help

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args or ([] if self.invoke_without_command else ["--help"]))


class Commands(typer.Typer):
    """A Typer application of :class:`Command`, without shell markup in its texts."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            cls=Group,
            add_completion=False,
            rich_markup_mode=None,
            pretty_exceptions_enable=False,
            context_settings={"max_content_width": 110, "help_option_names": ["-h", "--help"]},
            **options,
        )

    def add(self, name: str) -> Callable[[F], F]:
        """Declare a function as the command ``name``; its docstring is the help, its parameters are the options.

        The fields of a record are options too.
        """

        def declare(function: F) -> F:
            self.command(name, cls=Command)(_command_function(function))
            return function

        return declare

    def call(self, name: str, target: str, arguments: Sequence[str] = (), options: Mapping[str, str] = {}) -> None:
        """Declare the function ``target``, module:name, as a command, with its docstring as the help.

        It is imported when the command is used, before its options are known: not for what first chooses the code
        paths of arithmetic (:mod:`evals.generation.arithmetic`).

        Args:
            name: the command's name.
            target: the function; the lines that it returns, if any, are printed.
            arguments: names of options that are given without a name.
            options: parameter -> name of its option, where they differ.
        """
        module, _, function = target.partition(":")

        class Called(Command):
            # Typer sets the help that it found, which is nothing.
            help = property(lambda _: _docstring(module, function), lambda *_: None)

            def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
                called = getattr(import_module(module), function)
                application = Commands()
                application.command()(_command_function(called, arguments, options))
                made = typer.main.get_command(application)
                self.params, self.callback = made.params, made.callback
                return super().parse_args(ctx, args)

        self.command(name, cls=Called)(lambda: None)


def _docstring(module: str, function: str) -> str:
    """A docstring up to its sections, read from the source: a list of commands imports none of their modules."""
    spec = find_spec(module)
    source = Path(str(spec and spec.origin)).read_text(encoding="utf-8")
    pattern = rf'^def {function}\(.*?\n    """(.*?)(?:\n\n    (?:Args|Returns|Raises):\n|""")'
    described = re.search(pattern, source, re.DOTALL | re.MULTILINE)
    return inspect.cleandoc(described[1]).replace("``", "") if described else ""


def _command_function(
    function: Callable[..., Any], arguments: Sequence[str] = (), options: Mapping[str, str] = {}
) -> Callable[..., None]:
    """The function with an option for each parameter; for a dataclass or a record, one for each of its fields.

    An option's help is that of its annotation, of the docstring of the function or dataclass, or the one in ``HELP``.
    """
    flat, texts, makers = list[inspect.Parameter](), _texts(function), dict[str, Callable[[Mapping[str, Any]], Any]]()
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        kind, option = parameter.annotation, options.get(name, name)
        if dataclasses.is_dataclass(kind) or hasattr(kind, "model_fields"):
            flat += (fields := list(_fields(kind)))
            makers[name] = functools.partial(_made, kind, [field.name for field in fields])
        elif kind is typer.Context:
            flat.append(parameter)
            makers[name] = itemgetter(name)
        else:
            flat.append(_option(option, kind, parameter.default, texts.get(name), option in arguments))
            makers[name] = itemgetter(option)

    @functools.wraps(function)
    def run(**words: Any) -> None:
        for line in function(**{name: make(words) for name, make in makers.items()}) or ():
            print(line)

    run.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
    return run


def _made(kind: Any, names: Sequence[str], words: Mapping[str, Any]) -> Any:
    content = {name: words[name] for name in names}
    try:
        return kind.parse(content, "") if hasattr(kind, "parse") else kind(**content)
    except InvalidInput as error:
        raise InvalidInput("", f"--{error.key.replace('_', '-')}", error.found, error.accepted) from None


def _option(name: str, kind: Any, default: Any, text: str | None, is_argument: bool = False) -> inspect.Parameter:
    if get_origin(kind) is Sequence:
        kind = list[get_args(kind)]  # type: ignore[misc]
    if text is None and not any(getattr(declared, "help", None) for declared in getattr(kind, "__metadata__", ())):
        text = HELP[name]
    if not hasattr(kind, "__metadata__"):
        flag = [f"--{name.replace('_', '-')}"] if kind is bool else []
        kind = Annotated[kind, typer.Argument(help=text) if is_argument else typer.Option(*flag, help=text)]
    for declared in kind.__metadata__:
        declared.help = declared.help or text
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def _texts(described: Any) -> dict[str, str]:
    """Name -> text of what a docstring describes one by one."""
    text = inspect.cleandoc(described.__doc__ or "")  # Python 3.13 keeps it without its indentation
    texts = re.findall(r"^    (\w+): (.+(?:\n {8}.+)*)", text, re.MULTILINE)
    return {name: " ".join(text.replace("``", "").split()).rstrip(".") for name, text in texts}


def _fields(kind: Any) -> Iterable[inspect.Parameter]:
    is_record = hasattr(kind, "model_fields")
    hints, texts = get_type_hints(kind, include_extras=not is_record), _texts(kind)  # a record checks its bounds itself
    fields: Mapping[str, Any] = kind.model_fields if is_record else inspect.signature(kind).parameters
    for name, field in fields.items():
        default = inspect.Parameter.empty if is_record and field.is_required() else field.default
        yield _option(name, hints[name], default, field.description if is_record else texts.get(name))


def describe(error: typer.TyperException) -> str:
    """One line on what is wrong with the words of a command, and how to ask for its help."""
    parameter, context = getattr(error, "param", None), getattr(error, "ctx", None)
    hint = f"; {context.command_path} --help lists what is accepted" if context else ""
    if parameter is None:
        return " ".join(error.format_message().split()) + hint
    name = max(parameter.opts, key=len) if isinstance(parameter, TyperOption) else parameter.name.upper()
    words = re.sub(r"^(Value error, |Input )|, unable to .*|\.$", "", " ".join((error.message or "is missing").split()))
    return f"{name}: {words}{hint}"
