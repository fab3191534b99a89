"""The kinds of texts and lists that records hold."""

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue

from evals.core.errors import NotAccepted
from evals.core.numbers import Index

PLACEHOLDER = "{problem}"  # the place of the problem's text in a prompt


@dataclass(frozen=True)
class Matching:
    """Accepts text that matches ``pattern`` as a whole; ``accepted`` says so in words."""

    pattern: str
    accepted: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        check = {"type": "no-info", "function": self._check}  # after those that stand before it
        return {"type": "function-after", "function": check, "schema": handler(source)}

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {**handler(schema), "pattern": f"^{self.pattern}$", "x-accepted": self.accepted}

    def _check(self, text: str) -> str:
        if not re.fullmatch(self.pattern, text):
            raise NotAccepted(f"is {text!r}", self.accepted)
        return text


def _without_repeats(items: tuple[Any, ...]) -> tuple[Any, ...]:
    if twice := [item for number, item in enumerate(items) if item in items[:number]]:
        raise NotAccepted(f"has {twice[0]} twice", "each value once")
    return items


UNIQUE = (
    AfterValidator(_without_repeats),
    Field(json_schema_extra={"uniqueItems": True}),
)  # accepts a list in which nothing stands twice


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
OtherExtraction = Annotated[Literal["last_statement"] | None, Field(exclude_if=lambda extraction: extraction is None)]
"""The extraction that responses were graded by, if not by what they mark alone; files leave it out where it is None."""
