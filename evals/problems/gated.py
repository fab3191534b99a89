"""Benchmarks whose texts may not be published: what is written of them, and how they are read again.

GPQA is given out on the promise that no example appears in plain text. Its problem file therefore holds ids, answer
letters, option orders and a hash of each text; the texts stay in the source and in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evals.core.errors import UserError
from evals.core.files import sha256_bytes
from evals.core.records import Gold, Problem
from evals.problems.benchmark import read_benchmark

TEXT_HASH = "problem_sha256"


def withhold_texts(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows with a hash in place of each problem's text."""
    return [
        {**{key: value for key, value in row.items() if key != "problem"}, TEXT_HASH: _hash(row["problem"])}
        for row in rows
    ]


def restore_texts(golds: Sequence[Gold], settings: Mapping[str, Any]) -> list[Problem]:
    """The problems with their texts, read again from the source.

    Args:
        golds: the lines of a problem file without texts.
        settings: of the benchmark, as it was read.

    Raises:
        UserError: the source cannot be read, or no longer holds these texts; the message names an id, never a text.
    """
    texts = {row["id"]: row["problem"] for row in read_benchmark(settings).rows}
    for gold in golds:
        if gold.id not in texts or _hash(texts[gold.id]) != gold.problem_sha256:
            raise UserError(f"{settings['name']}: the source no longer holds problem {gold.id} as it was first read")
    return [Problem(**gold.model_dump(), problem=texts[gold.id]) for gold in golds]


def _hash(text: str) -> str:
    return sha256_bytes(text.encode("utf-8"))
