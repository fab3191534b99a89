"""The base of all stages: a frozen record of one job, which Snakemake plans by and a command carries out."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar

from evals.core.config.sections import StudyExecution
from evals.core.errors import InvalidInput, UserError
from evals.core.files import canonical_json, read_json, sha256_file, write_text
from evals.core.record import Record

JOBS = Path("results/jobs")
"""The directory of the files of jobs."""
_READ = "read"
File = Annotated[Path, _READ]
Files = Annotated[tuple[Path, ...], _READ]
FileByName = Annotated[dict[str, Path], _READ]
"""Files that a stage reads: it is made again when the bytes of one change."""
ASIDE = "aside"
"""Marks a field that changes no result: another value makes nothing again."""
_NAMES = re.compile(r"{(\w+)}")
KIND, MACHINE = "stage", "machine"
"""The keys of a job's file beside the fields of its stage."""

KINDS: dict[str, type[Stage]] = {}
"""Every kind of stage by its name."""


class Stage(Record):
    """One job of a study: its fields are the files that it reads and the settings that it is told.

    A subclass declares what all jobs of its kind share.

    Attributes:
        kind: the name of the kind, which is that of its Snakemake rule.
        outputs: the files that it writes, with the names of fields in braces. The first names log and job.
        target: what ``run`` writes to, in the same form; default: the first output.
        endings: of the outputs, where all of them begin with ``target``.
        call: ``module:function`` that makes it, given the fields by their names, ``constants`` and ``out``.
        constants: arguments of ``call`` that are the same for all jobs.
        unused: names of fields that ``call`` does not get: it finds these files by itself.
        module: of a cheap stage, the module whose edits make it again, with all that it imports.
        version: of what computes it; another version makes it again.
        templates: files of the report's templates that it is made from.
        cost: the file that Snakemake measures it into; empty: it is not measured.
        environment: ``training`` or ``sampling`` for jobs that may need verl or vLLM.
        order: of jobs that are ready those with the highest run first.
        threads_of: the key of `execution` that says its processors, for they decide how sums are rounded; empty: one.
        caption: of the first output in ``snakemake --report``: its file in workflow/report, and the category.
        decides: whether its result decides what else is made.
        is_local: whether Snakemake runs it beside itself on a cluster, for it takes no time.
    """

    kind: ClassVar[str] = ""
    outputs: ClassVar[tuple[str, ...]] = ()
    target: ClassVar[str] = ""
    endings: ClassVar[tuple[str, ...]] = ()
    call: ClassVar[str] = ""
    constants: ClassVar[Mapping[str, Any]] = {}
    unused: ClassVar[tuple[str, ...]] = ()
    module: ClassVar[str] = ""
    version: ClassVar[Any] = None
    templates: ClassVar[tuple[str, ...]] = ()
    cost: ClassVar[str] = ""
    environment: ClassVar[str] = ""
    order: ClassVar[float] = 0
    threads_of: ClassVar[str] = ""
    caption: ClassVar[tuple[str, str] | None] = None
    decides: ClassVar[bool] = False
    is_local: ClassVar[bool] = False

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        super().__pydantic_init_subclass__(**options)
        if cls.endings and "outputs" not in vars(cls):
            cls.outputs = tuple(cls.target + ending for ending in cls.endings)
        if cls.kind:
            KINDS[cls.kind] = cls

    # What Snakemake plans by

    def patterns(self) -> list[str]:
        """The outputs of its kind, with the names of wildcards in braces."""
        return list(self.outputs)

    @cached_property
    def wildcards(self) -> dict[str, str]:
        """The values of the wildcards in its outputs."""
        names = dict.fromkeys(_NAMES.findall(self.patterns()[0]))
        return {name: str(getattr(self, name)) for name in names}

    def paths(self) -> list[str]:
        """The files that it writes."""
        return [pattern.format(**self.wildcards) for pattern in self.patterns()]

    def inputs(self) -> list[str]:
        """The files that it reads."""
        return [str(path) for name in self._fields_of(_READ) for path in _paths(getattr(self, name))]

    def settings(self) -> dict[str, Any]:
        """What decides its result beside the bytes that it reads: a changed value makes it again."""
        left_out = {*self._fields_of(_READ), *self._fields_of(ASIDE), *self.wildcards}
        settings = self.model_dump(mode="json", exclude=left_out, exclude_defaults=True)
        versions = self.versions()
        return settings if versions is None else {**settings, "version": versions}

    def versions(self) -> Any:
        """The versions of everything that computes it."""
        return self.version

    @property
    def code(self) -> str:
        """The module whose edits make it again; empty where a version says that results changed."""
        return self.module

    def threads(self, machine: StudyExecution) -> int:
        """The processors that it takes."""
        return int(getattr(machine, self.threads_of)) if self.threads_of else 1

    def resources(self, machine: StudyExecution) -> dict[str, Any]:
        """What it needs of a machine beside processors."""
        return {}

    @property
    def priority(self) -> float:
        """The order among jobs that are ready: the highest first."""
        return self.order

    # How it is done

    @property
    def out(self) -> Path:
        """The path that it writes to."""
        return Path((self.target or self.patterns()[0]).format(**self.wildcards))

    def arguments(self) -> dict[str, Any]:
        """The arguments of ``call`` beside ``out``."""
        left_out = {*self.wildcards, *self.unused}
        fields = {name: getattr(self, name) for name in type(self).model_fields if name not in left_out}
        return {**fields, **self.constants}

    def run(self, machine: StudyExecution) -> None:
        """Carry it out; what the user can mend is a :class:`UserError`."""
        module, _, name = self.call.partition(":")
        getattr(import_module(module), name)(**self.arguments(), out=self.out)

    # Its file

    @property
    def job(self) -> str:
        """The name of its file and its log, below results/jobs and results/logs: that of its first output."""
        return (
            Path(self.patterns()[0].removeprefix("results/").removesuffix("/manifest.json")).with_suffix("").as_posix()
        )

    @property
    def job_file(self) -> Path:
        """The path of its file, from the directory of the study."""
        return JOBS / f"{self.job.format(**self.wildcards)}.json"

    def write(self, path: Path, machine: StudyExecution) -> None:
        """Write the file of this job, unless it is there and says the same."""
        content = {KIND: self.kind, **self.model_dump(mode="json", exclude_defaults=True), MACHINE: machine.to_json()}
        text = canonical_json(content)
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            self._keep_origin()
            write_text(path, text)

    @staticmethod
    def read(path: Path) -> tuple[Stage, StudyExecution]:  # type: ignore[override]
        """Read the file of a job; a mistake in it is a :class:`UserError`."""
        content = read_json(path)
        if not isinstance(content, dict) or not isinstance(kind := content.pop(KIND, None), str) or kind not in KINDS:
            raise InvalidInput(str(path), KIND, "is not the name of a stage", ", ".join(sorted(KINDS)))
        machine = StudyExecution.parse(content.pop(MACHINE, None), f"{path}: {MACHINE}")
        return KINDS[kind].parse(content, str(path)), machine

    # What its outputs were made with

    def origin(self) -> dict[str, Any]:
        """Collect the settings and results that decide its outputs; other files that it reads may lie anywhere."""
        results = sorted(path for path in self.inputs() if not os.path.isabs(path))
        return {"settings": json.loads(canonical_json(self.settings())), "inputs": results}

    def write_note(self) -> None:
        """Note what its outputs, which are complete, were made with; another plan changes its file and not this."""
        note = Note(**self.origin(), output=sha256_file(Path(self.paths()[0])))
        write_text(self._note, canonical_json(note.to_json()))

    def made_with(self) -> dict[str, Any] | None:
        """Read what its outputs were made with; None if nothing says it."""
        if (note := self._read_note()) is not None:
            return note.to_json()
        # They were made by hand, by a job that was killed before its note, or before there were notes.
        return None if (stage := self._read_file()) is None else stage.origin()

    @property
    def _note(self) -> Path:
        return self.job_file.with_suffix(".made")

    def _read_note(self) -> Note | None:
        """Read the note; None if there is none of the output that lies there now."""
        note = Note.read(self._note) if self._note.exists() else None
        return note if note is not None and note.output == sha256_file(Path(self.paths()[0])) else None

    def _read_file(self) -> Stage | None:
        """Read the file of this job; None if there is none, or one of another version of the project."""
        with contextlib.suppress(UserError):
            return self.read(self.job_file)[0]
        return None

    def _keep_origin(self) -> None:
        """Note what outputs without a note were made with, before another plan changes their job's file."""
        if os.path.exists(self.paths()[0]) and self._read_note() is None:
            before = self._read_file()
            if before is not None and before.origin() != self.origin():
                before.write_note()

    @classmethod
    def _fields_of(cls, role: str) -> list[str]:
        return [name for name, field in cls.model_fields.items() if role in field.metadata]


class Note(Record):
    """The settings and results that the outputs of a stage were made with, and the hash of the first output.

    By the hash a note is of the outputs that lie there, and not of others that were made since by hand, or by a job
    that was killed before its note.
    """

    settings: dict[str, Any]
    inputs: list[str]
    output: str


def _paths(value: Any) -> Iterator[Path]:
    if isinstance(value, Path):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _paths(part)
    elif isinstance(value, Iterable) and not isinstance(value, str):
        for part in value:
            yield from _paths(part)
