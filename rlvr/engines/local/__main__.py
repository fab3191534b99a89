"""``python -m rlvr.engines.local train RUN.json``: carry out one resolved run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from evals.command_line import run_command


def _train(arguments: argparse.Namespace) -> None:
    import torch

    from evals.core.run_spec import Execution, LocalRun
    from rlvr.engines.local.train import train
    from rlvr.runs.termination import STOPPED, Interrupted

    torch.set_num_threads(arguments.threads)
    execution = Execution(
        device=arguments.device,
        checkpoint_interval=arguments.checkpoint_interval,
        lock_wait_seconds=arguments.lock_wait_seconds,
        grading_workers=arguments.grading_workers,
        hidden_state_budget=arguments.hidden_state_budget,
    )
    try:
        train(LocalRun.read(arguments.run_file), arguments.out or arguments.run_file.parent, execution)
    except Interrupted as stop:
        print(stop, file=sys.stderr)
        sys.exit(STOPPED)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; 0, 2 after a one-line error, or 143 after a SIGTERM with the state saved."""
    parser = argparse.ArgumentParser(prog="python -m rlvr.engines.local", description=__doc__)
    commands = parser.add_subparsers(required=True)
    train = commands.add_parser("train", help="train, or continue, one run")
    train.add_argument("run_file", type=Path, help="run.json, the resolved run")
    train.add_argument("--out", type=Path, help="directory of the run; default: where run.json is")
    train.add_argument("--threads", type=int, required=True)
    train.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    train.add_argument("--checkpoint-interval", type=int, default=10, help="steps between saved states")
    train.add_argument("--grading-workers", type=int, default=1)
    train.add_argument(
        "--hidden-state-budget", type=int, default=4096, help="MiB kept in memory; more are spilled to a file in --out"
    )
    train.add_argument(
        "--lock-wait-seconds", type=float, default=600.0, help="patience with another writer of this run"
    )
    train.set_defaults(run=_train)
    return run_command(parser, argv)


if __name__ == "__main__":
    sys.exit(main())
