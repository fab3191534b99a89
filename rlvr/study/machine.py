"""What a study needs of the machine that it is run on: files, a sandbox, and the software of jobs with verl or vLLM."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from evals.core.config.base_models import Existing
from evals.core.errors import UserError, counted, printable
from evals.core.run_spec import VERL
from evals.grading.code.sandbox import require_sandbox
from evals.grading.code.verifier import read_verifier
from evals.grading.verdict import CODE
from rlvr.runs.job import SNAKEMAKE
from rlvr.study.benchmarks import absolute_path
from rlvr.study.source_files import REPOSITORY
from rlvr.study.study import OF_PROBLEMS, Study

_ENVIRONMENTS = REPOSITORY / "workflow" / "envs"
CONTAINER = _ENVIRONMENTS / "verl.sif"  # has vLLM too
_CLOCK_SECONDS = 10.0
_PYTHONS_DIRECTORY = os.path.dirname(sys.executable)


def check_machine(study: Study) -> None:
    """Check the files and the sandbox that a study needs: better said now than after the training."""
    sets = {"problems": study.training_settings, **study.solution_settings}
    copies = [(name, benchmark.path) for name, benchmark in study.benchmarks.items()]
    copies += [(name, settings.get("path")) for name, settings in sets.items()]
    for name, path in copies:
        if path is not None and not Path(path).exists():
            raise UserError(f"{name}: path: {path}: no such file or directory")
    for name, model in study.fine_tuned_models.items():
        for solutions in model.named_solutions:
            if isinstance(solutions, str) and solutions != OF_PROBLEMS and not Path(absolute_path(solutions)).is_file():
                raise UserError(f"models.{name}.solutions: {solutions}: no such file")
    for name, benchmark in study.benchmarks.items():
        if benchmark.grader == CODE or name in study.verifiers:
            try:
                require_sandbox()
            except UserError as error:
                raise UserError(f"benchmark {name}: {error}") from None
    for path in study.verifiers.values():
        read_verifier(Path(path))
        require_sandbox()


def files_of(path: str | None) -> list[str]:
    """The files of a local copy, whose changes count; none where nothing is copied."""
    if path is None:
        return []
    return sorted(map(str, [Path(path)] if Path(path).is_file() else Path(path).rglob("*.*")))


def model_files(key: str, model: Existing, may_be_missing: bool) -> list[str]:
    """The files of a local checkpoint: with one of them changed, it is imported and sampled again.

    One that is not there is a :class:`UserError`, or is only said where a study is planned far from where it is.
    """
    if model.path is None:
        return []
    directory = Path(absolute_path(model.path))
    if not directory.is_dir():
        message = f"{key}.path: {model.path}: no such directory"
        if not may_be_missing:
            raise UserError(message)
        print(printable(f"not here yet: {message}"), file=sys.stderr)
    kinds = ("*.safetensors", "*.json", "*.jinja")
    return sorted(str(file) for kind in kinds for file in directory.glob(kind))


def set_job_environment() -> None:
    """Let jobs know this process and find this ``python``, and other Pythons, such as vLLM's, find our packages.

    None imports a module from the study's directory, where it works, and which may come from anybody.
    """
    os.environ[SNAKEMAKE] = str(os.getpid())
    os.environ["PATH"] = os.pathsep.join([_PYTHONS_DIRECTORY, *os.get_exec_path()])
    if shlex.quote(sys.executable) != sys.executable:  # Snakemake gives it to a shell as it is
        sys.executable = os.path.basename(sys.executable)
    paths = filter(os.path.isabs, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    os.environ |= {"PYTHONPATH": os.pathsep.join([str(REPOSITORY), *paths]), "PYTHONSAFEPATH": "1"}


class Software(NamedTuple):
    """The Python of a kind of job, and the values of its rule's ``conda`` and ``container``."""

    python: str
    conda: str | Callable[[Any], None]
    container: str | None = None


# A function, which Snakemake takes for a decision: `snakemake --lint` asks every rule for one.
OURS = Software("python", lambda wildcards: None)
"""The environment that Snakemake itself runs in, which has to have our packages anyway."""


