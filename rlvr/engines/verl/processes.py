"""verl's processes: what this machine must have before they start, what their log says went wrong, and their end."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from evals.core.errors import InvalidInput, UserError
from evals.core.run_spec import Cluster
from evals.generation.devices import drivers, require_driver
from rlvr.engines.verl.launch import RUN_VARIABLE

_CUDA = "13.0 of workflow/envs/verl.yaml"
_HOST_AND_PORT = re.compile(r"\[?([^\s/\[\]]+)\]?:(\d{1,5})")
_RAY_PORT = 6379
_NODES_WAIT_SECONDS = 600
"""Seconds that the head of Ray's nodes waits for the others; by itself 30, and imports may take longer."""
_ANSWER_SECONDS = 3.0
_PATIENCE_SECONDS = 30.0
_LONGEST_WORDS = 300
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_PREFIXES = re.compile(
    r"^(?:\([\w.:<>-]+ pid=\d+(?:, ip=[\w.:]+)?\)\s?"  # of another process, by Ray and vLLM: (TaskRunnerV1 pid=123) ...
    r"|\[rank\d+\]: ?"  # of a line of a traceback, by torch
    r"|(?:ERROR|CRITICAL) [\d-]+ [\d:.,]+ (?:\[[^\]]*\] )?)+"  # of a logger
)
"""The prefixes of a line, however often they are repeated."""
_EXCEPTION = re.compile(r"^((?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*)?(?:Error|Exception|Interrupt|Exit))(?:: (.*)|:?)$")
_CONSEQUENCES = (
    *("ActorDiedError", "ActorUnavailableError", "RayActorError", "RayTaskError", "WorkerCrashedError"),
    *("CancelledError", "ChildFailedError", "EngineDeadError", "SystemExit", "KeyboardInterrupt"),
    "InstantiationException",
)
"""Exceptions of processes that found another one dead, and what Hydra wraps others in."""
_POINTS_ELSEWHERE = re.compile(r"[Ss]ee (?:root cause|stack trace)")
"""The words in vLLM's exceptions that point to another cause."""
_SLURM = re.compile(r"^(?:srun|slurmstepd(?:-[\w.-]+)?): (?:error|fatal): (?!.*: Exited with exit code)")
"""An error that Slurm reports; that a task ended with an exit code says nothing about why."""
RAY_TIMED_OUT = "The current node timed out during startup"
"""The message of Ray when its helper processes start too slowly, as on a busy machine."""
_ADVICE = (
    ((RAY_TIMED_OUT,), "the machine is busy with other work, or `ray stop` is wanted first"),
    (("EADDRINUSE", "ddress already in use"), "a port was taken by another process; start it again"),
    (
        ("out of memory", "OutOfMemoryError", "No available memory for the cache blocks"),
        "try `preflight`, then less in cluster: tokens_per_device, gpu_memory_utilization, hidden_state_budget",
    ),
    (("Total available GPUs", "available GPUs"), "Ray sees fewer GPUs than cluster asks for"),
    (("No space left on device", "Errno 28"), "a disk is full: the study's, or that of Ray's directory in /tmp"),
)


def require_machine(cluster: Cluster) -> None:
    """Check that this machine can start a run on ``cluster``; other machines are Ray's to find."""
    check_ray(cluster, os.environ, registered_ray(os.environ), answers, nodes_of_job(os.environ))
    if "RAY_ADDRESS" not in os.environ:
        require_gpus(cluster)


def require_gpus(cluster: Cluster) -> None:
    """Check that this machine has the GPUs of one node of ``cluster``, and a driver for them."""
    if cluster.platform != "cuda":
        return
    versions = drivers()
    found = len(versions)
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        found = min(found, len([part for part in visible.split(",") if part.strip() not in ("", "-1")]))
    if found < cluster.gpus_per_node:
        accepted = f"{found} at most on this machine"
        raise InvalidInput("cluster", "gpus_per_node", f"is {cluster.gpus_per_node}", accepted)
    require_driver(_CUDA, versions)


