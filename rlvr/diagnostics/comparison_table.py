"""The token table of two checkpoints: its columns, and reading it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import pandas as pd
import pyarrow.parquet as parquet

from evals.core.errors import UserError

KIND = "token_comparison"
COLUMNS = ("base_log_prob", "trained_log_prob", "base_entropy", "trained_entropy", "kl_trained_base", "kl_base_trained")
"""What two models say about a token: its log-probability, and the distribution that it was drawn from; nats."""
TYPES = {
    "problem": "string",
    "sample": "int32",
    "position": "int32",
    "token": "int32",
    "text": "string",
    **dict.fromkeys(COLUMNS, "float32"),
}
"""Column -> type."""
OPTIONAL = ("reward", "token_class")
"""Columns that follow: where samples are graded, and where all problems are of generated kinds."""


def is_comparison(directory: Path) -> bool:
    """Whether ``directory`` holds a token table of two checkpoints, and not that of a replayed run.

    Raises:
        UserError: it holds neither.
    """
    path = directory / "tokens.parquet"
    accepted = "accepted: a directory made by `tokens` or `compare`"
    try:
        names = set(parquet.read_schema(path).names)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; {accepted}") from None
    except Exception as error:  # pyarrow raises several types on a damaged file
        raise UserError(f"{path}: is not a parquet file ({error}); {accepted}") from error
    if set(TYPES) <= names:
        return True
    if {"step", "old_log_prob"} <= names:
        return False
    raise UserError(f"{path}: is no token table; {accepted}")


def read_comparison(directory: Path, problems: Collection[str] | None = None, text: bool = True) -> pd.DataFrame:
    """The token table of two checkpoints, with ``reward`` and ``token_class`` where it has them.

    Args:
        directory: made by ``rlvr-bench tokens compare``.
        problems: those wanted; None for all.
        text: with the tokens' texts and classes.

    Raises:
        UserError: the directory holds no such table.
    """
    left_out = () if text else ("text", "token_class")
    return _read(directory, [name for name in (*TYPES, *OPTIONAL) if name not in left_out], problems)


def _read(directory: Path, columns: Sequence[str], problems: Collection[str] | None = None) -> pd.DataFrame:
    path = directory / "tokens.parquet"
    if not is_comparison(directory):
        raise UserError(f"{path}: is of a replayed run; accepted: a directory made by `compare`")
    there = [name for name in parquet.read_schema(path).names if name in columns]
    filters = None if problems is None else [("problem", "in", list(problems))]
    frame: pd.DataFrame = parquet.read_table(path, columns=there, filters=filters).to_pandas()
    return frame


def problems_and_rewards(directory: Path) -> pd.DataFrame:
    """``problem``, and ``reward`` where there is one, of every token, without all else.

    Raises:
        UserError: the directory holds no such table.
    """
    return _read(directory, ("problem", "reward"))
