"""verl's processes: what this machine must have before they start, what their log says went wrong, and their end."""

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

import psutil

from evals.core.errors import InvalidInput
from evals.core.run_spec import Cluster
from evals.generation.devices import drivers, require_driver
from rlvr.engines.verl import ray_nodes
from rlvr.engines.verl.launch import RUN_VARIABLE

_CUDA = "13.0 of workflow/envs/verl.yaml"
_PATIENCE_SECONDS = 30.0
_LONGEST_ERROR = 300
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_EXCEPTION = re.compile(r"(?:[a-z_]\w*\.)*(?:[A-Z]\w*)?(?:Error|Exception|Exit)(?:\(\w+\))?(?:: .+|$)")
"""A line of an exception, wherever it begins after the prefixes of Ray, vLLM and torch."""


def require_machine(cluster: Cluster) -> None:
    """Check that this machine can start a run on ``cluster``; other machines are Ray's to find."""
    if "RAY_ADDRESS" in os.environ:
        return
    nodes = max(1, len(nodes_of_job(os.environ)))
    if cluster.nodes > nodes:
        message = f"is {cluster.nodes}, and RAY_ADDRESS is not set"
        accepted = f"{nodes}, in a Slurm job as many as it has, or the address of a Ray cluster of that many machines"
        raise InvalidInput("cluster", "nodes", message, f"{accepted} (docs/paper_scale.md)")
    require_gpus(cluster)


def require_gpus(cluster: Cluster) -> None:
    """Check that this machine has the GPUs of one node of ``cluster``, and a driver for them."""
    if cluster.platform != "cuda":
        return
    versions = drivers()
    gpus = len(versions)
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        gpus = min(gpus, len([part for part in visible.split(",") if part.strip() not in ("", "-1")]))
    if gpus < cluster.gpus_per_node:
        accepted = f"{gpus} at most on this machine"
        raise InvalidInput("cluster", "gpus_per_node", f"is {cluster.gpus_per_node}", accepted)
    require_driver(_CUDA, versions)


def nodes_of_job(environment: Mapping[str, str]) -> list[str]:
    """The nodes of the Slurm job that this process works in; none outside of one.

    Slurm is asked, because a step, as Snakemake's executor starts one, is told of its own nodes alone.
    """
    if "SLURM_JOB_ID" not in environment:
        return []
    listed = _output("squeue", "--noheader", "--jobs", environment["SLURM_JOB_ID"], "--format=%N")
    return _output("scontrol", "show", "hostnames", listed).split()


def _output(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def on_every_node(cluster: Cluster, python: str, environment: Mapping[str, str]) -> list[str]:
    """The words before verl's command: none, or in a Slurm job those by which Ray runs on all nodes as long as verl.

    They start :mod:`rlvr.engines.verl.ray_nodes` under srun, whose end is the end of everything that it started on any
    node. The port is one that is free here, on the first node of the job.
    """
    alone = cluster.nodes == 1 or "RAY_ADDRESS" in environment
    names = [] if alone else nodes_of_job(environment)[: cluster.nodes]
    if not names:
        return []
    address, count = f"{names[0]}:{ray_nodes.free_port()}", str(len(names))
    allocated = f"SLURM_JOB_NODELIST={','.join(names)}"  # a step's variable has the step's nodes, and srun believes it
    # The head asks for the token by itself; the others, which look for the head first, send it only with this.
    variables = ["env", allocated, f"RAY_AUTH_MODE={environment.get('RAY_AUTH_MODE', 'token')}"]
    srun = ["srun", "--overlap", "--kill-on-bad-exit=1", "--nodes", count, "--ntasks", count, "--ntasks-per-node=1"]
    return [*variables, *srun, python, "-P", "-m", ray_nodes.__name__, address, count, "--"]


def error_in(text: str, status: int) -> str:
    """One line on how a process ended: the last exception in its output, else its exit status."""
    exceptions = [match[0] for line in text.splitlines() if (match := _EXCEPTION.search(_COLOUR.sub("", line)))]
    if exceptions:
        return exceptions[-1].strip()[:_LONGEST_ERROR]
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"


def end_processes_of(run_file: Path) -> int:
    """Kill every process on this machine that was started for the run of ``run_file``; how many there were.

    To be called by whoever holds the run's lock, while no verl of its own is at work. The caller stays, and so do the
    processes that it was started by.
    """
    callers = {process.pid for process in (psutil.Process(), *psutil.Process().parents())}
    left = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # of one that ends meanwhile, or is another user's
            if process.pid not in callers and process.environ().get(RUN_VARIABLE) == str(run_file):
                left.append(process)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=_PATIENCE_SECONDS)
    return len(left)
