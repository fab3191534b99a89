"""The training problems in the format that verl reads: one row a problem, its prompt as a message."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet

from evals.core.files import replacing
from evals.problems.problem_set import load, render_prompt


def write_prompts(problems: Path, template: str, path: Path) -> int:
    """Write the problems of the directory ``problems`` to ``path``; their number.

    Raises:
        UserError: the problems are missing or damaged, or the file cannot be written.
    """
    rows = load(problems).problems
    table = pa.table(
        {
            "prompt": [[{"role": "user", "content": render_prompt(template, row.problem)}] for row in rows],
            "data_source": ["rlvr"] * len(rows),
            "reward_model": [{"ground_truth": row.answer, "style": "rule"} for row in rows],
            "extra_info": [{"index": number, "id": str(row.id)} for number, row in enumerate(rows)],
        }
    )
    with replacing(path) as temporary:
        parquet.write_table(table, temporary)
    return len(rows)
