"""The jobs that Snakemake plans for a study, by their rules and wildcards, such as ``train tiny-dapo-s1``."""

import copy
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snakemake.api import SnakemakeApi
from snakemake.settings.types import ConfigSettings, DAGSettings, OutputSettings, Quietness, ResourceSettings

from rlvr.study.source_files import REPOSITORY
from rlvr.study.studies import Studies
from rlvr.study.study_file import read_study_file


@dataclass(frozen=True)
class Job:
    """A planned job.

    Attributes:
        settings: the texts that make it again when they change.
        params: the named params of its rule.
    """

    rule: str
    inputs: list[str]
    outputs: list[str]
    settings: set[str]
    params: dict[str, Any]
    priority: float
    resources: dict[str, Any]

    @property
    def content(self) -> Any:
        """The run.json of a training job."""
        return json.loads(self.params["content"])


def jobs_of(content: Mapping[str, Any] | Studies, *targets: str) -> dict[str, Job]:
    """Plan a study in an empty directory, without running anything; the main study's folder is left out of names."""
    if isinstance(content, Studies):
        content = content._content
    jobs: dict[str, Job] = {}
    with (
        tempfile.TemporaryDirectory() as name,
        _inside(Path(name)),
        SnakemakeApi(OutputSettings(quiet={Quietness.ALL}, dryrun=True)) as api,
    ):
        Path("study.json").write_text(json.dumps(content))
        workflow = api.workflow(
            resource_settings=ResourceSettings(cores=1),
            config_settings=ConfigSettings(configfiles=[Path("study.json")]),
            snakefile=REPOSITORY / "Snakefile",
        )
        dag = workflow.dag(DAGSettings(targets=set(targets)))
        dag.execute_workflow(executor="dryrun")
        for job in workflow._workflow.dag.jobs:
            words = [job.rule.name, *filter(None, job.wildcards)]
            named = {key: value for key, value in job.params.items()}
            unnamed = {str(text) for text in job.non_derived_params if isinstance(text, str)}
            unnamed |= {f"{key}: {value!r}" for key, value in named.items() if value in job.non_derived_params}
            jobs[" ".join(words)] = Job(
                job.rule.name,
                [str(path) for path in job.input],
                [str(path) for path in job.output],
                unnamed - {""},
                named,
                job.priority,
                dict(job.resources.items()),
            )
    return jobs


@contextmanager
def _inside(directory: Path) -> Iterator[None]:
    before, environment = Path.cwd(), dict(os.environ)
    os.chdir(directory)
    try:
        yield
    finally:
        os.chdir(before)
        os.environ.clear()
        os.environ.update(environment)


def study_with(name: str, **changes: Any) -> dict[str, Any]:
    """A study of config/ with other sections, or without those that are None."""
    content = {**read_study_file(REPOSITORY / "config" / name), **changes}
    return {key: value for key, value in content.items() if value is not None}


REMOVED = object()
"""The value of a key that :func:`replaced` takes out."""


def replaced(content: Mapping[str, Any], dotted: str, value: Any) -> dict[str, Any]:
    """A copy of a study with the value under a dotted key replaced."""
    copied: dict[str, Any] = copy.deepcopy(dict(content))
    *parents, key = dotted.split(".")
    section = copied
    for parent in parents:
        section = section.setdefault(parent, {})
    section[key] = value
    if value is REMOVED:
        del section[key]
    return copied


def changed(content: Mapping[str, Any], dotted: str, value: Any) -> Studies:
    """A study with the value under a dotted key replaced, and those beside it."""
    return Studies(replaced(content, dotted, value), "config/changed.yaml")


def remade(before: Mapping[str, Job], after: Mapping[str, Job]) -> set[str]:
    """The jobs of both plans that one of them would make again: other settings or inputs."""
    return {name for name in before.keys() & after.keys() if identity(before[name]) != identity(after[name])}


def identity(job: Job) -> tuple[Any, ...]:
    """What decides whether a job is made again."""
    return job.settings, job.inputs, job.outputs
