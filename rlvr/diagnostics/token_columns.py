"""The columns of a token table, and reading one."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyarrow.parquet as parquet

from evals.core.errors import UserError

COLUMNS = {
    "run": "string",
    "step": "int32",
    "problem": "string",
    "group": "int32",
    "sample": "int32",
    "position": "int32",
    "token": "int32",
    "text": "string",
    "token_class": "string",
    "reward": "float32",
    "advantage": "float32",
    "side": "int8",
    "weight": "float32",
    "mini_batch": "int32",
    "old_log_prob": "float32",
    "new_log_prob": "float32",
    "entropy": "float32",
    "ratio": "float32",
    "gate": "float32",
}
"""Column -> type. docs/diagnostics.md says what each holds."""


def read_token_table(path: Path) -> pd.DataFrame:
    """A token table.

    Raises:
        UserError: the file is missing, no parquet, or has other columns.
    """
    try:
        frame: pd.DataFrame = parquet.read_table(path).to_pandas()
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except Exception as error:  # pyarrow raises several types on a damaged file
        raise UserError(f"{path}: is not a parquet file ({error})") from error
    missing = [column for column in COLUMNS if column not in frame]
    if missing:
        raise UserError(f"{path}: lacks the column {missing[0]}; accepted: {', '.join(COLUMNS)}")
    return frame[list(COLUMNS)]
