"""Jobs that start as forks of a process which has their packages loaded: imports take most of a short job's start.

Snakemake starts one server (:func:`start_server`). A job's own process asks it for a fork (:func:`ask`) that runs the
same program with the job's words, files, environment and directory, passes SIGTERM on to it and ends as it does; if it
is killed, so is the fork. A server ends with its Snakemake, and computes nothing: it has no thread that a fork could
miss. Linux only.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import runpy
import secrets
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from evals.core.arithmetic import CODE_PATHS, choose_code_paths, in_use
from evals.generation import arithmetic
from rlvr.runs.job import end_with_parent, end_with_snakemake

SERVER = "RLVR_BENCH_SERVER"
"""The environment variable that tells a job the name of its server, an address that is no file."""


def start_server() -> None:
    """Start the server of this process's jobs; it loads packages when jobs ask for them."""
    name = os.environ[SERVER] = f"rlvr-bench-{secrets.token_hex(16)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(f"\0{name}")
        listening.listen(64)
        command = [sys.executable, "-P", "-m", __name__, str(listening.fileno())]
        # A fork has no other thread than the one that forks: numpy and pyarrow shall start none.
        one_thread = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
        subprocess.Popen(command, pass_fds=[listening.fileno()], env={**os.environ, **one_thread})


def ask(*modules: str) -> int | None:
    """Let a fork of the server run this program anew; returns its exit status, or None where there is no server.

    The server first loads the ``modules``, for all later forks too. It unpickles nothing: a job's values are in the
    program's file, as Snakemake wrote it, and in the words.
    """
    if SERVER not in os.environ:
        return None
    process = {"words": sys.argv, "directory": os.getcwd(), "environment": dict(os.environ)}
    message = json.dumps({"modules": modules, **process}).encode()
    asked = list[int]()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:

        def pass_on(number: int, _: Any) -> None:
            asked.append(number)
            with contextlib.suppress(OSError):
                connection.send(bytes([number]))

        try:
            connection.connect(f"\0{os.environ[SERVER]}")
            if _user(connection) != os.getuid():  # the name of a server that has ended is anybody's
                raise OSError("belongs to another user")
            socket.send_fds(connection, [message], [0, 1, 2])
            signal.signal(signal.SIGTERM, pass_on)  # before there is a fork that somebody could see
            if not connection.recv(1):
                raise OSError("gave no process")
        except OSError as error:
            print(f"the server of jobs: {error}; this job starts without it", file=sys.stderr, flush=True)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            for number in asked:
                os.kill(os.getpid(), number)
            return None
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the fork too
        said = b""
        with contextlib.suppress(ConnectionError):
            said = connection.recv(16)
        status = int(said or -signal.SIGTERM)  # which forks get when their server is killed
    if status < 0:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


def _user(connection: socket.socket) -> int:
    """The number of the user whose process is at the other end."""
    _, user, _ = struct.unpack("i2I", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(user)


def serve(listening: socket.socket) -> None:
    """Fork for each request; returns in the fork, when the job is done."""
    end_with_snakemake()
    end_with_parent(signal.SIGKILL)
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all processes
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # jobs end before their server
    before = dict(os.environ)
    choose_code_paths()
    while not (job := _next_job(listening)):
        pass
    listening.close()
    signal.signal(signal.SIGINT, interrupt)
    of_packages = {name: value for name, value in os.environ.items() if before.get(name) != value}
    of_packages |= CODE_PATHS if in_use() else {}  # a job's environment has its own number of threads
    _work(*job, of_packages)


def _next_job(listening: socket.socket) -> tuple[Mapping[str, Any], list[int]] | None:
    """Fork for the next request; returns it, and the files that came with it, in the fork."""
    files = list[int]()
    with contextlib.suppress(OSError, ValueError), listening.accept()[0] as connection:
        with contextlib.suppress(ChildProcessError):  # those that have ended
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if _user(connection) != os.getuid():
            return None
        connection.settimeout(30.0)
        message, files, *_ = socket.recv_fds(connection, 1 << 20, 3)
        request = json.loads(message)
        _load(request["modules"])
        if len(os.listdir("/proc/self/task")) > 1:
            raise OSError("a fork would miss the threads of a module")
        if not os.fork() and _is_job(connection, [listening.fileno(), *files]):
            return request, files
    for file in files:
        os.close(file)
    return None


def _load(modules: Sequence[str]) -> None:
    """Load modules for all later forks. One that fails is the job's to load, and to report."""
    if {*modules} <= sys.modules.keys():
        return
    gc.disable()
    for module in modules:
        with contextlib.suppress(Exception, SystemExit):
            arithmetic.set_up(threads=1) if module == "torch" else import_module(module)
    gc.enable()
    gc.freeze()


def _is_job(connection: socket.socket, files: Sequence[int]) -> bool:
    """Fork once more: True in the job. The other process stands between the job and the one that asked for it."""
    end_with_parent(signal.SIGKILL)
    parent = os.getpid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # before the job can get one
    with contextlib.suppress(OSError):
        if not (job := os.fork()):
            end_with_parent(signal.SIGTERM)
            return os.getppid() == parent or os._exit(1)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        watched: list[Any] = [connection, ended := os.pidfd_open(job)]
        connection.send(b"1")
        for file in files:
            os.close(file)
        while ended not in select.select(watched, [], [])[0]:
            sent = connection.recv(1)
            os.kill(job, sent[0] if sent else signal.SIGKILL)
            watched = watched if sent else [ended]
        connection.send(str(os.waitstatus_to_exitcode(os.waitpid(job, 0)[1])).encode())
        while connection.recv(1):  # a signal that came too late: left unread it would take the status away
            pass
    os._exit(0)


def _work(request: Mapping[str, Any], files: Sequence[int], of_packages: Mapping[str, str]) -> None:
    """Do a job as its own process would, with the variables that its loaded packages have set."""
    for place, file in enumerate(files):
        os.dup2(file, place)
        os.close(file)
    # The server's own objects remember what its standard files were.
    for place, name in enumerate(("stdin", "stdout", "stderr")):
        old = getattr(sys, name)
        setattr(sys, name, open(place, old.mode, place // 2 or -1, old.encoding, old.errors, closefd=False))  # noqa: SIM115
    os.environ.clear()
    os.environ.update(request["environment"] | of_packages)
    del os.environ[SERVER]  # the program asks once
    os.chdir(request["directory"])
    sys.argv = request["words"]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
