"""Putting the table of two checkpoints together: finished parts, rewards from grades, and classes of tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow
import pyarrow.parquet as parquet

from evals.core.errors import UserError
from evals.core.files import read_jsonl, replacing, sha256_file
from evals.core.manifest import verify_outputs
from evals.problems.arithmetic import FAMILIES
from rlvr.diagnostics.token_classes import classes_of

Sample = tuple[str, int]


def read_rewards(grades: Path, samples: Path, rows: Sequence[Mapping[str, Any]]) -> dict[Sample, float]:
    """Problem and number of each of the samples ``rows`` -> 1 for a right response, 0 for a wrong one.

    Raises:
        UserError: the file is missing or damaged, is of other samples, or a sample has no grade or two.
    """
    beside = grades.parent / "manifest.json"
    if beside.is_file():
        origin = verify_outputs(beside, "grades").inputs
        recorded = {digest for name, digest in origin.items() if Path(name).name == samples.name}
        if recorded and sha256_file(samples) not in recorded:
            raise UserError(f"{grades}: are not the grades of {samples}; grade these samples, or name their grades")
    found: dict[Sample, float] = {}
    for row in read_jsonl(grades, required=("problem_id", "sample", "correct")):
        sample = (row["problem_id"], row["sample"])
        where = f"{grades}: problem {sample[0]}, sample {sample[1]}"
        if not isinstance(row["correct"], bool):
            raise UserError(f"{where}: correct: is {row['correct']!r}; accepted: true, false")
        if sample in found:
            raise UserError(f"{where}: has two grades")
        found[sample] = float(row["correct"])
    wanted = [(row["problem_id"], row["sample"]) for row in rows]
    if missing := [sample for sample in wanted if sample not in found]:
        raise UserError(f"{grades}: has no grade of problem {missing[0][0]}, sample {missing[0][1]}, of {samples}")
    return {sample: found[sample] for sample in wanted}


def write_comparison(
    path: Path,
    parts: Sequence[Path],
    rewards: Mapping[Sample, float] | None,
    families: Mapping[str, str | None],
) -> None:
    """Put the parts of a comparison together, one in memory at a time.

    Args:
        path: of the table.
        parts: tables of :data:`~rlvr.diagnostics.comparison_table.TYPES`, of whole samples each.
        rewards: of every sample; None for a table without.
        families: problem -> its kind, as far as known; classes of tokens are known of generated kinds.
    """
    with replacing(path) as temporary:
        writer: parquet.ParquetWriter | None = None
        try:
            classified = all(families.get(problem) in FAMILIES for problem in _problems(parts))
            for part in parts:
                frame = pd.read_parquet(part)
                samples = list(zip(frame["problem"], frame["sample"], strict=True))
                if rewards is not None:
                    frame["reward"] = np.array([rewards[sample] for sample in samples], dtype=np.float32)
                if classified:
                    starts = (frame["position"].to_numpy() == 0).cumsum()
                    frame["token_class"] = pd.array(classes_of(starts, list(frame["text"])), dtype="string")
                table = pyarrow.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata()
                writer = writer or parquet.ParquetWriter(temporary, table.schema)
                writer.write_table(table)
        finally:
            if writer is not None:
                writer.close()


def _problems(parts: Sequence[Path]) -> set[str]:
    return {name for part in parts for name in pd.read_parquet(part, columns=["problem"])["problem"]}
