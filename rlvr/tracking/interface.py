"""Starting MLflow's web interface, on loopback only."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

from evals.core.errors import UserError
from rlvr.tracking.database import database_uri

HOST = "127.0.0.1"


def serve(results: Path, database: Path, artifacts: Path, port: int) -> NoReturn:
    """Become the MLflow server: this process is replaced, so that signals reach the server itself.

    Trainings under way in ``results`` are watched by a process that ends with the server.

    Raises:
        UserError: the port is taken or not allowed.
    """
    check_port(port)
    print(f"MLflow on http://{HOST}:{port} (Ctrl-C ends it)", flush=True)
    watcher = ["rlvr.tracking", "watch", "--results", str(results), "--parent", str(os.getpid())]
    subprocess.Popen([sys.executable, "-m", *watcher])
    command = [
        *(sys.executable, "-m", "mlflow", "server"),
        *("--backend-store-uri", database_uri(database)),
        *("--default-artifact-root", artifacts.resolve().as_uri()),
        *("--host", HOST),
        *("--port", str(port)),
        *("--workers", "1"),
    ]
    os.execv(sys.executable, command)


def check_port(port: int) -> None:
    """Check that a server could listen on a loopback port.

    Raises:
        UserError: it could not.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except (OSError, OverflowError) as error:
            taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
            reason = "is taken" if taken else f"cannot be used ({error})"
            raise UserError(f"--port: {port} {reason}; accepted: a free port, such as {_free_port()}") from None


def _free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
