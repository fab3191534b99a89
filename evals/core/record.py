"""The base of all records: frozen, checked when they are read, and silent about pydantic."""

import json
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

import pydantic
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    PlainSerializer,
    ValidationError,
)

from evals.core.errors import NotAccepted, UserError, invalid_input
from evals.core.files import parse_json, read_json, read_lines


class Record(BaseModel):
    """A typed JSON object.

    Unknown keys are errors, whole numbers pass for numbers and nothing else is converted; infinities and NaN are
    refused.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        defer_build=True,  # a process uses a few of the many records that it imports
    )

    def check_whole(self) -> None:
        """Refuse what the kinds of the keys let pass, such as two keys that do not fit."""

    @pydantic.model_validator(mode="after")
    def _is_whole(self) -> Self:
        self.check_whole()
        return self

    @classmethod
    def parse(cls, content: Any, source: str, key: str = "") -> Self:
        """Read parsed JSON or YAML that stands under ``key`` of the file ``source``.

        What is not accepted is an :class:`InvalidInput`.
        """
        try:
            # As JSON, where a list may stand for a tuple and text for a path while numbers stay strict.
            return cls.model_validate_json(json.dumps(content, ensure_ascii=False).encode("utf-8"))
        except UnicodeEncodeError:  # half a surrogate pair, as a response may hold, which pydantic's JSON refuses
            try:
                return cls.model_validate(content)  # a list then stands for no tuple
            except ValidationError as error:
                raise invalid_input(error, cls, content, source, key) from None
        except ValidationError as error:
            raise invalid_input(error, cls, content, source, key) from None
        except TypeError as error:  # such as a date, which YAML has and JSON has not
            raise UserError(f"{source}: holds a value that JSON has not ({error})") from None

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a JSON file; errors as for :meth:`parse`, or the file is missing or is not JSON."""
        return cls.parse(read_json(path), str(path))

    def to_json(self) -> dict[str, Any]:
        """The JSON object, in the order of the fields."""
        return self.model_dump(mode="json")

    def identity(self) -> dict[str, Any]:
        """The JSON object without what is left at its default: a new field with a default changes no stored result."""
        return self.model_dump(mode="json", exclude_defaults=True)


class Settings(Record):
    """A mapping of a configuration file."""

    def to_json(self) -> dict[str, Any]:
        """The JSON object as the file has it, without the keys that it leaves out."""
        return self.model_dump(mode="json", exclude_unset=True)


def setting(description: str, default: Any = ..., **further: Any) -> Any:
    """Declare a key of the configuration: its sentence in the reference of all keys, and what it is if left out."""
    return Field(default, description=description, **further)


def absent() -> Any:
    """Declare a key that files leave out where it is None, as those from before there was such a key do."""
    return Field(default=None, exclude_if=lambda value: value is None)


def require(settings: Settings, keys: Iterable[str], key: str = "") -> None:
    """Check that ``settings``, which stand under ``key``, have ``keys``; null leaves one out."""
    stated = {name for name in settings.model_fields_set if getattr(settings, name) is not None}
    if lacking := [name for name in keys if name not in stated]:
        raise NotAccepted(f"lacks {', '.join(lacking)}", key=key)


R = TypeVar("R", bound=Record)


class ExtensibleRecord(Record):
    """A record of a file that other versions may have extended: unknown keys are passed over."""

    model_config = ConfigDict(extra="ignore")


def with_defaults(record: type[R], **defaults: Any) -> type[R]:
    """A record of the same fields, some of which have other defaults."""
    fields: dict[str, Any] = {
        name: (Annotated[field.annotation, *field.metadata], Field(default=value, description=field.description))
        for name, value in defaults.items()
        for field in [record.model_fields[name]]
    }
    return pydantic.create_model(record.__name__, __base__=record, __doc__=record.__doc__, **fields)


PARTIAL = "Partial"  # the beginning of the name of a record whose keys may all be left out


class partial:
    """The keys of records, each of which may be left out: ``Annotated[dict[str, Any], partial(Training)]``.

    Every key that is written is checked as the record checks it. The value stays the dictionary that was written, so
    that several can be merged before the whole is read as a record; rules between keys are checked then.
    """

    def __init__(self, *records: type[Record]) -> None:
        self.records = records

    @cached_property
    def record(self) -> type[Record]:
        """The record of the same keys with a default for each."""
        fields = {name: field for record in self.records for name, field in record.model_fields.items()}
        omittable: dict[str, Any] = {
            name: (
                Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation,
                Field(default=None if field.is_required() else field.default, description=field.description),
            )
            for name, field in fields.items()
        }
        common = next(
            base for base in self.records[0].__mro__ if all(issubclass(record, base) for record in self.records)
        )
        name, doc = f"{PARTIAL}{common.__name__}", common.__doc__
        return pydantic.create_model(name, __base__=Record, __doc__=doc, **omittable)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        written = AfterValidator(lambda given: given.model_dump(mode="json", exclude_unset=True))
        return handler.generate_schema(Annotated[self.record, written, PlainSerializer(lambda given: given)])


def read_rows(path: Path, kind: type[R]) -> list[R]:
    """Read a JSONL file of records; a line that is none is named."""
    return list(scan_rows(path, kind))


def scan_rows(path: Path, kind: type[R]) -> Iterator[R]:
    """Read the records of :func:`read_rows` one by one: samples can be longer than the memory."""
    return (_row(line, kind, where) for where, line in read_lines(path))


def _row(line: str, kind: type[R], where: str) -> R:
    try:
        return kind.model_validate_json(line)  # many times faster than by way of Python's objects
    except ValidationError:  # what is wrong, and what pydantic's JSON refuses without being wrong
        return kind.parse(parse_json(line, where), where)