def check_ray(
    cluster: Cluster,
    environment: Mapping[str, str],
    registered: str | None,
    answers: Callable[[str, int], bool],
    job: Sequence[str] = (),
) -> None:
    """Check that verl will find the right Ray: the one of RAY_ADDRESS, or none, so that it starts its own.

    ``registered`` is the address of :func:`registered_ray`; ``answers`` says whether something accepts connections at a
    host and port; ``job`` are the nodes of the Slurm job.
    """
    address = environment.get("RAY_ADDRESS")
    if address is None:
        there = max(1, len(job))
        if cluster.nodes > there:
            unset = f"is {cluster.nodes}, and RAY_ADDRESS is not set"
            accepted = (
                f"{there}, in a Slurm job as many as it has, or the address of a Ray cluster of that many machines"
            )
            raise InvalidInput("cluster", "nodes", unset, f"{accepted} (docs/paper_scale.md)")
        if registered is not None:
            raise UserError(
                f"Ray: one that you started before runs on this machine ({registered}), and verl would join it; "
                f"accepted: none (`ray stop` ends it), or RAY_ADDRESS={registered} to use it"
            )
        return
    if address == "auto":
        return
    found = _HOST_AND_PORT.fullmatch(address)
    if found is None:
        raise UserError(f"RAY_ADDRESS: is {address!r}; accepted: HOST:PORT of a Ray cluster, auto, or unset")
    if not answers(found[1], int(found[2])):
        raise UserError(f"RAY_ADDRESS: nothing answers at {address}; accepted: the address of a Ray cluster that runs")


def nodes_of_job(environment: Mapping[str, str]) -> list[str]:
    """The nodes of the Slurm job that this process works in; none outside of one.

    Slurm is asked, because a step, as Snakemake's executor starts one, is told of its own nodes alone.
    """
    if "SLURM_JOB_ID" not in environment:
        return []
    listed = _said("squeue", "--noheader", "--jobs", environment["SLURM_JOB_ID"], "--format=%N")
    return _said("scontrol", "show", "hostnames", listed).split()


