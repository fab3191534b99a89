"""Another trainer, in a process of its own that runs in the environment that has it."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from select import select
from typing import Any, Protocol

from typer import TyperException

from rlvr_conform.cases import LONGEST
from rlvr_conform.loss_references import Batch, Rows

ADAPTERS = Path(__file__).parent / "adapters"
PATIENCE = 300.0
"""Seconds that an answer may take; importing a trainer for the first time takes most of it."""
Ranks = Sequence[Sequence[Sequence[int]]]
"""The rows of each micro-batch of each rank."""


class UserError(TyperException):
    """A mistake that the user can mend; commands print it as a line ``error: <message>`` and exit with status 2."""


class Failed(Exception):
    """A trainer's code that raised an error."""


class Unsupported(Exception):
    """A trainer that has no such loss or option."""


class Answering(Protocol):
    """What answers questions about a trainer."""

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """Answer a question of :class:`rlvr_conform.worker.Answers`."""


class Process:
    """A worker in a process, which ends with the block that it is used in.

    ``python`` is the command that starts the trainer's Python, as :func:`python_of` finds it.
    """

    def __init__(
        self,
        adapter: Path,
        python: Sequence[str],
        checkout: Path | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        command = [
            *python,
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
            raise UserError(f"--python: {python[0]} cannot be run ({error.strerror})") from None

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
        raise UserError(f"{name}: there is no such adapter; accepted: {names}, or FILE.py, an adapter")
    return path


def python_of(adapter: Path, python: Path | None, checkout: Path | None) -> list[str]:
    """Find the command of a Python that has the trainer: the one named, else this one, else one that uv makes."""
    command = [str((python or Path(sys.executable)).absolute())]  # a link in an environment leads out of it
    with Process(adapter, command, checkout) as process:
        about = process.answer({"ask": "versions"})
    missing, install = about["missing"], about["install"]
    if not missing:
        return command
    uv = shutil.which("uv") or os.environ.get("UV")
    if install and uv and python is None and checkout is None:
        print(f"{command[0]} has no {missing}: uv makes an environment with {install}", file=sys.stderr)
        command = [uv, "tool", "run", "--python", sys.executable, "--with", install, "python"]
        if subprocess.run([*command, "-c", ""], check=False).returncode == 0:
            return [*command[:3], "--quiet", *command[3:]]
        raise UserError(f"{adapter.stem}: uv made no environment with {install} (see above)")
    ways = ["--python PYTHON, of an environment that has it"]
    ways += [f"uv on the PATH, which then installs {install}"] if install and not uv else []
    raise UserError(f"{adapter.stem}: {command[0]} has no module {missing}; accepted: {', or '.join(ways)}")


def gradient(
    trainer: Answering,
    asked: Mapping[str, Any],
    batch: Batch,
    ranks: Ranks | None = None,
    padding: float = 0.0,
    mini_batches: int = 1,
    set_to: Mapping[str, Any] | None = None,
) -> tuple[Rows, dict[str, str]]:
    """Ask for the gradient of a batch, whole or cut, and for the trainer's own options.

    ``mini_batches`` is how many of the batch's size the rollouts are trained in; ``set_to`` has options of the
    trainer's own, which are set beside those asked for.

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
                "set_to": dict(set_to or {}),
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
