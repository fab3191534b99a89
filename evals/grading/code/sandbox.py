"""A process that can compute and nothing else, by bubblewrap.

It has its own empty namespaces (no network, no other process, no other user's anything), an empty file system of a few
megabytes beside a read-only Python, and bounds on time, memory, processes, files and output. There is no way to run a
program without it: :func:`require_sandbox` stops the command where it does not work.
"""

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import IO

from evals.core.errors import UserError
from evals.grading.code.system_calls import seccomp_filter

BUBBLEWRAP = "bwrap"
MOST_FILES = 4096
"""Files, links and directories of a sandbox; the size of its disk does not bound the memory that their names take."""
_SECONDS_BETWEEN_COUNTS = 0.1
MAX_OUTPUT = 16 * 1024**2
_PYTHON = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
"""The interpreter itself, not the link that a virtual environment has to it."""
_SYSTEM_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")
_FIRST_USER = 2_000_000_000
"""Ids from here on belong to nobody: each sandbox that root starts has one of its own, so that its processes count."""
_USERS = 2**27


@dataclass(frozen=True)
class Limits:
    """Bounds of one sandbox."""

    seconds: float = 10.0  # wall-clock time, kept from outside
    cpu: int = 10  # seconds of processor time per process
    memory: int = 1024**3  # bytes of address space per process
    processes: int = 4  # processes and threads at a time
    file_size: int = 16 * 1024**2  # bytes of one file
    disk: int = 32 * 1024**2  # bytes of all files together, which are kept in memory; 0: nothing can be written
    open_files: int = 64  # of one process

    def inside(self) -> str:
        """The limits that the sandboxed process sets for itself before it runs anything (``sandboxed/limits.py``)."""
        values = {key: value for key, value in asdict(self).items() if key not in ("seconds", "disk")}
        if os.geteuid() == 0:
            values["user"] = _FIRST_USER + secrets.randbelow(_USERS)  # kernels count over all containers
        else:
            values["processes"] += 1  # bubblewrap's own first process is of the same user, and counts
        return json.dumps(values)


@dataclass
class Sandbox:
    """A running sandbox."""

    process: subprocess.Popen[bytes]

    def watch(self) -> None:
        """End it when it has made too many files."""
        while self.process.poll() is None:
            with contextlib.suppress(OSError):  # it begins, or ends
                if self._files() > MOST_FILES:
                    os.killpg(self.process.pid, signal.SIGKILL)
            time.sleep(_SECONDS_BETWEEN_COUNTS)

    def _files(self) -> int:
        """The number of files in its /tmp, which only its own processes see."""
        outer = self.process.pid
        inner = Path(f"/proc/{outer}/task/{outer}/children").read_text().split()[:1]
        for root in (Path(f"/proc/{process}/root") for process in inner):
            if (root / "inside/limits.py").is_file():  # its own file system, not yet ours
                disk = os.statvfs(root / "tmp")
                return disk.f_files - disk.f_ffree
        return 0

    def kill(self) -> None:
        """End it, with all that it has started, however early.

        Bubblewrap's two processes, the one that waits and the first of the new namespace, are a group of their own,
        which is killed as one; and with the first process of a namespace dies the rest. Killing the waiting one alone
        is not enough: the other asks to die with it only when it has set the sandbox up.
        """
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


def start(
    script: str,
    arguments: Sequence[str],
    limits: Limits,
    files: Mapping[str, str],
    stdin: int | IO[bytes] = subprocess.DEVNULL,
    stdout: int | IO[bytes] = subprocess.PIPE,
    descriptors: Sequence[int] = (),
) -> Sandbox:
    """Start ``sandboxed/{script}`` in a sandbox.

    ``limits.inside()`` is to be among the ``arguments``; ``files`` maps a path in the sandbox to its content, read-only
    there; ``descriptors`` are those of this process that it shall have too.
    """
    handles = [_temporary(content.encode("utf-8", "replace")) for content in files.values()]
    handles.append(rules := _temporary(seccomp_filter()))
    try:
        data = [
            word
            for path, handle in zip(files, handles, strict=False)
            for word in ("--perms", "0444", "--ro-bind-data", str(handle.fileno()), path)
        ]
        command = [*_command(limits.disk), *data, "--remount-ro", "/", "--seccomp", str(rules.fileno())]
        # Modules are looked for beside the script first: /inside is read-only and has no name of the standard library.
        command += ["--", _PYTHON, "-s", f"/inside/{script}", *arguments]
        process = subprocess.Popen(
            command,
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE if script == "probe.py" else subprocess.DEVNULL,
            pass_fds=[*descriptors, *(handle.fileno() for handle in handles)],
            start_new_session=True,
            env={},
        )
    finally:
        for handle in handles:
            handle.close()
    sandbox = Sandbox(process)
    threading.Thread(target=sandbox.watch, daemon=True).start()
    return sandbox