def software(study: Study, job: str) -> Software:
    """The software of jobs that may need verl or vLLM: of ``training``, or of ``sampling``.

    A Python that the study names by its path comes before what ``--sdm`` brings. In a study by verl, vLLM is verl's.
    verl has a Python of its own, which the training command starts.
    """
    by_verl = study.engine == VERL
    by_vllm = study.config.samples_rollouts_by_vllm if job == "training" else study.config.evaluation.backend == "vllm"
    key = f"{job}_python"
    python = getattr(study.config.execution, key) or "python"
    is_path = "/" in python  # else on the PATH
    needs_another = by_vllm or (by_verl and job == "training")
    environment = "verl.yaml" if by_verl else "vllm.yaml"
    brought = (str(_ENVIRONMENTS / environment), str(CONTAINER)) if needs_another and not is_path else OURS[1:]
    if job == "training" and by_verl:
        return Software("python", *brought)
    if is_path:
        path = REPOSITORY / Path(python).expanduser()
        if not path.is_file():
            raise UserError(f"execution.{key}: {python}: no such file; `make test-engines` makes .venv-engines")
        python = shlex.quote(str(path))
    return Software(python, *brought)


def name_environments(rules: Iterable[Any]) -> None:
    """Let rules that name no environment run where Snakemake does: `snakemake --lint` asks each to decide."""
    for rule in rules:
        rule.conda_env = rule.conda_env or OURS.conda


def require_container(asked: Iterable[Any], softwares: Iterable[Software]) -> None:
    """Refuse ``--sdm apptainer`` where jobs need a container that is not there.

    Args:
        asked: the methods of deployment that Snakemake was asked for.
    """
    names = {getattr(method, "name", "") for method in asked}
    if "APPTAINER" in names and any(software.container for software in softwares) and not CONTAINER.exists():
        recipe = _ENVIRONMENTS / "verl.dockerfile"
        raise UserError(f"--sdm apptainer: {CONTAINER}: no such container; {recipe} says how to make it")


def require_clone() -> None:
    """Refuse ``--archive`` in another directory: Snakemake would leave out the workflow, which is not below it."""
    if any(word.partition("=")[0] == "--archive" for word in sys.argv) and Path.cwd() != REPOSITORY:
        raise UserError(f"--archive: {Path.cwd()} has no workflow; archive in {REPOSITORY}, without --directory")


def require_own_paths(modifier: Any) -> None:
    """Refuse the ``prefix`` of a module: what rules call names files below results/ too, and would mix studies."""
    if any(modifier.replace_prefix(path) != path for path in ("results/runs/x", "results/tables/x")):
        complaint = "results lie in results/ of the directory alone"
        raise UserError(f"module: prefix or replace_prefix: {complaint}; accepted: a module without it")


def require_past(files: Iterable[str]) -> None:
    """Refuse files that were written after now, as where a clock was set back.

    Snakemake would carry a job out, and delete its outputs, for they are older than what they were made from.
    """
    late = {path: path.stat().st_mtime for path in map(Path, files) if path.is_file()}
    late = {path: written for path, written in late.items() if written > time.time() + _CLOCK_SECONDS}
    if late:
        last = time.strftime("%Y-%m-%d %H:%M", time.localtime(max(late.values())))
        directories = {REPOSITORY if path.is_absolute() else Path(path.parts[0]).absolute() for path in late}
        raise UserError(
            f"{counted(len(late), 'file')} of the future, such as {min(late)}, up to {last}: was the clock set back? "
            "Set it, or set the files' times to now, by which nothing is computed again: "
            f"find {shlex.join(map(str, sorted(directories)))} -newermt now -exec touch {{}} +"
        )


def require_records(directory: Path) -> None:
    """Refuse a directory where Snakemake has its record of a file: it would end in a traceback.

    Records of long paths lie in directories of their own, whose names begin with @.
    """
    entries = os.scandir(directory) if directory.is_dir() else ()
    broken = [entry.path for entry in entries if entry.is_dir() and not entry.name.startswith("@")]
    if broken:
        accepted = "without it, where the file is made again if its settings changed"
        raise UserError(f"{min(broken)}: is a directory, and no record of Snakemake; accepted: {accepted}")
