"""What the machine at hand has to offer before verl is started on it: GPUs, and Ray either running or absent."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from evals.core.errors import UserError
from evals.core.run_spec import Cluster

_HOST_AND_PORT = re.compile(r"\[?([^\s/\[\]]+)\]?:(\d{1,5})")
_ANSWER_SECONDS = 3.0


def require_machine(cluster: Cluster) -> None:
    """See that this machine can start a run on ``cluster``; other machines are Ray's to find.

    Raises:
        UserError: it has fewer GPUs, or Ray is not as it has to be; one line.
    """
    check_ray(cluster, os.environ, registered_ray(os.environ), answers)
    if "RAY_ADDRESS" not in os.environ:
        require_gpus(cluster)


def require_gpus(cluster: Cluster) -> None:
    """See that this machine has the GPUs of one node of ``cluster``.

    Raises:
        UserError: it has fewer.
    """
    if cluster.platform == "cpu":
        return
    program = shutil.which("nvidia-smi")
    listed = subprocess.run([program, "-L"], capture_output=True, text=True, check=False).stdout if program else ""
    found = sum(line.startswith("GPU ") for line in listed.splitlines())
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        found = min(found, len([part for part in visible.split(",") if part.strip() not in ("", "-1")]))
    if found < cluster.gpus_per_node:
        raise UserError(f"cluster: gpus_per_node: is {cluster.gpus_per_node}; accepted here: {found} at most")


def check_ray(
    cluster: Cluster, environment: Mapping[str, str], registered: str | None, answers: Callable[[str, int], bool]
) -> None:
    """See that verl will find the Ray that is meant: the one of RAY_ADDRESS, or none, so that it starts its own.

    Args:
        cluster: where the run is carried out.
        environment: of this process.
        registered: address of the last Ray that was started by hand here, which verl would join unasked.
        answers: whether something accepts connections at a host and port.

    Raises:
        UserError: it will not; one line.
    """
    address = environment.get("RAY_ADDRESS")
    if address is None:
        if cluster.nodes > 1:
            raise UserError(
                f"cluster: nodes: is {cluster.nodes}, and RAY_ADDRESS is not set; accepted: 1, or the address of a "
                "Ray cluster of that many machines (docs/paper_scale.md)"
            )
        if registered is not None:
            use = "" if cluster.platform == "cpu" else f", or RAY_ADDRESS={registered} to use it"
            raise UserError(
                f"Ray: a session that was started before is registered on this machine ({registered}), and verl would "
                f"join it; accepted: none (`ray stop` ends it){use}"
            )
        return
    if cluster.platform == "cpu":
        raise UserError(f"RAY_ADDRESS: is {address}; accepted with platform cpu, which starts its own Ray: unset")
    if address == "auto":
        return
    found = _HOST_AND_PORT.fullmatch(address)
    if found is None:
        raise UserError(f"RAY_ADDRESS: is {address!r}; accepted: HOST:PORT of a Ray cluster, auto, or unset")
    if not answers(found[1], int(found[2])):
        raise UserError(f"RAY_ADDRESS: nothing answers at {address}; accepted: the address of a Ray cluster that runs")


def registered_ray(environment: Mapping[str, str]) -> str | None:
    """The address that ``ray start`` left for others to find, whether that session still runs or not."""
    directory = environment.get("RAY_TMPDIR") or environment.get("TMPDIR") or "/tmp"
    try:
        return (Path(directory) / "ray" / "ray_current_cluster").read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def answers(host: str, port: int) -> bool:
    """Whether something accepts connections there."""
    try:
        with socket.create_connection((host, port), timeout=_ANSWER_SECONDS):
            return True
    except (OSError, OverflowError):
        return False
