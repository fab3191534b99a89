"""``python -m evals.problems COMMAND``: make problem sets, and hold training and evaluation apart."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from evals.command_line import run_command
from evals.core.errors import InvalidInput, UserError
from evals.core.files import fingerprint, read_jsonl, sha256_file, write_jsonl
from evals.core.manifest import Manifest, hash_files
from evals.core.records import ProblemKind
from evals.problems.disjoint import check_disjoint
from evals.problems.generate import as_rows, draw_distinct
from evals.problems.read import parse_settings, write_benchmark
from evals.problems.training_set import REQUIRED, write_training_set


def parse_kinds(text: str) -> list[ProblemKind]:
    """Problem kinds from a JSON list of ``{"family", "operands"}``.

    Raises:
        UserError: not such a list.
    """
    try:
        kinds = json.loads(text)
    except ValueError as error:
        raise UserError(f"--kinds: is not valid JSON ({error})") from None
    if not isinstance(kinds, list):
        raise InvalidInput("--kinds", "", f"is {kinds!r}", "a list of objects with family and operands")
    return [ProblemKind.parse(kind, "--kinds") for kind in kinds]


def _draw(arguments: argparse.Namespace) -> None:
    kinds = parse_kinds(arguments.kinds)
    without = {row["problem"] for file in arguments.without for row in read_jsonl(file, required=("problem",))}
    problems = draw_distinct(kinds, arguments.split, arguments.count, arguments.seed, without)
    path = arguments.out / "problems.jsonl"
    write_jsonl(path, as_rows(problems, arguments.name))
    parameters = {
        "name": arguments.name,
        "split": arguments.split,
        "count": arguments.count,
        "seed": arguments.seed,
        "kinds": [kind.to_json() for kind in kinds],
    }
    Manifest(
        kind="problems",
        inputs={str(file): sha256_file(file) for file in arguments.without},
        outputs=hash_files(arguments.out, path),
        parameters=parameters,
        fingerprint=fingerprint(parameters),
        details={"rows": len(problems)},
    ).write(arguments.out / "manifest.json")


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; 0, or 2 after a one-line error."""
    parser = argparse.ArgumentParser(prog="python -m evals.problems", description=__doc__)
    commands = parser.add_subparsers(required=True)
    draw = commands.add_parser("draw", help="draw different problems from a seed")
    draw.add_argument("--name", required=True, help="prefix of the problems' ids")
    draw.add_argument("--kinds", required=True, help='JSON list: [{"family": "chain", "operands": 3}, ...]')
    draw.add_argument("--split", choices=("train", "evaluation"), required=True)
    draw.add_argument("--count", type=int, required=True)
    draw.add_argument("--seed", type=int, required=True)
    draw.add_argument("--without", type=Path, nargs="*", default=[], help="JSONL files whose problems are not drawn")
    draw.add_argument("--out", type=Path, required=True, help="directory for problems.jsonl and manifest.json")
    draw.set_defaults(run=_draw)
    read = commands.add_parser("read", help="read a benchmark from the Hub or from files")
    read.add_argument("--settings", required=True, help="JSON object: a benchmark's name and the keys of its entry")
    read.add_argument("--out", type=Path, required=True, help="directory for problems.jsonl and manifest.json")
    read.set_defaults(run=lambda given: write_benchmark(parse_settings(given.settings), given.out))
    train = commands.add_parser("read-training-set", help="read a published training set, without its repetitions")
    train.add_argument("--settings", required=True, help="JSON object: the set's name and its entry in config/datasets")
    train.add_argument("--out", type=Path, required=True, help="directory for problems.jsonl and manifest.json")
    train.set_defaults(run=lambda given: write_training_set(parse_settings(given.settings, REQUIRED), given.out))
    check = commands.add_parser("check-disjoint", help="fail if a benchmark's problem was trained on")
    check.add_argument("--benchmark", type=Path, required=True, help="directory of the benchmark's problems")
    check.add_argument("--trained-on", type=Path, nargs="*", default=[], help="JSONL files with a problem a row")
    check.add_argument("--out", type=Path, required=True, help="JSON file for what was compared")
    check.set_defaults(run=lambda given: check_disjoint(given.benchmark, given.trained_on, given.out))
    return run_command(parser, argv)


if __name__ == "__main__":
    sys.exit(main())
