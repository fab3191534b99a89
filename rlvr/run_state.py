"""Training state on disk: saved whole, verified before use, written by one process at a time.

A state directory belongs to one fingerprint. Inside it, ``step-00000040/`` holds tensors (safetensors) and values
(JSON) of one moment; it appears whole, by a rename, and ``values.json`` names the hash of the tensors. Nothing is
pickled. A damaged newest state falls back to the one before.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from evals.core.errors import UserError
from evals.core.files import read_json, replacing, sha256_file, write_json
from evals.core.single_writer import single_writer

_KEPT_STATES = 2
_STEP_DIRECTORY = re.compile(r"step-(\d{8})")


class StateStore:
    """Saves and restores the state of one training run under one fingerprint."""

    def __init__(self, directory: Path, fingerprint: str) -> None:
        """``directory`` is the run's state directory; each fingerprint has its own place in it."""
        self._root = directory
        self._directory = directory / fingerprint[:16]

    @contextmanager
    def single_writer(self, wait_seconds: float) -> Iterator[None]:
        """Hold the run; see :func:`evals.core.single_writer.single_writer`.

        Raises:
            UserError: another process still trains this run after ``wait_seconds``, or the directory is not writable.
        """
        with single_writer(self._root, "trains this run", wait_seconds):
            yield

    def save(self, step: int, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Save the state after ``step`` steps; visible at once or not at all. Older states beyond two are removed.

        Raises:
            UserError: the disk is full or not writable.
        """
        target = self._path(step)
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            temporary = Path(tempfile.mkdtemp(dir=self._directory, prefix=".saving-"))
        except OSError as error:
            raise UserError(f"{target}: cannot be written: {error.strerror or error}") from error
        try:
            save_tensors(temporary / "tensors.safetensors", tensors)
            digest = sha256_file(temporary / "tensors.safetensors")
            write_json(temporary / "values.json", {"step": step, "tensors_sha256": digest, "values": dict(values)})
            if target.exists():  # saved by a run that was cut off before it could go on
                shutil.rmtree(target)
            os.replace(temporary, target)
        except OSError as error:
            raise UserError(f"{target}: cannot be written: {error.strerror or error}") from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        for old in self._steps()[:-_KEPT_STATES]:
            shutil.rmtree(self._path(old))

    def latest(self) -> tuple[int, dict[str, Tensor], dict[str, Any]] | None:
        """The newest undamaged state as (step, tensors, values), or None if there is none."""
        for leftover in self._directory.glob(".saving-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        for step in reversed(self._steps()):
            path = self._path(step)
            try:
                content = read_json(path / "values.json")
                if sha256_file(path / "tensors.safetensors") != content["tensors_sha256"]:
                    raise UserError(f"{path}: its tensors differ from the hash they were saved with")
                return step, load_file(path / "tensors.safetensors"), content["values"]
            except (UserError, KeyError, TypeError) as error:
                print(f"{path}: damaged ({error}); going back to the state before it", flush=True)
        return None

    def _path(self, step: int) -> Path:
        return self._directory / f"step-{step:08d}"

    def _steps(self) -> list[int]:
        """Steps that a state exists for, oldest first."""
        if not self._directory.is_dir():
            return []
        matches = (_STEP_DIRECTORY.fullmatch(path.name) for path in self._directory.iterdir())
        return sorted(int(match[1]) for match in matches if match)


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors to a safetensors file, atomically.

    Raises:
        UserError: the disk is full or not writable.
    """
    with replacing(path) as temporary:
        try:
            save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, temporary)
        except SafetensorError as error:  # how safetensors reports the operating system's errors
            raise UserError(f"{path}: cannot be written: {error}") from error


def optimizer_tensors(optimizer_state: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of a torch optimizer's state dict under flat names: ``optimizer.{parameter}.{key}``."""
    return {
        f"optimizer.{index}.{key}": value
        for index, entries in optimizer_state["state"].items()
        for key, value in entries.items()
    }


def restore_optimizer_tensors(optimizer_state: dict[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """An optimizer state dict with the tensors of :func:`optimizer_tensors` put back."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("optimizer."):
            _, index, key = name.split(".", 2)
            state.setdefault(int(index), {})[key] = value
    return {**optimizer_state, "state": state}
