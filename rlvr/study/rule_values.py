"""The values of Snakemake's rules: settings one by one, checks of results, patterns of names, errors in one line."""

from __future__ import annotations

import contextlib
import inspect
import json
import logging
import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from evals.core.config.study import StudyConfig
from evals.core.errors import InvalidInput, UserError, counted
from evals.core.files import read_json, sha256_file
from evals.core.manifest import read_any_manifest
from evals.core.record import Record
from evals.core.records import read_runs
from evals.core.run_spec import Service
from rlvr.report.provenance import read_study

_OLDEST_RECORD = 6
"""The oldest form of Snakemake's records whose params it compares."""
NO_NAME = "(?!)"
"""The pattern that matches nothing."""
_MADE_FROM = re.compile(r"(.+)/(?:checkpoint/.+|(?:samples|grades)\.jsonl(?:\.bz2)?)|(.+/scores/.+)")
"""A file of a policy, of its samples or grades, in their directory; or a file of scores."""
_OF_WILDCARDS: Any = inspect.signature(lambda wildcards: None).parameters


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """End the process with one line where the user has made a mistake: Snakemake would add where its rule stands."""
    try:
        yield
    except UserError as error:
        sys.exit(f"error: {error}")


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


def one_of(names: Iterable[str]) -> str:
    """The pattern of some names."""
    return "|".join(map(re.escape, names)) or NO_NAME


def by_setting(settings: Callable[[Any], Mapping[str, Any] | Record], at_most: int) -> list[Callable[[Any], str]]:
    """Make the unnamed params of a rule: a text ``key: value`` for each setting that ``settings`` gives of wildcards.

    Snakemake compares the params of a job as a set of texts, so that its reasons name the settings that changed and no
    other. It compares no record (nor a path): a rule that takes one as a named param has its settings here as well.

    Args:
        at_most: the most settings that a job has; the others have empty texts, which add nothing to the set.
    """
    from snakemake.common import overwrite_function_params  # here: most who read this module start no Snakemake

    texts: dict[tuple[str, ...], list[str]] = {}

    def text(index: int, wildcards: Any) -> str:
        key = tuple(map(str, wildcards))
        if key not in texts:
            with one_line_errors():
                texts[key] = sorted(map(sys.intern, setting_texts(settings(wildcards))))  # many runs have the same
            if len(texts[key]) > at_most:
                raise ValueError(f"{len(texts[key])} settings, more than the {at_most} of the rule")
        return texts[key][index] if index < len(texts[key]) else ""

    # One more than there are settings: Snakemake's record of a job then has an empty text, whatever their number is.
    functions: list[Callable[[Any], str]] = [partial(text, index) for index in range(at_most + 1)]
    for function in functions:  # Snakemake asks three times a job what each takes, and would find it out each time
        overwrite_function_params(function, _OF_WILDCARDS)
    return functions


def setting_texts(settings: Mapping[str, Any] | Record, before: str = "") -> Iterator[str]:
    """Yield the settings within settings: a key in dots, and its value; what is left at its default is left out."""
    content = settings.identity() if isinstance(settings, Record) else settings
    for name, value in content.items():
        if isinstance(value, Mapping | Record) and (not isinstance(value, Mapping) or value):
            yield from setting_texts(value, f"{before}{name}.")
        else:
            yield f"{before}{name}: {json.dumps(value, ensure_ascii=False, default=_plain)}"


def _plain(value: Any) -> Any:
    """Turn a record, a mapping that is no dictionary, or a path into what JSON has."""
    if isinstance(value, Record):
        return value.identity()
    return dict(value) if isinstance(value, Mapping) else os.fspath(value)


