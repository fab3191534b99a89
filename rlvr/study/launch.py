"""Run the ordinary snakemake, after making sure that no other study works in the directory.

    python -m rlvr.study.launch -- --cores 4

Everything after ``--`` is Snakemake's. If a killed study left Snakemake's lock behind, it is removed and the study goes
on; if the other study is alive, one line names its process, and nothing is touched.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

from snakemake.cli import get_argument_parser
from snakemake.cli import main as snakemake

from evals.core.errors import UserError
from rlvr.study.directory import busy, find_snakemake, is_marked_locked, only_study

# Commands that Snakemake answers without running a job or holding its lock.
_ANSWERS = (
    "dryrun", "lint", "unlock", "summary", "detailed_summary", "dag", "rulegraph", "filegraph", "d3dag",
    "list_rules", "list_target_rules", "report",
)  # fmt: skip


def main(arguments: list[str]) -> None:
    """Run snakemake with ``arguments``; leaves through SystemExit with Snakemake's status, or 1 if it may not run."""
    options = get_argument_parser().parse_args(arguments)
    directory = Path(options.directory or ".").resolve()
    with contextlib.ExitStack() as held:
        if not _only_answers(options):
            try:
                held.enter_context(only_study(directory))
                _remove_stale_lock(directory, arguments)
            except UserError as error:
                print(f"error: {error}", file=sys.stderr)
                raise SystemExit(1) from None
        snakemake(arguments)


def _only_answers(options: Namespace) -> bool:
    return any(getattr(options, name) for name in _ANSWERS)


def _remove_stale_lock(directory: Path, arguments: list[str]) -> None:
    """Let Snakemake remove the lock of a study that is dead.

    Raises:
        UserError: the study is alive, or Snakemake cannot unlock.
    """
    if not is_marked_locked(directory):
        return
    process = find_snakemake(directory)
    if process is not None:
        raise UserError(busy(directory, process))
    print("an earlier study was killed; going on from where it was", file=sys.stderr)
    unlock = [sys.executable, "-m", "snakemake", "--unlock", *arguments]
    answer = subprocess.run(unlock, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if answer.returncode != 0:
        raise UserError(f"{directory}: snakemake --unlock failed: {' '.join(answer.stdout.split())}")


if __name__ == "__main__":
    rest = sys.argv[1:]
    main(rest[1:] if rest[:1] == ["--"] else rest)
