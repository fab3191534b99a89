"""Snakemake's command line in a fork of this process: loading Snakemake anew takes longer than most dry-runs."""

import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import snakemake.cli

_OURS = ("rlvr", "evals", "snakemake_logger_plugin_rlvr", "rlvr_claims")


def run_in_fork(
    arguments: Sequence[str], directory: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Do what ``snakemake ARGUMENTS`` does in ``directory``, with the code that ``PYTHONPATH`` names.

    For what starts no jobs: a job's process starts Snakemake again by the command line of this one.
    """
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        child = os.fork()
        if child == 0:
            _run_and_exit(list(arguments), directory, environment, output, errors)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said = []
        for file in (output, errors):
            file.seek(0)
            said.append(file.read())
    return subprocess.CompletedProcess(["snakemake", *arguments], code, *said)


def _run_and_exit(
    arguments: list[str], directory: Path, environment: Mapping[str, str], output: IO[str], errors: IO[str]
) -> None:
    """Become the process that ``python -m snakemake`` would be; does not return."""
    code = 1
    try:
        os.dup2(output.fileno(), 1)
        os.dup2(errors.fileno(), 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        os.chdir(directory)
        os.environ.clear()
        os.environ.update(environment)
        sys.path[:0] = environment["PYTHONPATH"].split(os.pathsep)
        for name in [name for name in sys.modules if name.split(".")[0] in _OURS]:
            del sys.modules[name]
        sys.argv = ["snakemake", *arguments]
        snakemake.cli.main(arguments)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        code = 0 if end.code is None else code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
