"""Errors that a user can fix, as one line that names the file, the key and what is accepted."""

from __future__ import annotations

import difflib
import re
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

_FEW, _ALIKE = 4, 0.7
_BOUNDS = {
    "greater_than": ("gt", "above"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "below"),
    "less_than_equal": ("le", "at most"),
}
_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "text",
    "list": "a list",
    "tuple": "a list",
    "dict": "a mapping",
    "model": "a mapping",
    "path": "a path",
    "finite_number": "a finite number",
    "none_required": "null",
}


class UserError(Exception):
    """Something that the user can fix: commands print it as a line ``error: <message>`` and exit with status 2.

    A message may quote anything, such as a server's answer: it is made :func:`printable`.
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


def counted(number: int, noun: str) -> str:
    """Say a number of things: "1 study", "2 studies"."""
    return f"{number:,} {noun if number == 1 else re.sub('y$', 'ie', noun) + 's'}"


def printable(text: str) -> str:
    """Escape what cannot be printed, or would move a terminal's cursor."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


class InvalidInput(UserError):
    """A value of a file or of the command line that is not accepted.

    Attributes:
        key: where in the file ``source``, with dots between the parts; empty for the file as a whole.
        found: what is wrong, such as ``is 0``, ``lacks steps`` or ``unknown key stepz``.
        accepted: what is accepted instead; empty where ``found`` says it all.
    """

    def __init__(self, source: str, key: str, found: str, accepted: str = "") -> None:
        message = ": ".join(filter(None, [source, key, found])) + _likely(found, accepted.split(", "))
        message += f"; accepted: {accepted}" if accepted else ""
        super().__init__(message)
        self.source, self.key, self.found, self.accepted = source, key, found, accepted


def _likely(found: str, names: list[str]) -> str:
    """Name the accepted name that a misspelt one is probably meant for; nothing where the list is read at a glance."""
    word = re.search(r"'([^']+)'|unknown key (\S+)", found) if len(names) > _FEW else None
    meant = difflib.get_close_matches(word[1] or word[2], names, n=1, cutoff=_ALIKE) if word else []
    return f" (did you mean {meant[0]}?)" if meant else ""


class NotAccepted(ValueError):
    """A value that a record's validator refuses; :func:`invalid_input` adds the file and the place.

    ``key`` says where below the validated value it stands, with dots; it is empty for the value itself.
    """

    def __init__(self, found: str, accepted: str = "", key: str = "") -> None:
        super().__init__(found + (f"; accepted: {accepted}" if accepted else ""))
        self.found, self.accepted, self.key = found, accepted, key


def refuse(is_refused: object, found: str, accepted: str = "", key: str = "") -> None:
    """Raise :class:`NotAccepted` of the other arguments if the first one is true."""
    if is_refused:
        raise NotAccepted(found, accepted, key)


def check_option(name: str, value: object, is_accepted: object, accepted: str) -> None:
    """Refuse the value of an option of the command line, unless it is accepted."""
    if not is_accepted:
        raise InvalidInput(f"--{name}", "", f"is {value}", accepted)