def _said(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def on_every_node(cluster: Cluster, python: str, environment: Mapping[str, str]) -> list[str]:
    """The words before verl's command: none, or in a Slurm job those by which Ray runs on all nodes as long as verl.

    They are Ray's own command under srun, whose end is the end of everything that it started on any node.
    """
    alone = cluster.nodes == 1 or "RAY_ADDRESS" in environment
    names = [] if alone else nodes_of_job(environment)[: cluster.nodes]
    if not names:
        return []
    address, count = f"{names[0]}:{_RAY_PORT}", str(len(names))
    allocated = f"SLURM_JOB_NODELIST={','.join(names)}"  # a step's variable has the step's nodes, and srun believes it
    # The head waits for the others by the first. They wait for it by the second, but Ray ends them after a minute.
    limits = ("RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT", "RAY_py_gcs_connect_timeout_s")
    variables = ["env", allocated, *(f"{limit}={_NODES_WAIT_SECONDS}" for limit in limits)]
    # The head asks for the token by itself; the others, which look for the head first, send it only with this.
    variables.append(f"RAY_AUTH_MODE={environment.get('RAY_AUTH_MODE', 'token')}")
    srun = ["srun", "--overlap", "--nodes", count, "--ntasks", count, "--ntasks-per-node=1"]
    ray = [str(Path(python).with_name("ray")), "symmetric-run", "--address", address, "--min-nodes", count, "--"]
    return [*variables, *srun, *ray, "env", f"RAY_ADDRESS={address}"]


def registered_ray(environment: Mapping[str, str]) -> str | None:
    """The address of a Ray that this user started by hand here and that still runs: verl would join it unasked."""
    file = _registration(environment)
    try:
        address = file.read_text(encoding="utf-8").strip() if file.stat().st_uid == os.getuid() else ""
    except OSError:
        return None
    found = _HOST_AND_PORT.fullmatch(address)
    return address if found and answers(found[1], int(found[2])) else None


def own_ray_directory(environment: Mapping[str, str], on_several_nodes: bool) -> dict[str, str]:
    """RAY_TMPDIR, where verl's own Ray must not see the registration of another user's or of one that has ended.

    On several nodes ``ray start`` registers itself on each, and fails where another user's file lies. This node alone
    can be looked at.
    """
    left = os.path.lexists(_registration(environment)) or (on_several_nodes and "RAY_TMPDIR" not in environment)
    if not left or "RAY_ADDRESS" in environment:
        return {}
    # Ray's sockets are 68 bytes below it, and a socket's path has 107 at most.
    return {"RAY_TMPDIR": tempfile.mkdtemp(prefix="ray-", dir=environment.get("RAY_TMPDIR", "/tmp"))}


def _registration(environment: Mapping[str, str]) -> Path:
    """The file in which ``ray start`` leaves its address for others to find; after a kill it stays."""
    directory = environment.get("RAY_TMPDIR") or environment.get("TMPDIR") or "/tmp"
    return Path(directory) / "ray" / "ray_current_cluster"


def answers(host: str, port: int) -> bool:
    """Return whether something accepts connections there."""
    try:
        with socket.create_connection((host, port), timeout=_ANSWER_SECONDS):
            return True
    except (OSError, OverflowError):
        return False


def last_words(text: str) -> str | None:
    """One line: the last exception that is not another one's consequence, and advice if the cause is known.

    With the place where it was raised if it says nothing itself. Without such an exception Slurm's first error, which
    those that follow come from, then the last consequence; None if there is nothing of all this.
    """
    plain = (_PREFIXES.sub("", _COLOUR.sub("", line)).rstrip() for line in text.splitlines())
    lines = [line for line in plain if line]
    causes: list[str] = []
    consequences: list[str] = []
    for number, line in enumerate(lines):
        found = _EXCEPTION.match(line)
        if found is None:
            continue
        name = found[1].rsplit(".", 1)[-1]
        said = line if found[2] else f"{line.rstrip(':')} at: {lines[number - 1].strip()}" if number else line
        follows = name in _CONSEQUENCES or _POINTS_ELSEWHERE.search(line)
        (consequences if follows else causes).append(said)
    found_by_slurm = [line for line in reversed(lines) if _SLURM.match(line)]
    words = [*consequences, *found_by_slurm, *causes]
    if not words:
        return None
    chosen = words[-1].strip()[:_LONGEST_WORDS]
    advice = [advice for signs, advice in _ADVICE if any(sign in chosen for sign in signs)]
    return f"{chosen} ({advice[0]})" if advice else chosen


def ended(status: int) -> str:
    """An exit status in words."""
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    return f"exit status {status}, and no error in the log"


def end_processes_of(run_file: Path) -> int:
    """Kill every process on this machine that was started for the run of ``run_file``; how many there were.

    To be called by whoever holds the run's lock, while no verl of its own is at work. The caller stays, and so do the
    processes that it was started by.
    """
    own = {process.pid for process in (psutil.Process(), *psutil.Process().parents())}
    found = [process for process in psutil.process_iter() if process.pid not in own and _works_for(process, run_file)]
    for process in found:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    # psutil's wait would take the exit status of a merger from the thread that waits for it, which then reads 0.
    given_up = time.monotonic() + _PATIENCE_SECONDS
    while any(map(_is_alive, found)) and time.monotonic() < given_up:
        time.sleep(0.01)
    return len(found)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _works_for(process: psutil.Process, run_file: Path) -> bool:
    """Return whether its environment names the run; a process that ends meanwhile, or is another user's, does not."""
    try:
        named: str | None = process.environ().get(RUN_VARIABLE)
    except (psutil.Error, OSError):
        return False
    return named == str(run_file)
