"""Run a command on the first of several nodes, with a Ray that begins and ends with it; Slurm starts this on each node.

``python -m rlvr.engines.verl.ray_nodes HEAD:PORT NODES [OPTIONS OF RAY] -- COMMAND`` by verl's Python.
``ray symmetric-run`` refuses a node where any Ray runs, and ends every Ray of its nodes, those of other runs too.
"""

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil

_RAY = str(Path(sys.executable).with_name("ray"))
_PATIENCE_SECONDS = 15.0
_ADOPTS_ORPHANS = 36  # PR_SET_CHILD_SUBREAPER of linux/prctl.h
WAIT_SECONDS = 600.0
"""Seconds that nodes wait for each other: imports from a shared file system may take long."""
_OWN_PORTS = ["--min-worker-port=0", "--max-worker-port=0"]  # any free ones; by itself 10002 to 19999


def main(address: str, nodes: int, options: Sequence[str], command: Sequence[str]) -> int:
    """Run ``command`` where Slurm's name of this node is that of the ``address``; its exit status.

    Elsewhere the status is 0, or not 0 if Ray ended on this node before it did on the first one.
    """
    host, port = address.rsplit(":", 1)
    ctypes.CDLL(None).prctl(_ADOPTS_ORPHANS, 1)  # so that all that Ray and verl start stays a descendant
    signal.signal(signal.SIGTERM, _stop)
    if os.environ["SLURMD_NODENAME"] != host:
        _wait_until(lambda: _answers(host, int(port)), f"{address}: Ray's first node does not answer")
        with _ray(f"--address={address}", *options) as ray:
            while _answers(host, int(port)):
                if ray.poll() is not None:
                    return ray.returncode or 1
                time.sleep(1.0)
        return 0
    options = [f"--ray-client-server-port={free_port()}", *options]  # by itself 10001
    if not (known := socket.gethostbyname(host)).startswith("127."):  # where a node's own name is not its loopback
        options = [f"--node-ip-address={known}", *options]
    with _ray("--head", f"--port={port}", "--include-dashboard=false", *options) as ray:
        os.environ["RAY_ADDRESS"] = address
        _wait_until(lambda: ray.poll() is not None or _answers(host, int(port)), f"{address}: Ray does not start")
        _wait_until(lambda: ray.poll() is not None or _nodes() >= nodes, f"{address}: Ray has fewer nodes than {nodes}")
        if ray.poll() is not None:
            return ray.returncode or 1
        return subprocess.run(command, check=False).returncode


@contextlib.contextmanager
def _ray(*options: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Ray's processes of this node, which end with the block and all else that it started; Ray's files go with them."""
    with own_directory() as own:
        words = [_RAY, "start", "--block", f"--temp-dir={own}", *_OWN_PORTS, *options]
        ray = subprocess.Popen(words, start_new_session=True)
        try:
            yield ray
        finally:
            ray.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                ray.wait(_PATIENCE_SECONDS)
            _kill_descendants()


def _stop(*received: object) -> None:
    """End at once: Slurm kills 30 s after its SIGTERM, and may send a second one before."""
    _kill_descendants()
    sys.exit(128 + signal.SIGTERM)


def _kill_descendants() -> None:
    """Kill what is left of all that this process started: Ray's workers outlive it by a while, as do verl's."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline:
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:  # psutil may miss an orphan just adopted, the kernel does not
            return
        time.sleep(0.05)


def free_port() -> int:
    """A port of this machine that nothing listens on."""
    with socket.create_server(("", 0)) as free:
        return int(free.getsockname()[1])


def own_directory() -> "tempfile.TemporaryDirectory[str]":
    """A directory for the files of one Ray, with a short path: those of its sockets have at most 107 bytes."""
    place = os.environ.get("RAY_TMPDIR", "/tmp")
    return tempfile.TemporaryDirectory(prefix="rlvr-", dir=place, ignore_cleanup_errors=True)


def _answers(host: str, port: int) -> bool:
    """Return whether Ray listens there; a head that is only slow still does."""
    try:
        socket.create_connection((host, port), timeout=5.0).close()
    except TimeoutError:
        return True
    except OSError:
        return False
    return True


def _nodes() -> int:
    """The nodes of the Ray of this process's environment."""
    import ray

    with ray.init(log_to_driver=False):
        return len([node for node in ray.nodes() if node["Alive"]])


def _wait_until(holds: Callable[[], bool], complaint: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not holds():
        if time.monotonic() > deadline:
            sys.exit(f"error: {complaint} within {WAIT_SECONDS:.0f} s")
        time.sleep(1.0)


if __name__ == "__main__":
    separator = sys.argv.index("--")
    sys.exit(main(sys.argv[1], int(sys.argv[2]), sys.argv[3:separator], sys.argv[separator + 1 :]))