@contextmanager
def limited_time(seconds: float, message: str) -> Iterator[None]:
    """End code of somebody else's with a TimeoutError after so many seconds of the processor.

    Python has this for the main thread alone; in another one nothing is limited.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_: object) -> None:
        raise TimeoutError(message)

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def first_line(error: BaseException) -> str:
    """The first line of an exception's message; its type's name if it has none, or none that can be made."""
    try:
        return (str(error).strip().splitlines() or [type(error).__name__])[0]
    except Exception:  # of a class of the user's
        return type(error).__name__


def invalid_input(
    error: ValidationError, model: type[BaseModel], content: Any, source: str, key: str = ""
) -> InvalidInput:
    """The complaint of pydantic about ``content``, read as ``model``, that a person can act on; ``key`` leads to it.

    The deepest complaint is taken, and an unknown key before the missing one that it may be meant for. The text of a
    ``ValueError`` that a validator raised is kept as it is: it says what was found and what is accepted.
    """
    refused = _refused(error, model, content)
    return InvalidInput(source, ".".join(filter(None, [key, refused.key])), refused.found, refused.accepted)


def _refused(error: ValidationError, model: type[BaseModel], content: Any) -> NotAccepted:
    """The complaint, with the key that leads to it."""
    complaints = error.errors(include_url=False)
    order = {"extra_forbidden": 2, "missing": 0}
    chosen = max(complaints, key=lambda complaint: (len(_place(complaint, content)), order.get(complaint["type"], 1)))
    keys, kind, found, context = _place(chosen, content), chosen["type"], chosen["input"], chosen.get("ctx", {})
    key = ".".join(map(str, keys))
    if kind == "missing":
        lacking = [str(row["loc"][-1]) for row in complaints if row["type"] == kind and _place(row, content) == keys]
        return NotAccepted(f"lacks {', '.join(dict.fromkeys(lacking))}", key=key)
    if kind == "extra_forbidden":
        accepted = ", ".join(_fields(model, keys[:-1], content, chosen["loc"])) or "none"
        return NotAccepted(f"unknown key {keys[-1]}", accepted, ".".join(map(str, keys[:-1])))
    if kind == "value_error":
        refused = context["error"]
        if not isinstance(refused, NotAccepted):
            refused = NotAccepted(*str(refused).split("; accepted: ", 1))
        return NotAccepted(refused.found, refused.accepted, ".".join(filter(None, [key, refused.key])))
    if kind in _BOUNDS:
        name, word = _BOUNDS[kind]
        return NotAccepted(f"is {found}", f"{word} {context[name]:g}", key)
    if kind in ("literal_error", "enum", "union_tag_invalid"):
        if kind == "union_tag_invalid":
            key = ".".join(filter(None, [key, str(context["discriminator"]).strip("'")]))
            found = context["tag"]
        expected = str(context.get("expected") or context.get("expected_tags"))
        return NotAccepted(f"is {found!r}", expected.replace("'", "").replace(" or ", ", "), key)
    if kind == "union_tag_not_found":
        return NotAccepted(f"lacks {str(context['discriminator']).strip(chr(39))}", key=key)
    if kind in ("too_short", "string_too_short", "too_long", "string_too_long"):
        word, bound = ("at least", "min_length") if kind.endswith("short") else ("at most", "max_length")
        return NotAccepted(f"has {context.get('actual_length', len(found))}", f"{word} {context[bound]}", key)
    if kind == "string_pattern_mismatch":
        return NotAccepted(f"is {found!r}", f"text that matches {context['pattern']}", key)
    kinds = [row["type"] for row in complaints if _place(row, content) == keys]  # one for each branch of a union
    words = [word for kind in kinds for name, word in _KINDS.items() if kind.startswith(name)]
    accepted = " or ".join(dict.fromkeys(words)) or chosen["msg"]
    if words == ["a mapping"]:
        listed = found if isinstance(found, list) else ()
        names = [text for text in listed if isinstance(text, str) and text.isprintable()]
        if names or found is None:
            accepted += f", such as {{{', '.join(f'{name}: {{}}' for name in names)}}}"
    return NotAccepted(f"is {found!r}", accepted, key)


def _place(complaint: Mapping[str, Any], content: Any) -> tuple[str | int, ...]:
    """The keys that lead to what a complaint is about; of a missing key, those that lead to where it is missing."""
    keys: list[str | int] = []
    for part in complaint["loc"]:
        if isinstance(content, Mapping):
            if part not in content:  # the name of a union's branch, or the key that is missing
                continue
        elif not (isinstance(content, list | tuple) and isinstance(part, int) and part < len(content)):
            continue
        keys.append(part)
        content = content[part]
    return tuple(keys)


def _fields(
    model: type[BaseModel], keys: tuple[str | int, ...], content: Any, location: tuple[str | int, ...]
) -> list[str]:
    """The keys that are accepted at ``keys`` of ``content``; pydantic's ``location`` names branches of unions too."""
    models: list[type[BaseModel]] = [model]
    for part in keys:
        fields = [model.model_fields[str(part)] for model in models if str(part) in model.model_fields]
        kinds = [kind for field in fields for kind in (field.annotation, *field.metadata)]
        models = [inner for kind in kinds for inner in _models(kind)] or models
        content = content[part]
    fitting = [model for model in models if model.__name__ in location] or [
        model for model in models if _fits(model, content)
    ]
    return list(dict.fromkeys(name for model in fitting or models for name in model.model_fields))


def _models(annotation: Any) -> list[type[BaseModel]]:
    """The models that an annotation mentions, those of ``evals.core.record.partial`` among them."""
    if isinstance(annotation, type) and hasattr(annotation, "model_fields"):
        return [annotation]
    if hasattr(annotation, "records"):
        return [annotation.record]
    return [inner for part in get_args(annotation) for inner in _models(part)]


def _fits(model: type[BaseModel], content: Any) -> bool:
    """Return whether the fields of ``content`` that choose between models choose this one."""
    fields = {name: field.annotation for name, field in model.model_fields.items()}
    choices = {name: get_args(kind) for name, kind in fields.items() if get_origin(kind) is Literal}
    return all(content.get(name, values[0]) in values for name, values in choices.items())
