"""The columns of the kinds of token table, the classes of tokens, and reading a table.

A replayed run, a step whose rollouts a run kept, and a comparison of two checkpoints each have a directory with a
``tokens.parquet``.
"""

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as parquet

from evals.core.errors import InvalidInput
from evals.problems.arithmetic import OPERATOR_WORDS, OPERATORS
from rlvr.engines.rollouts import ROLLOUT_COLUMNS

_OF_UPDATE = ("new_log_prob", "ratio", "gate")
"""The columns that a replay measures of the optimizer steps; a run that keeps its rollouts lacks them."""
REPLAY_COLUMNS = {
    **ROLLOUT_COLUMNS,
    **dict.fromkeys(_OF_UPDATE, "float32"),
    "token_class": "string",
    "side": "int8",
}
"""The columns of a replayed run and their types; docs/tokens.md describes each."""
DISPLACEMENT = "displacement"
"""A further column of a replayed run in bfloat16, in float32."""

COMPARISON_KIND = "token_comparison"  # the manifest's kind of a comparison of two checkpoints
_OF_BOTH_MODELS = ("base_entropy", "trained_entropy", "kl_trained_base", "kl_base_trained")
MODEL_COLUMNS = ("base_log_prob", "trained_log_prob", *_OF_BOTH_MODELS)
"""A token's log-probability under two models, and the entropies and divergences of their distributions, in nats."""
_PLACE = {"problem": "string", "sample": "int32", "position": "int32", "token": "int32", "text": "string"}
COMPARISON_COLUMNS = {**_PLACE, **dict.fromkeys(MODEL_COLUMNS, "float32")}
"""The columns of a comparison and their types."""
_OPTIONAL_COLUMNS = ("reward", "token_class")
"""More columns of a comparison: for graded samples, and where every problem is of a generated kind."""

CLASSES = ("operand", "operator", "result", "answer", "format")
"""Digits before "=", + - * /, digits after "=", digits in the box or after ####, and everything else (=, line ends, the
box); in words the two digits of a step, "plus" and its like, the third digit, and everything else."""
_OPERATORS = (*OPERATORS, "/", *OPERATOR_WORDS.values())
_EQUATION = re.compile(r"[-+*/].*=(?: [\d.,]*)?$")
"""A line up to its result: an operation, the sign and, after a space, the digits of the result so far."""
_BOTH_KINDS = "a directory made by `claims replay` or `claims compare`"


def token_class(line: str, text: str) -> str:
    """Return the class of the token ``text`` after ``line``, the beginning of its line.

    The classes are those of generated problems, where a line is ``3+4=7``, ``b=3+4=7`` or ``\\boxed{7}``, or is made of
    sentences such as ``Next, 3 plus 4 slowly counted gives 7.``, and those of solutions with lines ``12 - 4 = 8`` and
    ``#### 8``. In other texts digits, operators and the rest are still told apart.
    """
    word = text.removeprefix(" ")
    if not word.isdigit():
        return "operator" if word in _OPERATORS else "format"
    if "{" in line or line.startswith("####"):
        return "answer"
    sentence = line.rpartition(".")[2]
    if any(f" {operator} " in sentence for operator in OPERATOR_WORDS.values()):
        return "result" if sum(map(str.isdigit, sentence)) > 1 else "operand"
    # The result follows an operation: "b=" alone, of a definition, starts one.
    return "result" if _EQUATION.search(line) else "operand"


def classes_of(rollouts: np.ndarray, texts: list[str]) -> list[str]:
    """Return the class of each token [N], from its text, its rollout and the texts before it in that rollout."""
    classes: list[str] = []
    previous, line = -1, ""
    for rollout, text in zip(rollouts.tolist(), texts, strict=True):
        line = line if rollout == previous else ""
        classes.append(token_class(line, text))
        line, previous = (line + text).rpartition("\n")[2], rollout
    return classes


def is_comparison(directory: Path) -> bool:
    """Tell a comparison of two checkpoints from the rollouts of a run.

    InvalidInput if the directory holds neither.
    """
    path = directory / "tokens.parquet"
    try:
        names = set(parquet.read_schema(path).names)
    except FileNotFoundError:
        raise InvalidInput(str(path), "", "no such file", _BOTH_KINDS) from None
    except Exception as error:  # pyarrow raises several types on a damaged file
        raise InvalidInput(str(path), "", f"is not a parquet file ({error})", _BOTH_KINDS) from error
    if not set(COMPARISON_COLUMNS) <= names and not set(ROLLOUT_COLUMNS) <= names:
        raise InvalidInput(str(path), "", "is no token table", _BOTH_KINDS)
    return set(COMPARISON_COLUMNS) <= names


def read_token_table(directory: Path, step: int | None = None) -> pd.DataFrame:
    """Read the token table of a replayed run, or of a step that a run kept; InvalidInput if there is none.

    Read are the rows of ``step``, or all. Of a kept step, what a replay measures of the optimizer steps is NaN.
    """
    return completed(read_recorded(directory, step))


def read_recorded(
    directory: Path, step: int | None = None, columns: Sequence[str] = (*REPLAY_COLUMNS, DISPLACEMENT)
) -> pd.DataFrame:
    """Read the columns of :func:`read_token_table`, or some, that were recorded, without those that are worked out."""
    path = directory / "tokens.parquet"
    if is_comparison(directory):
        raise InvalidInput(str(path), "", "compares two checkpoints", "a directory made by `claims replay`")
    kept = [name for name in parquet.read_schema(path).names if name in columns]
    return pd.read_parquet(path, columns=kept, filters=None if step is None else [("step", "==", step)])


def completed(rows: pd.DataFrame) -> pd.DataFrame:
    """Give rows of rollouts the columns of a replay that they lack."""
    lacking: dict[str, Any] = {name: np.nan for name in _OF_UPDATE if name not in rows}
    if "side" not in rows:
        rollout = rows.groupby(["step", "group", "sample"], sort=False).ngroup().to_numpy()
        lacking |= {"side": np.sign(rows["advantage"]), "token_class": classes_of(rollout, rows["text"].tolist())}
    types = {**REPLAY_COLUMNS, **({DISPLACEMENT: "float32"} if DISPLACEMENT in rows else {})}
    return rows.assign(**lacking)[list(types)].astype(types)


def read_comparison(
    directory: Path, problems: Collection[str] | None = None, columns: Sequence[str] | None = None
) -> pd.DataFrame:
    """Read the token table of two checkpoints; InvalidInput if the directory holds none.

    Read are the rows of ``problems`` and, as far as the table has them, ``columns``; None for all.
    """
    path = directory / "tokens.parquet"
    if not is_comparison(directory):
        raise InvalidInput(str(path), "", "is of a replayed run", "a directory made by `compare`")
    wanted = columns or (*COMPARISON_COLUMNS, *_OPTIONAL_COLUMNS)
    chosen = [name for name in parquet.read_schema(path).names if name in wanted]
    filters = None if problems is None else [("problem", "in", list(problems))]
    return pd.read_parquet(path, columns=chosen, filters=filters)
