"""The jobs of an invocation as Snakemake's rules need them: one rule a kind of stage, made in a loop."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from threading import Event
from typing import Any

from evals.core.config.sections import StudyExecution
from evals.core.errors import InvalidInput, UserError
from rlvr.runs.termination import SNAKEMAKE
from rlvr.stages.models import ImportModel
from rlvr.stages.stage import JOBS, Stage
from rlvr.study.source_files import REPOSITORY, as_input, code_of

RESOURCES = ("nodes", "gpu", "gres", "ray_cluster")
"""What a stage may need of a machine beside processors."""
_CLOCK_SECONDS = 10.0
_REPORT_TEMPLATES = REPOSITORY / "rlvr/report/templates"


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """End the process with one line where the user has made a mistake: Snakemake would add where its rule stands."""
    try:
        yield
    except UserError as error:
        sys.exit(f"error: {error}")


def given(function: Callable[[], Any]) -> Callable[[Any], Any]:
    """Make an input function of a rule without wildcards, which is called when the rule is asked for."""

    def of_wildcards(_wildcards: Any) -> Any:
        with one_line_errors():
            return function()

    return of_wildcards


@dataclass(frozen=True)
class Kind:
    """All stages of one kind, with the values of their rule.

    Attributes:
        planned: the keys of the stages that Snakemake has asked for.
        has_started: whether jobs run. Then each planned stage needs its file.
    """

    stages: dict[tuple[str, ...], Stage]
    machine: StudyExecution
    has_started: Event
    planned: set[tuple[str, ...]] = field(default_factory=set)

    @property
    def any(self) -> Stage:
        """A stage of the kind: what its class says is the same for all."""
        return next(iter(self.stages.values()))

    def become(self, other: Kind) -> None:
        """Take over the stages of another plan."""
        self.stages.clear()
        self.stages.update(other.stages)
        vars(self).pop("_settings", None)
        if self.has_started.is_set():
            self.write_planned()

    def write_planned(self) -> None:
        """Write the files of the planned stages, from which they are carried out."""
        for key in self.planned & self.stages.keys():
            self.stages[key].write(self.stages[key].job_file, self.machine)

    @property
    def name(self) -> str:
        """The name of its rule."""
        return self.any.kind

    @cached_property
    def wildcards(self) -> dict[str, str]:
        """The pattern of each wildcard: the values that it has."""
        names = self.any.wildcards
        values = {name: dict.fromkeys(stage.wildcards[name] for stage in self.stages.values()) for name in names}
        return {name: alternatives(of_name) for name, of_name in values.items()}

    def outputs(self, report: Callable[..., Any], directory: Callable[[str], Any]) -> list[Any]:
        """The rule's outputs; the first one stands in Snakemake's report, if the stage has a caption."""
        first, *rest = self.any.patterns()
        if (caption := self.any.caption) is not None:
            first = report(first, caption=f"workflow/report/{caption[0]}", category=caption[1])
        return [first, *(directory(path.rstrip("/")) if path.endswith("/") else path for path in rest)]

    @property
    def log(self) -> str:
        """The rule's log."""
        return f"results/logs/{self.any.job}.log"

    def of(self, value: Callable[[Stage], Any]) -> Callable[[Any], Any]:
        """Make a function of a rule's wildcards from one of its stage."""

        def of_wildcards(wildcards: Any) -> Any:
            with one_line_errors():
                stage = self.find(wildcards)
                of_stage = value(stage)  # first: it may ask what the file says that is there
                self._note(stage)
                return of_stage

        return of_wildcards

    def params(self) -> dict[str, Callable[[Any], Any]]:
        """The job's file, and one parameter for each setting, as ``key: value``.

        Snakemake compares the parameters as a set, so its reasons name what changed and no more. For a setting that
        only other stages of the kind have, the job's file stands again, which adds nothing to the set.
        """
        keys = dict.fromkeys(key for settings in self._settings.values() for key in settings)
        job_file = self.of(lambda stage: str(stage.job_file))
        return {"job": job_file, **{f"setting_{index}": self._setting(key) for index, key in enumerate(keys)}}

    def _setting(self, key: str) -> Callable[[Any], Any]:
        return self.of(lambda stage: self._settings[id(stage)].get(key, str(stage.job_file)))

    @cached_property
    def _settings(self) -> dict[int, dict[str, str]]:
        return {id(stage): dict(settings_by_key(stage.settings())) for stage in self.stages.values()}

    def find(self, wildcards: Any) -> Stage:
        """Find the stage that has these values of wildcards; a :class:`UserError` if none has."""
        key = tuple(str(getattr(wildcards, name)) for name in self.any.wildcards)
        if key not in self.stages:
            raise UserError(f"{self.name} {' '.join(key)}: no study has this")
        return self.stages[key]

    def _note(self, stage: Stage) -> None:
        """Note that Snakemake plans a stage; once jobs run, write its file."""
        key = tuple(stage.wildcards.values())
        if key not in self.planned:
            self.planned.add(key)
            if self.has_started.is_set():
                stage.write(stage.job_file, self.machine)

    def resource(self, name: str) -> Callable[[Any], Any]:
        """Make the function of a resource."""
        return self.of(
            lambda stage: stage.resources(self.machine).get(name, "" if name == "gres" else int(name == "nodes"))
        )


def alternatives(values: Iterable[str]) -> str:
    """The pattern of one value or more, never an empty one: that would be none to Snakemake.

    The seeds of a method stand together, for Snakemake compiles the pattern hundreds of times.
    """
    endings: dict[str, list[str]] = {}
    for value in values:
        beginning, dash, ending = value.rpartition("-")
        endings.setdefault(beginning + dash, []).append(re.escape(ending))
    return "|".join(f"{re.escape(beginning)}(?:{'|'.join(of)})" for beginning, of in endings.items())


