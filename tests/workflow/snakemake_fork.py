"""Snakemake's command line in a fork of a process that has loaded it: to load it anew takes longer than a dry run."""

import contextlib
import multiprocessing
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

_OURS = ("rlvr", "evals", "snakemake_logger_plugin_rlvr", "rlvr_claims")
# A process without threads is forked: a fork of the tests' own, after torch has started threads, may wait for ever.
_SERVER = multiprocessing.get_context("forkserver")
# A dry run imports these too, which takes half a second.
_LATER = ("scipy.optimize", "scipy.special", "smart_open", "nbformat", "jinja2", "rich.console")
_SERVER.set_forkserver_preload(["snakemake.cli", *_LATER])


def run_in_fork(
    arguments: Sequence[str], directory: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Do what ``snakemake ARGUMENTS`` does in ``directory``, with the code that ``PYTHONPATH`` names."""
    with tempfile.TemporaryDirectory() as place:
        files = [Path(place, "output"), Path(place, "errors")]
        child = _SERVER.Process(target=_snakemake, args=(list(arguments), directory, dict(environment), *files))
        child.start()
        child.join()
        output, errors = (file.read_text() for file in files)
    assert child.exitcode is not None
    return subprocess.CompletedProcess(["snakemake", *arguments], child.exitcode, output, errors)


def _snakemake(arguments: list[str], directory: Path, environment: dict[str, str], output: Path, errors: Path) -> None:
    """Become the process that ``python -m snakemake`` would be, with its output in files."""
    with open(output, "w") as sys.stdout, open(errors, "w") as sys.stderr:
        os.dup2(sys.stdout.fileno(), 1)
        os.dup2(sys.stderr.fileno(), 2)
        os.chdir(directory)
        os.environ.clear()
        os.environ.update(environment)
        sys.path[:0] = environment["PYTHONPATH"].split(os.pathsep)
        sys.dont_write_bytecode = False  # whatever the server was started with: a copy's code is compiled once
        for name in [name for name in sys.modules if name.split(".")[0] in _OURS]:
            del sys.modules[name]
        sys.argv = ["snakemake", *arguments]
        from snakemake.cli import main

        code = 1
        try:
            main(arguments)
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
            if isinstance(end.code, str):
                print(end.code, file=sys.stderr)
        except BaseException:
            traceback.print_exc()
        with contextlib.suppress(Exception):
            sys.stdout.flush(), sys.stderr.flush()
        os._exit(code)