def _temporary(content: bytes) -> IO[bytes]:
    file = tempfile.TemporaryFile()  # noqa: SIM115  (the caller closes it)
    file.write(content)
    file.seek(0)
    return file


def _command(disk: int) -> list[str]:
    """Bubblewrap's options: everything is made anew, and little is put into it."""
    names = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    if os.geteuid() == 0:  # root needs no user namespace; the process inside becomes a user that is nobody
        names += ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        names += ["--unshare-user", "--uid", "65534", "--gid", "65534"]
    bubblewrap, shown = shutil.which(BUBBLEWRAP), _shown()
    if bubblewrap is None:
        raise UserError(_refusal(f"{BUBBLEWRAP} is not installed"))
    targets = [*_DEVICES, *(target for _, target in shown)]
    parents = sorted({str(parent) for target in targets for parent in Path(target).parents} - {"/"})
    mounts = [word for path in parents for word in ("--perms", "0755", "--dir", path)]  # else only root can enter them
    mounts += [word for path in _DEVICES for word in ("--dev-bind", path, path)]
    mounts += [word for source, target in shown for word in ("--ro-bind", source, target)]
    mounts += [word for path in _hidden(shown) for word in ("--perms", "0555", "--tmpfs", path, "--remount-ro", path)]
    links = [path for path in _SYSTEM_LIBRARIES if os.path.islink(path)]
    mounts += [word for path in links for word in ("--symlink", os.readlink(path), path)]
    size = ["--size", str(disk)] if disk else []
    temporary = ["--perms", "1777", *size, "--tmpfs", "/tmp", *([] if disk else ["--remount-ro", "/tmp"])]
    temporary += ["--chdir", "/tmp"]
    settings = {"PATH": "/usr/bin", "HOME": "/tmp", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0", "PYTHONUTF8": "1"}
    settings |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    environment = [word for name, value in settings.items() for word in ("--setenv", name, value)]
    life = ["--die-with-parent", "--hostname", "sandbox", "--clearenv"]  # the session is made by start and limits.py
    return [bubblewrap, *names, *life, *environment, *mounts, *temporary]


def _shown() -> list[tuple[str, str]]:
    """Every directory and file that a sandbox sees, and where: libraries, Python, numpy and our scripts."""
    found = [(path, path) for path in _SYSTEM_LIBRARIES if os.path.isdir(path) and not os.path.islink(path)]
    library = str(Path(os.__file__).resolve().parent.parent)  # lib, of lib/python3.11
    for path in (library, _PYTHON):
        if not any(path.startswith(f"{system}/") for system in _SYSTEM_LIBRARIES):
            found.append((path, path))
    numpy = find_spec("numpy")  # which tests of EvalPlus and many candidates import; nothing else that is installed
    if numpy is None or numpy.origin is None:
        raise UserError(_refusal("numpy is not installed"))
    package = Path(numpy.origin).resolve().parent
    for place in (package, package.with_name("numpy.libs")):
        if place.is_dir():
            found.append((str(place), f"/packages/{place.name}"))
    return [*found, (str(Path(__file__).parent / "sandboxed"), "/inside")]


def _hidden(shown: Sequence[tuple[str, str]]) -> list[str]:
    """Directories of installed packages within what is shown: verdicts must not depend on what else a Python has."""
    patterns = [f"{name}/{kind}-packages" for name in ("python3*", "*/python3*") for kind in ("site", "dist")]
    shared = [(source, target) for source, target in shown if source == target and os.path.isdir(source)]
    return sorted({str(path) for source, _ in shared for pattern in patterns for path in Path(source).glob(pattern)})


@cache
def require_sandbox() -> None:
    """Try a sandbox once; where it does not work, a :class:`UserError` says why."""
    limits = Limits()
    try:
        sandbox = start("probe.py", [limits.inside()], limits, {})
    except OSError as error:
        raise UserError(_refusal(str(error))) from None
    try:
        output, errors = sandbox.process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        raise UserError(_refusal("it did not start within a minute")) from None
    finally:
        sandbox.kill()
    if output != b"ready\n":
        lines = errors.decode("utf-8", "replace").strip().splitlines() or [f"exit status {sandbox.process.returncode}"]
        raise UserError(_refusal(lines[-1]))


def _refusal(reason: str) -> str:
    return (
        f"programs and verifiers run in a sandbox or not at all, and it does not work here: {reason}; needed: "
        "bubblewrap (Debian: apt install bubblewrap) and user namespaces, or root (docs/grading.md)"
    )