def settings_by_key(settings: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Yield the settings within settings: a key in dots, and ``key: value``."""
    for name, value in settings.items():
        key = f"{before}{name}"
        if isinstance(value, Mapping) and value:
            yield from settings_by_key(value, f"{key}.")
        else:
            yield key, f"{key}: {json.dumps(value, ensure_ascii=False)}"


def set_job_environment() -> None:
    """Let jobs know this process and find this ``python``, and let other Pythons, such as vLLM's, find our packages."""
    os.environ[SNAKEMAKE] = str(os.getpid())
    os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), *os.get_exec_path()])
    os.environ["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])


def name_targets(rules: Iterable[Any], log: logging.Logger) -> None:
    """Let Snakemake's complaint about an unknown target name those that there are.

    Args:
        rules: Snakemake's rules.
        log: where Snakemake writes its messages.
    """
    names = ", ".join(rule.name for rule in rules if not rule.output and not rule.has_wildcards())

    def explain(record: logging.LogRecord) -> bool:
        unknown = re.match(r"MissingRuleException:\nNo rule to produce (\w+) ", str(record.msg))
        if unknown:
            record.msg = f"error: {InvalidInput('target', '', f'is {unknown[1]!r}', names)}"
        return True

    log.addFilter(explain)


@dataclass(frozen=True)
class Jobs:
    """The stages of an invocation, by kind; ``has_started`` says whether jobs run."""

    stages: list[Stage]
    machine: StudyExecution
    has_started: Event = field(default_factory=Event)

    def become(self, stages: Sequence[Stage]) -> None:
        """Replace the stages, after a look has decided what is left: rules keep their kinds, which get other stages."""
        self.stages[:] = stages
        vars(self).pop("_by_output", None)
        anew = {kind.name: kind for kind in Jobs(list(stages), self.machine).kinds}
        for kind in self.kinds:
            if kind.name in anew:
                kind.become(anew[kind.name])

    @cached_property
    def kinds(self) -> list[Kind]:
        """The kinds that have a stage, in the order of the plan."""
        kinds: dict[str, dict[tuple[str, ...], Stage]] = {}
        for stage in self.stages:
            kinds.setdefault(stage.kind, {})[tuple(stage.wildcards.values())] = stage
        return [Kind(stages, self.machine, self.has_started) for stages in kinds.values()]

    @cached_property
    def _by_output(self) -> dict[str, Stage]:
        return {path: stage for stage in self.stages for path in stage.paths()}

    def needed(self, files: Iterable[str | Path]) -> list[str]:
        """The files, and every output on the way to them.

        Snakemake does not make a lost file again while the table made from it is there. So targets list them all.
        """
        stages: dict[int, Stage] = {}
        waiting = [str(file) for file in files]
        while waiting:
            stage = self._by_output.get(waiting.pop())
            if stage is not None and id(stage) not in stages:
                stages[id(stage)] = stage
                waiting += stage.inputs()
        return [path for stage in stages.values() for path in stage.paths() if not path.endswith("/")]

    def require_past(self) -> None:
        """Refuse files that were written after now, as where a clock was set back.

        Snakemake would carry a job out, and delete its outputs, for they are older than what they were made from.
        """
        files = {path for stage in self.stages for path in (*inputs(stage), *stage.paths())}
        latest = time.time() + _CLOCK_SECONDS
        late = [Path(path) for path in files if os.path.isfile(path) and os.path.getmtime(path) > latest]
        if late:
            last = time.strftime("%Y-%m-%d %H:%M", time.localtime(max(path.stat().st_mtime for path in late)))
            directories = {REPOSITORY if path.is_absolute() else Path(path.parts[0]).absolute() for path in late}
            cure = f"find {shlex.join(map(str, sorted(directories)))} -newermt now -exec touch {{}} +"
            complaint = (
                f"{len(late)} files are of the future, such as {min(late)}, up to {last}: was the clock set back?"
            )
            raise UserError(f"{complaint} Set it, or date them now, which makes nothing again: {cure}")

    def measured(self, wanted: bool) -> list[Kind]:
        """The kinds whose cost is measured, or the others but for those that decide."""
        return [kind for kind in self.kinds if bool(kind.any.cost) == wanted and not kind.any.decides]

    @property
    def deciding(self) -> list[Kind]:
        """The kinds whose result decides what else is made."""
        return [kind for kind in self.kinds if kind.any.decides]

    def start(self) -> None:
        """Write the files of the stages that Snakemake has asked for. Those that it asks for later are written then."""
        self.has_started.set()
        for kind in self.kinds:
            kind.write_planned()

    def write(self, directory: Path) -> None:
        """Write the file of every job, from which it can be carried out by hand."""
        for stage in self.stages:
            stage.write(directory / stage.job_file.relative_to(JOBS), self.machine)


def inputs(stage: Stage, missing: Mapping[str, str] = {}, only_planning: bool = True) -> list[str]:
    """The files that make a stage again when they change: what it reads, and the sources and templates of cheap ones.

    Of a model that is ``missing`` a plan says so; before the first job it is a :class:`UserError`.
    """
    if isinstance(stage, ImportModel) and stage.model in missing:
        if not only_planning:
            raise UserError(missing[stage.model])
        print(f"not here yet: {missing[stage.model]}", file=sys.stderr)
    templates = [as_input(_REPORT_TEMPLATES / name) for name in stage.templates]
    return [*stage.inputs(), *(code_of(stage.code) if stage.code else ()), *templates]
