"""Draw problem sets from a seed, disjoint between training and evaluation.

Which side a problem belongs to is a property of its text (a hash), not of a list: a benchmark added later cannot
collide with anything that was trained on, and nothing has to be drawn again. :mod:`evals.problems.disjoint` checks the
files all the same.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Literal

from evals.core.errors import InvalidInput
from evals.core.files import read_jsonl, sha256_file
from evals.core.records import ProblemKind
from evals.problems.arithmetic import FAMILIES, Problem, answer
from evals.problems.problem_set import parse_json, write_problem_set

Split = Literal["train", "evaluation"]

_EVALUATION_SHARE = 5
"""One problem in this many belongs to evaluation."""

_MOST_DRAWS_PER_PROBLEM = 200
"""Draws after which a set is called impossible: a family of short problems holds only so many different ones."""


def draw_problem(kind: ProblemKind, generator: random.Random) -> Problem:
    """Draw one problem of a kind."""
    return FAMILIES[kind.family](kind.operands, generator)


def split_of(statement: str) -> Split:
    """The side that a problem belongs to, by the SHA-256 of its text."""
    digest = hashlib.sha256(statement.encode("utf-8")).digest()
    return "evaluation" if int.from_bytes(digest[:8], "big") % _EVALUATION_SHARE == 0 else "train"


def draw_stream(kinds: Sequence[ProblemKind], split: Split, seed: int) -> Iterator[Problem]:
    """Problems of one side without end, kinds equally likely, the same for the same seed; a problem may come again."""
    generator = random.Random(f"{split}/{seed}")
    while True:
        problem = draw_problem(generator.choice(kinds), generator)
        if split_of(problem.statement) == split:
            yield problem


def draw_distinct(
    kinds: Sequence[ProblemKind], split: Split, count: int, seed: int, without: Collection[str] = ()
) -> list[Problem]:
    """``count`` different problems of one side, none of which has its statement in ``without``."""
    problems: dict[str, Problem] = {}
    for draws, problem in enumerate(draw_stream(kinds, split, seed)):
        if len(problems) == count:
            break
        if draws > _MOST_DRAWS_PER_PROBLEM * count:
            names = ", ".join(f"{kind.family} of {kind.operands}" for kind in kinds)
            raise InvalidInput("", "count", f"{count} different {split} problems of {names} cannot be drawn", "fewer")
        if problem.statement not in without:
            problems.setdefault(problem.statement, problem)
    return list(problems.values())


def as_rows(problems: Sequence[Problem], name: str) -> list[dict[str, str]]:
    """Rows of ``problems.jsonl``: id, problem, answer, family."""
    width = len(str(len(problems) - 1))
    return [
        {
            "id": f"{name}-{number:0{width}d}",
            "problem": problem.statement,
            "answer": str(answer(problem)),
            "family": problem.family,
        }
        for number, problem in enumerate(problems)
    ]


def parse_kinds(text: str) -> list[ProblemKind]:
    """Parse problem kinds from a JSON list of ``{"family", "operands"}``."""
    kinds = parse_json(text, "--kinds")
    if not isinstance(kinds, list):
        raise InvalidInput("--kinds", "", f"is {kinds!r}", "a list of objects with family and operands")
    return [ProblemKind.parse(kind, "--kinds") for kind in kinds]


def write_problems(
    name: str, kinds: Sequence[ProblemKind], split: Split, count: int, seed: int, without: Sequence[Path], out: Path
) -> None:
    """Draw different problems and write ``problems.jsonl`` and ``manifest.json``.

    Args:
        name: prefix of the problems' ids.
        kinds: equally likely.
        split: side of the split that they belong to.
        count: how many.
        seed: of the draws.
        without: JSONL files whose problems are not drawn.
        out: directory.
    """
    excluded = {row["problem"] for file in without for row in read_jsonl(file, required=("problem",))}
    rows = as_rows(draw_distinct(kinds, split, count, seed, excluded), name)
    content = {"name": name, "split": split, "count": count, "seed": seed, "kinds": [kind.to_json() for kind in kinds]}
    write_problem_set(out, rows, content, {str(file): sha256_file(file) for file in without}, {"rows": len(rows)})
