"""A process that can compute and nothing else, by bubblewrap.

It has its own empty namespaces, an empty file system of a few megabytes beside a read-only Python, and bounds on time,
memory, processes, files and output. :func:`require_sandbox` stops the command where it does not work.
"""

import contextlib
import errno
import json
import os
import platform
import secrets
import select
import shutil
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import IO

from evals.core.errors import UserError
from evals.grading.code.sandboxed.reading import read
from evals.grading.verdict import WALL_CLOCK

BUBBLEWRAP = "bwrap"
MOST_FILES = 4096
"""Files, links and directories of a sandbox; the size of its disk does not bound the memory that their names take."""
_SECONDS_BETWEEN_COUNTS = 0.1
MAX_OUTPUT = 16 * 1024**2
_PYTHON = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
"""The interpreter itself, not the link that a virtual environment has to it."""
_SYSTEM_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")
_APPARMOR = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
"""1 on Ubuntu from 24.04 on, where programs without a profile of AppArmor may make no user namespace."""
_FIRST_USER = 2_000_000_000
"""Ids from here on belong to nobody: each sandbox that root starts has one of its own, so that its processes count."""
_USERS = 2**27

SYSTEM_CALLS = json.loads(Path(__file__).with_name("system_calls.json").read_text(encoding="utf-8"))
"""Numbers by machine, from the kernel's arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h.

Of the calls "refused on others" the first argument is the process; 0 is the calling one, which alone is accepted.
"""

_NEW_NAMESPACES = 0x7E020000  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET
_CLONE_THREAD = 0x00010000
_AF_UNIX = 1
_X32 = 0x40000000

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000


@dataclass(frozen=True)
class Limits:
    """Bounds of one sandbox."""

    cpu: int = 10  # seconds of processor time per process
    memory: int = 1024**3  # bytes of address space per process
    processes: int = 4  # processes and threads at a time
    forks: bool = False  # whether it may start processes, each with all that memory, or threads alone
    file_size: int = 16 * 1024**2  # bytes of one file
    disk: int = 32 * 1024**2  # bytes of all files together, which are kept in memory; 0: nothing can be written
    open_files: int = 64  # of one process

    def inside(self) -> str:
        """The limits that the sandboxed process sets for itself before it runs anything (``sandboxed/limits.py``)."""
        values = {key: value for key, value in asdict(self).items() if key not in ("disk", "forks")}
        if _has_every_user():
            values["user"] = _FIRST_USER + secrets.randbelow(_USERS)  # kernels count over all containers
        else:
            values["processes"] += 1  # bubblewrap's own first process is of the same user, and counts
        return json.dumps(values)

    @property
    def seconds(self) -> float:
        """Wall-clock time, kept from outside: far more than processor time, for others may have the processors."""
        return float(WALL_CLOCK * self.cpu)


