"""GPUs that processes of one machine share out among themselves: each samples on devices of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterable
from pathlib import Path

from filelock import FileLock, Timeout

from evals.core.errors import InvalidInput, UserError

LEAST_DRIVER = "580.65.06"
"""The oldest NVIDIA driver for CUDA 13, which the pinned torch brings."""
_DRIVER = re.compile(r"\d+(?:\.\d+)+")
_VARIABLE = "CUDA_VISIBLE_DEVICES"
_CLAIMED = "RLVR_BENCH_CLAIMED_DEVICES"
"""The variable that tells a child the GPUs of its parent."""
_POLL_SECONDS = 0.5
_held: list[FileLock] = []
"""Locks of this process, which the operating system frees when it dies, however it dies."""


def claim_one(device: str) -> None:
    """Take one GPU if ``device`` is cuda, before torch looks for any; UserError if torch then sees none.

    torch is told to take kernels that repeat themselves, where it has some.
    """
    if device != "cuda":
        return
    claim_devices(1)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # so that products repeat themselves
    import torch

    if not torch.cuda.is_available():
        raise UserError("device: cuda was asked for, but torch sees no GPU; accepted here: cpu")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    # What was seen on a card: docs/results/gpu.md.
    warnings.filterwarnings("ignore", message="(?s).*(cumsum_cuda_kernel|Attention defaults to a non-deterministic)")


def claim_devices(count: int, directory: Path | None = None) -> None:
    """Take ``count`` GPUs that no other process has claimed, and hide the others from this one; waits until there are.

    Which GPUs there are says ``CUDA_VISIBLE_DEVICES``, or the machine where it is not set. ``directory`` has the locks,
    by default one of this user on this machine; of a job that Slurm gave its GPUs one of the job, for each such job may
    count its own from 0.
    """
    devices = _visible_devices()
    if _held or not devices:  # one model a process; GPUs of another maker are not listed here
        return
    if (claimed := os.environ.get(_CLAIMED)) and claimed == os.environ.get(_VARIABLE):  # by this one's parent, for both
        return
    if len(devices) < count:
        raise InvalidInput("", "tensor_parallel_size", f"is {count} with {len(devices)} GPUs", "at most as many")
    if directory is None:
        job = os.environ.get("SLURM_JOB_ID") if _VARIABLE in os.environ else None
        directory = Path(tempfile.gettempdir()) / "-".join(["rlvr-devices", str(os.getuid()), *([job] if job else [])])
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    announced = False
    while len(taken := _free(devices, count, directory)) < count:
        if not announced:
            print(f"waiting for {count} of the GPUs {', '.join(devices)}, which other jobs have", flush=True)
            announced = True
        time.sleep(_POLL_SECONDS)
    os.environ[_VARIABLE] = os.environ[_CLAIMED] = ",".join(taken)


def drivers() -> list[str]:
    """The NVIDIA driver's version as each GPU of this machine reports it; none without nvidia-smi."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    said = subprocess.run(query, capture_output=True, text=True, check=False).stdout
    return [line.strip() for line in said.splitlines() if _DRIVER.fullmatch(line.strip())]


def require_driver(cuda: str | None, versions: Iterable[str]) -> None:
    """Check the drivers that were ``found`` where torch brings CUDA 13.

    vLLM finds an old one in a process of its own, and says only that its engine did not start. ``cuda`` is the version
    that torch names, None of a torch without CUDA.
    """
    for driver in versions:
        if cuda and cuda.startswith("13.") and _numbers(driver) < _numbers(LEAST_DRIVER):
            raise UserError(
                f"the NVIDIA driver of this machine is {driver}; accepted: {LEAST_DRIVER} or newer, for CUDA {cuda}"
            )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _visible_devices() -> list[str]:
    named = os.environ.get(_VARIABLE)
    if named is not None:
        return [name.strip() for name in named.split(",") if name.strip()]
    numbers = (path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*"))
    return sorted(numbers, key=int)


def _free(devices: Iterable[str], count: int, directory: Path) -> list[str]:
    """Lock ``count`` devices and name them; lock none if there are fewer, so that nobody waits for half of its own."""
    locks: dict[str, FileLock] = {}
    for name in devices:
        lock = FileLock(directory / f"{name.replace('/', '_')}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            continue
        locks[name] = lock
        if len(locks) == count:
            _held.extend(locks.values())
            return list(locks)
    for lock in locks.values():
        lock.release()
    return []
