"""The one command of the project: ``rlvr-bench``, or ``python -m rlvr`` where only the source is there."""

import contextlib
import io
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any


class _Output:
    """The one place that writes to the terminal: what would move its cursor is escaped, as in texts of JSON."""

    def __init__(self, stream: Any, kept: str = "") -> None:
        self._stream, self._escaped = stream, re.compile(rf"[^\n\t -~{kept}]")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> Any:
        return self._stream.write(self._escaped.sub(_escape, text))


def _escape(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass").hex(" ", 2)
    return found[0] if found[0].isprintable() else "\\u" + units.replace(" ", "\\u")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, of the words of the process if none are given.

    Returns:
        0, 2 after an error that the user can mend (one line), or the status that the command asks for.
    """
    if sys.platform == "win32":
        print("error: RLVR Bench needs Linux or macOS; accepted on Windows: the same in WSL 2", file=sys.stderr)
        return 2
    for stream in (sys.stdout, sys.stderr):  # of a locale without the signs of a table, such as C
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    if namesake := _namesake():
        print(f"error: {namesake}", file=sys.stderr)
        return 2
    try:
        return _run(list(sys.argv[1:] if argv is None else argv))
    except Exception as error:
        if not (shadowing := _shadowing(error)):
            raise
        print(f"error: {shadowing} ({type(error).__name__}); accepted: PYTHONPATH without it", file=sys.stderr)
        return 2


def _run(words: list[str]) -> int:
    # Imported here, because the grader's worker processes import the script that started them.
    import typer

    from evals.core.errors import UserError, printable
    from rlvr.cli.application import commands
    from rlvr.cli.command import describe

    try:
        errors = _Output(sys.stderr, kept="\r")  # of progress that others draw, such as transformers
        with contextlib.redirect_stdout(_Output(sys.stdout)), contextlib.redirect_stderr(errors):
            status = commands(words)(args=words, prog_name="rlvr-bench", standalone_mode=False)
            sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except BrokenPipeError:  # a reader, such as head, left before the end; Python would complain again when it exits
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (typer.TyperException, UserError) as error:
        message = str(error) if isinstance(error, UserError) else describe(error)
    except (BlockingIOError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and str(error) != "can't start new thread":
            raise
        message = "the machine starts no further process or thread; accepted: a higher limit, ulimit -u"
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "rlvr", "evals") or _shadowing(error):
            raise
        message = f"this command needs {package}; install what a study is run with: '.[train]'"
    print(f"error: {printable(message)}", file=sys.stderr)
    return 2


def _namesake() -> str | None:
    """What to do where PyPI's package ``evals`` is installed too: the two share a directory, and neither is whole."""
    try:
        foreign = version("evals")
    except PackageNotFoundError:
        return None
    return f"the package evals {foreign} has the import name of ours; accepted: an environment without it"


def _shadowing(error: Exception) -> str | None:
    """The package in PYTHONPATH that is imported in place of this environment's, if the exception comes of it."""
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    if isinstance(error, ImportError):
        files += [str(getattr(module, "__file__", "")) for module in sys.modules.values()]
    installed = Path(sysconfig.get_path("purelib"))
    entries = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    for entry in (entry for entry in entries if Path(entry).resolve() != installed.resolve()):
        for file in (Path(name) for name in files if Path(name).is_relative_to(entry)):
            package = file.relative_to(entry).parts[0]
            if package not in ("rlvr", "evals") and (installed / package).exists():
                return f"PYTHONPATH: {entry} has another {package} than this environment"
    return None