@dataclass
class Sandbox:
    """A running sandbox."""

    process: subprocess.Popen[bytes]  # bubblewrap's
    ready: IO[bytes]  # a byte comes here when everything is set up and our script begins
    _has_begun: bool = field(default=False, init=False)

    def watch(self) -> None:
        """End it when it has made too many files."""
        with contextlib.suppress(OSError), open(os.pidfd_open(self.process.pid), "rb", 0) as end:  # it has ended
            while not select.select([end], [], [], _SECONDS_BETWEEN_COUNTS)[0]:  # its status is left to wait
                with contextlib.suppress(OSError):  # it begins, or ends
                    if self._files() > MOST_FILES:
                        os.killpg(self.process.pid, signal.SIGKILL)

    def read(self, seconds: float, limit: int, end: bytes | None = None) -> bytes | None:
        """Read its output as :func:`evals.grading.code.sandboxed.reading.read` does."""
        assert self.process.stdout is not None
        return read(self.process.stdout.fileno(), seconds, limit, end)

    def wait(self, seconds: float) -> int | None:
        """The exit status, or None if it goes on for longer."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        return self.process.returncode

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

        Bubblewrap's two processes are a group of their own, which is killed as one, for the first process of the new
        namespace, with which the rest dies, asks to die with the waiting one only when it has set the sandbox up.
        """
        if self.process.returncode is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if not self.ready.closed:
            self._has_begun = self.ready.read(1) != b""
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr, self.ready):
            if stream is not None:
                stream.close()

    def require_begun(self) -> None:
        """Refuse to judge by a sandbox that was ended, or ended, before anything ran in it."""
        if not self._has_begun:
            raise UserError(_refusal("one did not begin, though others had; is a limit on processes reached?"))


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

    ``files`` maps a path in the sandbox to its content, read-only there; ``descriptors`` are those of this process that
    it shall have too. What the machine refuses is a :class:`UserError`.
    """
    with contextlib.ExitStack() as handles:
        try:
            reader, writer = os.pipe()
            ready, begun = os.fdopen(reader, "rb", 0), handles.enter_context(os.fdopen(writer, "wb", 0))
            contents = [handles.enter_context(in_memory(text.encode("utf-8", "replace"))) for text in files.values()]
            rules = handles.enter_context(in_memory(seccomp_filter(limits.forks)))
            data = [
                word
                for path, file in zip(files, contents, strict=True)
                for word in ("--perms", "0444", "--ro-bind-data", str(file.fileno()), path)
            ]
            command = [*_command(limits.disk), *data, "--remount-ro", "/", "--seccomp", str(rules.fileno())]
            # Modules are looked for beside the script first: /inside is read-only and has no name of Python's own.
            command += ["--", _PYTHON, "-s", f"/inside/{script}", limits.inside(), str(begun.fileno()), *arguments]
            process = subprocess.Popen(
                command,
                stdin=stdin,
                stdout=stdout,
                stderr=subprocess.PIPE if script == "probe.py" else subprocess.DEVNULL,
                pass_fds=[*descriptors, *(file.fileno() for file in (begun, rules, *contents))],
                start_new_session=True,
                env={},
            )
        except OSError as error:  # no process, descriptor or memory left
            raise UserError(_refusal(str(error))) from None
    sandbox = Sandbox(process, ready)
    try:
        threading.Thread(target=sandbox.watch, daemon=True).start()
    except RuntimeError as error:  # no thread left
        sandbox.kill()
        raise UserError(_refusal(str(error))) from None
    return sandbox


def in_memory(content: bytes) -> IO[bytes]:
    """A file of no directory, to be read from its start."""
    file = open(os.memfd_create("sandbox"), "w+b", 0)  # noqa: SIM115  (the caller closes it)
    file.write(content)
    file.seek(0)
    return file


def seccomp_filter(forks: bool) -> bytes:
    """System calls that are refused, an array of ``struct sock_filter``; without ``forks`` a process has threads alone.

    Namespaces hide what is outside; this closes what they leave open: new namespaces, in which a process is root again,
    memory that no limit counts, sockets of families without a namespace, tracing, keys, and what a process does to
    another beside a signal, for all processes of a sandbox have one user.
    """
    if (machine := platform.machine()) not in SYSTEM_CALLS:
        accepted = ", ".join(SYSTEM_CALLS)
        raise UserError(f"a model's programs cannot be run safely on {machine} processors; accepted: {accepted}")
    calls = SYSTEM_CALLS[machine]
    refusal = (_RETURN, 0, 0, _ERROR | errno.EPERM)
    threads_alone = [] if forks else [(_ANY_BIT, 1, 0, _CLONE_THREAD), refusal]
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, calls["architecture"]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _X32),
        refusal,
        (_EQUAL, 0, 1, calls["clone3"]),  # its flags lie in memory, out of reach: libraries fall back to clone
        (_RETURN, 0, 0, _ERROR | errno.ENOSYS),
        (_EQUAL, 0, 4 + len(threads_alone), calls["clone"]),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_ANY_BIT, 0, 1, _NEW_NAMESPACES),
        refusal,
        *threads_alone,
        (_RETURN, 0, 0, _ALLOW),
        (_EQUAL, 0, 4, calls["socket"]),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_EQUAL, 1, 0, _AF_UNIX),
        (_RETURN, 0, 0, _ERROR | errno.EAFNOSUPPORT),
        (_RETURN, 0, 0, _ALLOW),
    ]
    for number in calls["refused on others"].values():
        program += [(_EQUAL, 0, 4, number), (_LOAD, 0, 0, _FIRST_ARGUMENT), (_EQUAL, 1, 0, 0), refusal]
        program.append((_RETURN, 0, 0, _ALLOW))
    for number in [*calls["refused"].values(), *(() if forks else calls["forks"].values())]:
        program += [(_EQUAL, 0, 1, number), refusal]
    program.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


@cache
def _has_every_user() -> bool:
    """Return whether this is root of the machine, or of a container in which all ids are users, as Docker's are."""
    ids = Path("/proc/self/uid_map").read_text().split()
    return os.geteuid() == 0 and len(ids) == 3 and int(ids[2]) > _FIRST_USER + _USERS


def _command(disk: int) -> list[str]:
    """Bubblewrap's options: everything is made anew, and little is put into it."""
    names = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    if _has_every_user():  # root needs no user namespace; the process inside becomes a user that is nobody
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
    shown = [(path, path) for path in _SYSTEM_LIBRARIES if os.path.isdir(path) and not os.path.islink(path)]
    library = str(Path(os.__file__).resolve().parent.parent)  # lib, of lib/python3.11
    for path in (library, _PYTHON):
        if not any(path.startswith(f"{system}/") for system in _SYSTEM_LIBRARIES):
            shown.append((path, path))
    numpy = find_spec("numpy")  # which tests of EvalPlus and many candidates import; nothing else that is installed
    if numpy is None or numpy.origin is None:
        raise UserError(_refusal("numpy is not installed"))
    package = Path(numpy.origin).resolve().parent
    for directory in (package, package.with_name("numpy.libs")):
        if directory.is_dir():
            shown.append((str(directory), f"/packages/{directory.name}"))
    return [*shown, (str(Path(__file__).parent / "sandboxed"), "/inside")]


def _hidden(shown: Sequence[tuple[str, str]]) -> list[str]:
    """Directories of installed packages within what is shown: verdicts must not depend on what else a Python has."""
    patterns = [f"{name}/{kind}-packages" for name in ("python3*", "*/python3*") for kind in ("site", "dist")]
    shared = [(source, target) for source, target in shown if source == target and os.path.isdir(source)]
    return sorted({str(path) for source, _ in shared for pattern in patterns for path in Path(source).glob(pattern)})


@cache
def require_sandbox() -> None:
    """Try a sandbox once; where it does not work, a :class:`UserError` says why."""
    sandbox = start("probe.py", [], Limits(), {})
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
    with contextlib.suppress(OSError):
        if _APPARMOR.read_text().strip() == "1" and os.geteuid() != 0:
            reason += "; AppArmor may refuse it: the profile in docs/grading.md allows it"
    return (
        f"programs and verifiers run in a sandbox or not at all, and it does not work here: {reason}; needed: "
        "bubblewrap (Debian: apt install bubblewrap) and user namespaces, or root (docs/grading.md)"
    )
