"""The code paths of arithmetic on this machine's processor, and which of them are in use.

Numerical libraries choose kernels by the processor's maker and instructions, and other kernels round otherwise. These
variables fix the choice wherever the processor has AVX2; :mod:`evals.generation.arithmetic` applies them.
"""

import os
import platform
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

CODE_PATHS = {
    "ATEN_CPU_CAPABILITY": "avx2",  # torch's own kernels
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_CBWR": "COMPATIBLE",  # any other value means one thing on Intel's processors and another on AMD's
    "OPENBLAS_CORETYPE": "Haswell",  # numpy's matrix products
    "OPENBLAS_NUM_THREADS": "1",  # a product divided among threads is rounded otherwise
}
"""Variables of the environment -> values. Libraries read them when they are loaded."""

PORTABLE, OWN = "portable", "the machine's own"
_NEEDED = {"avx2", "fma"}


def choose_code_paths() -> None:
    """Choose the portable code paths where the processor has them.

    Called before numpy and torch are imported. Later they keep their own choice, and manifests say so.
    """
    if not processor()[1] and not {"numpy", "torch"} & sys.modules.keys():
        os.environ.update(CODE_PATHS)


def in_use() -> bool:
    """Return whether the libraries of this process take the portable code paths."""
    return CODE_PATHS.items() <= os.environ.items()


@cache
def processor() -> tuple[str, str]:
    """The processor's name, and why it cannot take the portable code paths; an empty text if it can."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    name, flags = (re.search(rf"^{key}\s*:\s*(.*)$", text, re.MULTILINE) for key in ("model name", "flags"))
    title = name[1].strip() if name else platform.processor() or platform.machine()
    if platform.machine() not in ("x86_64", "AMD64") or flags is None:
        return title, f"it is no x86-64 processor under Linux ({platform.system()} {platform.machine()})"
    missing = _NEEDED - set(flags[1].split())
    return title, f"it has no {' and no '.join(sorted(missing)).upper()}" if missing else ""


def describe() -> dict[str, Any]:
    """The numerical environment of this process, for a manifest."""
    name, obstacle = processor()
    environment: dict[str, Any] = {"processor": name, "code_paths": PORTABLE if in_use() else OWN}
    environment |= {"obstacle": obstacle} if obstacle else {}
    if (torch := sys.modules.get("torch")) is not None:
        environment |= {"threads": torch.get_num_threads(), "torch_kernels": torch.backends.cpu.get_cpu_capability()}
    return environment | {"libc": " ".join(platform.libc_ver())}


def label(environment: Mapping[str, Any]) -> str:
    """Name the code paths and library versions behind a result, from the environment in its manifest."""
    recorded, packages = environment.get("arithmetic"), environment.get("packages", {})
    if recorded is None:
        return "code paths that were not recorded"
    versions = ", ".join(f"{name} {packages[name]}" for name in ("torch", "numpy") if name in packages)
    if recorded["code_paths"] == PORTABLE:
        return f"portable code paths ({versions})"
    because = f"; {recorded['obstacle']}" if "obstacle" in recorded else ""
    return f"the code paths of {recorded['processor']} ({versions}{because})"


def summary(labels: Iterable[str]) -> str:
    """One line on the arithmetic of several results; an empty one if there are none."""
    counts = Counter(labels)
    if not counts:
        return ""
    if len(counts) > 1:
        parts = "; ".join(f"{count} of {counts.total()} results with {label}" for label, count in counts.most_common())
        return f"Arithmetic is mixed, so that these digits cannot be had again on one machine: {parts}."
    only = next(iter(counts))
    if only.startswith(PORTABLE):
        return f"Arithmetic: {only}; every x86-64 processor with AVX2 gives these digits."
    return f"Arithmetic: {only}; another kind of processor gives other digits."
