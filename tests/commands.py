"""Running our command as a person would, in the process of the test; and programs in processes of their own."""

import subprocess
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rlvr.cli import main


def ended(words: Iterable[object], **options: Any) -> "subprocess.CompletedProcess[str]":
    """A program that has run to its end, with what it printed; ``options`` of ``subprocess.run``."""
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False, **options)


def run_command(*words: object) -> int:
    """The exit status of ``rlvr-bench`` with these words."""
    return main([str(word) for word in words])


def rlvr_bench(*first: str) -> Callable[[Sequence[str]], int]:
    """``rlvr-bench`` with its first words given; takes the others, returns the exit status."""
    return lambda words: run_command(*first, *words)
