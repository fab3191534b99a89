"""Another trainer, in a process of its own that runs in the environment that has it."""

import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from select import select
from typing import Any, Protocol

from evals.core.errors import UserError
from rlvr.conform.cases import LONGEST
from rlvr.conform.loss_references import Batch, Rows

ADAPTERS = Path(__file__).parent / "adapters"
PATIENCE = 300.0
"""Seconds that an answer may take; importing a trainer for the first time takes most of it."""
Ranks = Sequence[Sequence[Sequence[int]]]
"""The rows of each micro-batch of each rank."""


class Failed(Exception):
    """A trainer's code that raised an error."""


class Unsupported(Exception):
    """A trainer that has no such loss or option."""


class Answering(Protocol):
    """What answers questions about a trainer."""

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """Answer a question of :class:`rlvr.conform.worker.Answers`."""


class Process:
    """A worker in a process, which ends with the block that it is used in."""

    def __init__(
        self, adapter: Path, python: Path, checkout: Path | None = None, variables: Mapping[str, str] | None = None
    ) -> None:
        command = [
            str(python.absolute()),  # a link in an environment leads out of it
            str(ADAPTERS.parent / "worker.py"),
            str(adapter.resolve()),
            *([str(checkout.resolve())] if checkout else []),
        ]
        self.name = adapter.stem
        self.folder = tempfile.TemporaryDirectory()  # for what trainers write when they are imported
        self.said = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed on exit)
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.said,
                text=True,
                cwd=self.folder.name,
                env={**os.environ, **(variables or {})},
            )
        except OSError as error:
            raise UserError(f"--python: {python} cannot be run ({error.strerror})") from None

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_: Any) -> None:
        self.process.kill()
        self.process.communicate()
        self.said.close()
        self.folder.cleanup()

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """Ask and wait; a process that ends or keeps silent is a :class:`UserError`."""
        self.ask(question)
        return self.hear()

    def ask(self, question: dict[str, Any]) -> None:
        """Ask; a process that has ended is noticed when its answer is heard."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(question) + "\n")
            self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        """Wait for the answer to what was asked."""
        assert self.process.stdout is not None
        is_there = select([self.process.stdout], [], [], PATIENCE)[0]
        line = self.process.stdout.readline() if is_there else ""
        if line:
            return json.loads(line)  # type: ignore[no-any-return]
        self.said.seek(0)
        last = (self.said.read().strip().splitlines() or ["it said nothing"])[-1]
        how = "ended" if is_there else f"did not answer within {PATIENCE:g} s"
        raise UserError(f"{self.name}: its process {how}: {last}")


def adapter_of(name: str) -> Path:
    """Find the adapter of a trainer by its name, or a user's by its path."""
    path = Path(name) if name.endswith(".py") else ADAPTERS / f"{name.replace('-', '_')}.py"
    if not path.is_file():
        names = ", ".join(sorted(each.stem.replace("_", "-") for each in ADAPTERS.glob("[a-z]*.py")))
        raise UserError(f"{name}: there is no such adapter; accepted: {names}, or a FILE.py (docs/conformance.md)")
    return path


def gradient(
    trainer: Answering,
    asked: Mapping[str, Any],
    batch: Batch,
    ranks: Ranks | None = None,
    padding: float = 0.0,
    mini_batches: int = 1,
) -> tuple[Rows, dict[str, str]]:
    """Ask for the gradient of a batch, whole or cut, and for the trainer's own options.

    ``mini_batches`` is how many of the batch's size the rollouts are trained in.

    Raises:
        Unsupported: the trainer has no such loss or option.
        Failed: its code raised an error.
    """
    fields = {name: getattr(batch, name) for name in ("lengths", "new", "old", "advantage", "group")}
    answer = checked(
        trainer.answer(
            {
                "ask": "gradient",
                "case": dict(asked),
                "batch": {**fields, "sampler": batch.sampler, "reference": batch.reference},
                "ranks": ranks or [[list(range(len(batch.lengths)))]],
                "padding": padding,
                "mini_batches": mini_batches,
                "longest": LONGEST,
            }
        )
    )
    return answer["gradient"], answer["options"]


def advantages(trainer: Answering, name: str, rewards: list[float], groups: list[int]) -> list[float]:
    """Ask for advantages; errors as for :func:`gradient`."""
    question = {"ask": "advantages", "name": name, "rewards": rewards, "groups": groups}
    return checked(trainer.answer(question))["advantages"]  # type: ignore[no-any-return]


def checked(answer: dict[str, Any]) -> dict[str, Any]:
    """Raise what an answer says that went wrong."""
    if "unsupported" in answer:
        raise Unsupported(answer["unsupported"])
    if "error" in answer:
        raise Failed(answer["error"])
    return answer
