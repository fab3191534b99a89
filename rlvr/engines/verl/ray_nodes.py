"""Run a command on the first of several nodes, with a Ray that begins and ends with it; Slurm starts this on each node.

``python -m rlvr.engines.verl.ray_nodes HEAD:PORT NODES [OPTIONS OF RAY] -- COMMAND`` by verl's Python.
``ray symmetric-run`` refuses a node where any Ray runs, and ends every Ray of its nodes, those of other trainings too.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

_RAY = str(Path(sys.executable).with_name("ray"))
_PATIENCE_SECONDS = 30.0
WAIT_SECONDS = 600.0
"""Seconds that nodes wait for each other: imports from a shared file system may take long."""
_OWN_PORTS = ["--min-worker-port=0", "--max-worker-port=0"]  # any free ones; by itself 10002 to 19999


def main(address: str, nodes: int, options: Sequence[str], command: Sequence[str]) -> int:
    """Run ``command`` where Slurm's name of this node is that of the ``address``; its exit status, elsewhere 0."""
    host, port = address.rsplit(":", 1)
    signal.signal(signal.SIGTERM, lambda *received: sys.exit(128 + signal.SIGTERM))
    if os.environ["SLURMD_NODENAME"] != host:
        _wait_until(lambda: _answers(host, int(port)), f"{address}: Ray's first node does not answer")
        with _ray(f"--address={address}", *options) as ray:
            while ray.poll() is None and _answers(host, int(port)):
                time.sleep(1.0)
        return 0
    ports = [f"--port={port}", f"--ray-client-server-port={free_port()}"]  # the second is by itself 10001
    with _ray("--head", *ports, "--include-dashboard=false", *_address_of(host), *options) as ray:
        os.environ["RAY_ADDRESS"] = address
        _wait_until(lambda: ray.poll() is not None or _answers(host, int(port)), f"{address}: Ray does not start")
        _wait_until(lambda: ray.poll() is not None or _nodes() >= nodes, f"{address}: Ray has fewer nodes than {nodes}")
        return ray.returncode or subprocess.run(command, check=False).returncode


@contextlib.contextmanager
def _ray(*options: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Ray's processes of this node, which end with the block, and whose files are deleted then."""
    with own_directory() as own:
        words = [_RAY, "start", "--block", f"--temp-dir={own}", *_OWN_PORTS, *options]
        ray = subprocess.Popen(words, start_new_session=True)
        try:
            yield ray
        finally:
            ray.terminate()
            try:
                ray.wait(_PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(ray.pid, signal.SIGKILL)  # Ray's reaper ends the rest


def free_port() -> int:
    """A port of this machine that nothing listens on."""
    with socket.create_server(("", 0)) as free:
        return int(free.getsockname()[1])


def own_directory() -> "tempfile.TemporaryDirectory[str]":
    """A directory for the files of one Ray, with a short path: those of its sockets have at most 107 bytes."""
    place = os.environ.get("RAY_TMPDIR", "/tmp")
    return tempfile.TemporaryDirectory(prefix="rlvr-", dir=place, ignore_cleanup_errors=True)


def _address_of(host: str) -> list[str]:
    """The option of the head's address: the one that the others know; none where a node's own name is its loopback."""
    address = socket.gethostbyname(host)
    return [] if address.startswith("127.") else [f"--node-ip-address={address}"]


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