def refuse_made_otherwise(
    workflow: Any,
    wildcards: Any,
    read: Sequence[str],
    output: Sequence[str],
    asked: Mapping[str, Any],
    may_be_left_out: Iterable[str],
    refused: list[str],
) -> str:
    """Refuse results that were made with other settings than are asked for, by the manifests beside them.

    Snakemake sees a changed setting by its own record of a job. Where it has none, or where another result was copied
    over the one of the record, it would keep what was made otherwise: this is a :class:`UserError` for the whole plan.

    Args:
        wildcards: of the job, as are the files that are ``read`` and those of ``output``.
        asked: the path of each result of a job -> the parameters that its manifest, or the file itself, should have. A
            value that takes a while is a function, which is called where the output is there.
        may_be_left_out: keys of parameters that may be left out on either side, where they have their defaults.
        refused: the files that the plan has refused so far.
    """
    for path in asked:
        removed = path if path in output else output[0]  # which stands for a policy's files on all benchmarks
        if not os.path.isfile(removed):
            continue
        fault = f"{path}: is missing, though {removed} is there"
        if os.path.isfile(path):
            fault = _fault(Path(path), asked[path], may_be_left_out)
        if fault and removed not in refused and not _makes_again(workflow, wildcards, list(read), list(output)):
            refused.append(removed)
            if len(refused) == 1:
                for job in workflow.dag.jobs:
                    _ = job.params  # which calls this function
                more = f"; refused, too: {counted(len(refused) - 1, 'other file')}" if len(refused) > 1 else ""
                accepted = f"without what follows, which makes it again: rm {shlex.join(refused)}"
                raise UserError(f"{fault}{more}; accepted: {accepted}")
    return ""


def _fault(path: Path, asked: Mapping[str, Any], may_be_left_out: Iterable[str]) -> str:
    """Say why a result is refused: what made it is other than ``asked``, or cannot be read; nothing if it is kept."""
    try:
        wanted = {key: value() if callable(value) else value for key, value in asked.items()}
        kept = {key: value for key, value in _made_with(path).items() if key in {*wanted, *may_be_left_out}}
    except UserError as error:
        return str(error)
    differences = sorted({*setting_texts(kept)} ^ {*setting_texts(wanted)})
    words = f"was made with other settings than the study asks ({', '.join(differences[:3])})"
    return f"{path}: {words}" if differences else ""


def _made_with(path: Path) -> dict[str, Any]:
    """Read what a result was made with: a study, the rows of a run sheet, or the parameters of a manifest beside it."""
    if path.name == "study.json":
        stated = {key: value for key, value in read_study(path).items() if value != []}  # as seeds of models alone
        return {"study": StudyConfig.parse(stated, str(path))}
    if path.name == "runs.json":
        return {"runs": {row.run: row for row in read_runs(path)}}
    manifest = read_any_manifest(path if path.name.endswith("manifest.json") else path.with_suffix(".manifest.json"))
    server = path.with_name("server.json")
    served = Service.parse(read_json(server), str(server)).identity() if server.name in manifest.outputs else {}
    made_from = dict.fromkeys(part[1] or part[2] for name in manifest.inputs if (part := _MADE_FROM.fullmatch(name)))
    sources = [of for name, of in manifest.inputs.items() if "/checkpoint/" not in name]
    return {**manifest.parameters, **served, "from": [*made_from], "sources": sources}


def _makes_again(workflow: Any, wildcards: Any, read: list[str], output: list[str]) -> bool:
    """Return whether Snakemake runs a job again for inputs or params, which it compares where all output has records.

    No public interface tells it (docs/architecture.md names the places that use Snakemake's insides).
    """
    kept, makers = workflow.persistence, [rule for rule in workflow.rules if rule.is_producer(output[0])]
    rule, files = next((rule, files) for rule in makers if (files := rule.expand_output(wildcards)[0]) == output)
    records = [kept.metadata(file) for file in files]
    if not all(record and record.record_format_version >= _OLDEST_RECORD for record in records):
        return False
    if any({*(record.input or [])} != {*read} for record in records):
        return True
    made = min(map(os.path.getmtime, filter(os.path.exists, files)), default=math.inf)
    digests = {file: digest for record in records for file, digest in (record.input_checksums or {}).items()}
    newer = [file for file in read if os.path.isfile(file) and os.path.getmtime(file) > made]
    if any(digests.get(file, "").removeprefix("sha256:") != sha256_file(Path(file)) for file in newer):
        return True
    takes = [len(inspect.signature(each).parameters) if callable(each) else 0 for each in rule.params]
    # A param that is made of inputs or outputs is not compared.
    now = [each(wildcards) if n else each for each, n in zip(rule.params, takes, strict=True) if n < 2]
    texts = {text for text in map(kept._serialize_param, now) if isinstance(text, str)}
    return any(record.params is not None and {*record.params} != texts for record in records)


def options(record: Record, kind: type[Record]) -> list[str]:
    """The options of a command that say what the fields of ``kind`` are in a record, beside their defaults."""
    words: list[str] = []
    for name, value in record.identity().items():
        if name in kind.model_fields:
            option = f"--{name.replace('_', '-')}"
            words += [option] if value is True else [option, str(value)]
    return words
