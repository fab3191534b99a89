"""How a command's rows are printed: a table for people, JSON or CSV for programs."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from evals.tables.layout import Table, markdown

Format = Literal["table", "json", "csv"]


def print_rows(form: Format, rows: Sequence[Mapping[str, Any]], table: Table, key: str) -> None:
    """Print ``rows`` in the form asked for; ``table`` shows the same to people, ``key`` names the rows in JSON."""
    if form == "json":
        print(json.dumps({key: rows}, indent=2, ensure_ascii=False, allow_nan=False))
    elif form == "csv":
        sys.stdout.write(_csv([_flat(row) for row in rows]))
    else:
        print(markdown([table]), end="")


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of plain cells: intervals become two columns, mappings one for each key, lists their elements."""
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if key.endswith("confidence_interval"):
            low, high = value or (None, None)
            flat |= {f"{key}_low": low, f"{key}_high": high}
        elif isinstance(value, dict):
            flat |= {f"{key}_{inner}": each for inner, each in value.items()}
        elif isinstance(value, list):
            flat[key] = " ".join(map(str, value))
        else:
            flat[key] = value
    return flat


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
