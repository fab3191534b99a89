"""Running our command as a person would, in the process of the test."""

from collections.abc import Callable, Sequence

from rlvr.cli import main


def run_command(*words: object) -> int:
    """The exit status of ``rlvr-bench`` with these words."""
    return main([str(word) for word in words])


def rlvr_bench(*first: str) -> Callable[[Sequence[str]], int]:
    """``rlvr-bench`` with its first words given; takes the others, returns the exit status."""
    return lambda words: run_command(*first, *words)
