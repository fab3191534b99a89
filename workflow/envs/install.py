"""Make the environment ``.venv`` from ``requirements.lock``, or leave it alone if it is complete.

Run by the Makefile with a bare Python 3.11, so it uses the standard library alone. An environment is complete when the
file ``complete.json`` in it names the lock file it was made from; that file is written last, so that an interrupted
installation is thrown away and made again. (It cannot be made elsewhere and renamed: its scripts hold its path.) The
project itself is installed as an editable package, again whenever pyproject.toml changes.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

PYTHON = (3, 11)
Run = Callable[[list[str]], None]


def install(root: Path, run: Run) -> None:
    """Bring ``root/.venv`` up to date; ``run`` executes one command and raises CalledProcessError if it fails."""
    environment = root / ".venv"
    complete = environment / "complete.json"
    if environment.is_symlink():  # another directory's environment: its scripts and its state name that directory
        raise OSError(
            f"{environment} is a link to {os.readlink(environment)}; remove the link, and make makes one here"
        )
    with _one_at_a_time(root):
        wanted = wanted_state(root)
        found = read_state(complete)
        if found == wanted and (environment / "bin" / "python").exists():
            return
        python = str(environment / "bin" / "python")
        pip = [python, "-m", "pip", "install", "--disable-pip-version-check"]
        if found.get("lock") != wanted["lock"] or found.get("path") != wanted["path"] or not Path(python).exists():
            print("making the environment .venv from requirements.lock (a few minutes, once)", flush=True)
            complete.unlink(missing_ok=True)
            if environment.exists():
                shutil.rmtree(environment)
            run([sys.executable, "-m", "venv", str(environment)])
            run([*pip, "--requirement", str(root / "requirements.lock")])
        complete.unlink(missing_ok=True)
        # The build backend is in the lock file: without isolation pip need not fetch another.
        run([*pip, "--quiet", "--no-deps", "--no-build-isolation", "--editable", str(root)])
        complete.write_text(json.dumps(wanted, indent=2) + "\n", encoding="utf-8")
        print("the environment .venv is complete", flush=True)


def wanted_state(root: Path) -> dict[str, str]:
    """What a complete environment was made from: hashes of the pins and of pyproject.toml, and its own path."""
    lines = (root / "requirements.lock").read_text(encoding="utf-8").splitlines()
    pins = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
    return {
        "lock": hashlib.sha256(pins.encode("utf-8")).hexdigest(),
        "project": hashlib.sha256((root / "pyproject.toml").read_bytes()).hexdigest(),
        "path": str(root / ".venv"),
    }


def read_state(complete: Path) -> dict[str, str]:
    """What ``complete.json`` says; empty if there is none or it was cut short."""
    try:
        content = json.loads(complete.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


@contextlib.contextmanager
def _one_at_a_time(root: Path) -> Iterator[None]:
    """Hold the project's directory, so that ``make reproduce`` and ``make test`` side by side make one environment."""
    descriptor = os.open(root, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another make is at work on the environment .venv; waiting for it", flush=True)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _execute(command: list[str]) -> None:
    subprocess.run(command, check=True)


def main() -> None:
    """Install for the project that this file belongs to; exits with 2 and one line where that is impossible."""
    if sys.version_info[:2] != PYTHON:
        have = ".".join(map(str, sys.version_info[:2]))
        sys.exit(f"error: Python 3.11 is needed, {sys.executable} is {have}; name one: make PYTHON=/path/to/python3.11")
    try:
        install(Path(__file__).resolve().parents[2], _execute)
    except subprocess.CalledProcessError as error:
        sys.exit(f"error: the environment is not complete, {error.cmd[2]} failed (see above); make tries again")
    except OSError as error:
        sys.exit(f"error: the environment cannot be made: {error}")


if __name__ == "__main__":
    main()
