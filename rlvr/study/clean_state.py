"""Delete the training state of a study's runs: ``python -m rlvr.study.clean_state [directory]``.

State is undeclared, so that Snakemake never deletes it; this command is the way to be rid of it. Finished results
stay. A run that was not finished starts again from its first step.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from evals.core.errors import UserError
from rlvr.study.directory import busy, find_snakemake, only_study


def clean_state(directory: Path) -> tuple[int, int]:
    """Delete every ``results/*/*/state`` under ``directory``; returns how many, and how many bytes they held.

    Raises:
        UserError: a study is running there.
    """
    with only_study(directory):
        process = find_snakemake(directory)
        if process is not None:
            raise UserError(busy(directory, process))
        states = [path for stage in ("base", "runs") for path in (directory / "results" / stage).glob("*/state")]
        size = sum(path.stat().st_size for state in states for path in state.rglob("*") if path.is_file())
        for state in states:
            shutil.rmtree(state)
    return len(states), size


def main() -> None:
    """Clean the directory that the command names, or the working directory."""
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    try:
        count, size = clean_state(directory)
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    print(f"deleted the training state of {count} runs ({size / 2**20:.1f} MiB); their results are kept")


if __name__ == "__main__":
    main()
