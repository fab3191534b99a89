"""``python -m rlvr.base_model corpus|train``: the base model's worked solutions, and the model itself."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evals.command_line import run_command
from evals.core.errors import UserError
from evals.core.files import fingerprint, write_jsonl
from evals.core.manifest import Manifest, hash_files
from evals.core.records import ProblemKind
from rlvr.base_model import VERSION
from rlvr.base_model.corpus import FlawedArithmetic, draw_corpus


def _read_settings(text: str, keys: Sequence[str]) -> dict[str, Any]:
    """The object that ``--settings`` holds.

    Raises:
        UserError: not JSON, or its keys are not exactly ``keys``.
    """
    try:
        settings = json.loads(text)
    except ValueError as error:
        raise UserError(f"--settings: is not JSON ({error})") from None
    if not isinstance(settings, dict) or settings.keys() != set(keys):
        found = ", ".join(settings) if isinstance(settings, dict) else type(settings).__name__
        raise UserError(f"--settings: has {found or 'no keys'}; accepted: an object with {', '.join(keys)}")
    return settings


def _corpus(arguments: argparse.Namespace) -> None:
    settings = _read_settings(arguments.settings, ("seed", "kinds", "error_rates", "shares", "misconception_share"))
    flaws = FlawedArithmetic(
        error_rates=tuple(settings["error_rates"]),
        shares=tuple(settings["shares"]),
        misconception_share=settings["misconception_share"],
        seed=settings["seed"],
    )
    kinds = [ProblemKind.parse(kind, "--settings: kinds") for kind in settings["kinds"]]
    write_jsonl(arguments.out, draw_corpus(kinds, arguments.count, settings["seed"], flaws))
    parameters = {"version": VERSION, "count": arguments.count, **settings}
    Manifest(
        kind="corpus",
        inputs={},
        outputs=hash_files(arguments.out.parent, arguments.out),
        parameters=parameters,
        fingerprint=fingerprint(parameters),
    ).write(arguments.out.with_suffix(".manifest.json"))


def _train(arguments: argparse.Namespace) -> None:
    import torch

    from rlvr.base_model.train import BaseModelSettings, train_base_model

    torch.set_num_threads(arguments.threads)
    names = [field.name for field in dataclasses.fields(BaseModelSettings)]
    settings = BaseModelSettings(**_read_settings(arguments.settings, names))
    train_base_model(
        settings, arguments.corpus, arguments.out, arguments.checkpoint_interval, arguments.lock_wait_seconds
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; 0, or 2 after a one-line error."""
    parser = argparse.ArgumentParser(prog="python -m rlvr.base_model", description=__doc__)
    commands = parser.add_subparsers(required=True)
    corpus = commands.add_parser("corpus", help="write worked solutions, of which a part is wrong")
    corpus.add_argument("--settings", required=True, help="JSON: a model's corpus, as in the study's configuration")
    corpus.add_argument("--count", type=int, required=True)
    corpus.add_argument("--out", type=Path, required=True, help="JSONL file; its manifest goes beside it")
    corpus.set_defaults(run=_corpus)
    train = commands.add_parser("train", help="train on the corpus")
    train.add_argument("--settings", required=True, help="JSON: architecture and the model's training settings")
    train.add_argument("--corpus", type=Path, required=True)
    train.add_argument("--threads", type=int, required=True)
    train.add_argument("--checkpoint-interval", type=int, required=True, help="steps between saved states")
    train.add_argument("--lock-wait-seconds", type=float, default=600.0)
    train.add_argument("--out", type=Path, required=True, help="directory of the base model")
    train.set_defaults(run=_train)
    return run_command(parser, argv)


if __name__ == "__main__":
    sys.exit(main())
