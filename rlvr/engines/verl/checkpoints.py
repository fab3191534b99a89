"""verl's saved states with a manifest of ours beside their shards, so that a damaged or half-written one is known.

verl names its newest state in a tracker file that it writes last and not atomically: after a kill the file may be
empty, or name a state whose shards are not all there. The manifest is written after everything else of a state.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from evals.core.errors import UserError
from evals.core.files import read_json, sha256_file, write_json, write_text

MANIFEST = "shards.json"
TRACKER = "latest_checkpointed_iteration.txt"
_STEP = re.compile(r"global_step_(\d+)")
_READERS = 8
"""Shards that are hashed at a time: a state of 8 billion parameters has 98 GB of them."""


def record(state: Path, step: int) -> None:
    """Write the manifest of a state that verl has just saved."""
    files = sorted(path for path in state.rglob("*") if path.is_file() and path.name != MANIFEST)
    names = [path.relative_to(state).as_posix() for path in files]
    write_json(state / MANIFEST, {"step": step, "files": dict(zip(names, _digests(files), strict=True))})


def is_intact(state: Path) -> bool:
    """Whether every file of a state has the bytes that its manifest says."""
    try:
        files = read_json(state / MANIFEST)["files"]
        return bool(files) and _digests(state / name for name in files) == list(files.values())
    except (UserError, KeyError, TypeError, AttributeError):  # no such file, no manifest, or another one's content
        return False


def _digests(files: Iterable[Path]) -> list[str]:
    """Of each file.

    Raises:
        UserError: one is missing.
    """
    with ThreadPoolExecutor(_READERS) as readers:
        return list(readers.map(sha256_file, files))


def prepare_resume(directory: Path) -> int:
    """Make verl continue from the newest intact state under ``directory``; its step, 0 if there is none.

    Damaged states after it are removed, and the tracker names it.
    """
    for step in reversed(steps(directory)):
        state = directory / f"global_step_{step}"
        if is_intact(state):
            write_text(directory / TRACKER, str(step))
            return step
        print(f"{state}: damaged or not saved to its end; going back to the state before it", flush=True)
        shutil.rmtree(state)
    (directory / TRACKER).unlink(missing_ok=True)
    return 0


def remove_old(directory: Path, kept: int) -> None:
    """Remove all states but the newest ``kept``: verl counts those alone that it saved since it was started."""
    for step in steps(directory)[:-kept]:
        shutil.rmtree(directory / f"global_step_{step}")


def steps(directory: Path) -> list[int]:
    """Steps that a state lies there for, intact or not, ascending."""
    if not directory.is_dir():
        return []
    matches = (_STEP.fullmatch(path.name) for path in directory.iterdir())
    return sorted(int(match[1]) for match in matches if match)
