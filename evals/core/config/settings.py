"""The base of all configuration records, and the kinds of values that their keys have."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from types import NoneType
from typing import Annotated, Any, TypeVar, Union, get_args

from pydantic import AfterValidator, Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue

from evals.core.errors import NotAccepted
from evals.core.numbers import Index
from evals.core.record import Record
from evals.core.run_spec import PLACEHOLDER

T = TypeVar("T")


class Settings(Record):
    """A mapping of a configuration file."""

    def to_json(self) -> dict[str, Any]:
        """The JSON object as the file has it, without the keys that it leaves out."""
        return self.model_dump(mode="json", exclude_unset=True)


class _NotNull:
    """A key that can be left out, but not be null: an empty value is a mistake, and not a choice."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> Any:
        kinds = tuple(kind for kind in get_args(source) if kind is not NoneType)
        return handler.generate_schema(Union[kinds])  # noqa: UP007  (built at run time)


Omittable = Annotated[T | None, _NotNull]
"""A key that can be left out; None stands for a key that is not there."""


def optional(description: str) -> Any:
    """Describe a key that can be left out."""
    return Field(default=None, description=description)


@dataclass(frozen=True)
class Matching:
    """Accepts text that matches ``pattern`` as a whole; ``accepted`` says so in words."""

    pattern: str
    accepted: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        return handler.generate_schema(Annotated[source, AfterValidator(self._check)])

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {**handler(schema), "pattern": f"^{self.pattern}$", "x-accepted": self.accepted}

    def _check(self, text: str) -> str:
        if not re.fullmatch(self.pattern, text):
            raise NotAccepted(f"is {text!r}", self.accepted)
        return text


class _UniqueItems:
    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {**handler(schema), "uniqueItems": True}


def _each_once(items: tuple[Any, ...]) -> tuple[Any, ...]:
    if twice := [item for place, item in enumerate(items) if item in items[:place]]:
        raise NotAccepted(f"has {twice[0]} twice", "each value once")
    return items


UNIQUE = (AfterValidator(_each_once), _UniqueItems())
"""Accepts a list in which nothing stands twice."""


def _not_base(name: str) -> str:
    if name == "base":
        raise NotAccepted("is 'base', the name of the model before training", "another name")
    return name


Name = Annotated[str, Matching("[a-z0-9_]{1,64}", "a name of a to z, 0 to 9 and _, at most 64 of them")]
MethodName = Annotated[Name, AfterValidator(_not_base)]
Text = Annotated[str, Field(min_length=1)]
Title = Annotated[
    str,
    Matching(
        r"[^\s=+@<>-][^<>\x00-\x1f\x7f]{0,199}",
        "a line of at most 200 characters, without < and >, that does not begin with =, +, - or @",
    ),
]
"""Text that stands in tables, where a browser or a spreadsheet must not take it for anything else."""
Prompt = Annotated[
    str,
    Matching(r"(?:(?!\{problem\})[\s\S])*\{problem\}(?:(?!\{problem\})[\s\S])*", f"text with {PLACEHOLDER} in it once"),
]
Repository = Annotated[str, Matching(r"[^/\s]+/[^/\s]+", "OWNER/NAME")]
Commit = Annotated[str, Matching("[0-9a-f]{40}", "the 40 hexadecimal digits of a commit")]
Sha256 = Annotated[str, Matching("[0-9a-f]{64}", "64 hexadecimal digits")]
Arxiv = Annotated[str, Matching(r"[0-9]{4}\.[0-9]{5}", "an arXiv identifier such as 2503.14476")]
Seeds = Annotated[tuple[Index, ...], Field(min_length=1), *UNIQUE]


def require(settings: Settings, keys: Iterable[str], key: str = "") -> None:
    """Check that ``settings``, which stand under ``key``, have ``keys``."""
    if lacking := [each for each in keys if each not in settings.model_fields_set]:
        raise NotAccepted(f"lacks {', '.join(lacking)}", key=key)
