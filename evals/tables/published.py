"""Published numbers and how they were made (config/reference/)."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from evals.core.errors import UserError

SETTINGS = ("samples_per_problem", "temperature", "top_p", "max_new_tokens", "training_problems", "checkpoint")
_CERTAINTIES = ("published", "column inferred", "third-party text")
_AVERAGES = ("Avg(problem-weighted)", "Average(3)", "Avg")


@dataclass(frozen=True)
class Published:
    """One published number, in per cent.

    Attributes:
        paper: short name.
        arxiv: identifier.
        table: where in the paper.
        model: that was trained.
        method: entry of the catalogue that the row is about.
        row: name of the row in the paper.
        benchmark: entry of config/benchmarks that the number is of, or the paper's name of its column.
        metric: such as avg@16.
        value: per cent.
        certainty: ``published``, ``column inferred`` or ``third-party text``.
    """

    paper: str
    arxiv: str
    table: str
    model: str
    method: str
    row: str
    benchmark: str
    metric: str
    value: float
    certainty: str

    @property
    def is_average(self) -> bool:
        """Whether it is the paper's own average over benchmarks."""
        return self.benchmark in _AVERAGES

    @property
    def citation(self) -> str:
        """Where it stands, with what is doubtful about it."""
        doubt = "" if self.certainty == "published" else f", {self.certainty}"
        return f"{self.paper} (arXiv {self.arxiv}), {self.table}{doubt}"


def read_published(path: Path) -> list[Published]:
    """Every published number.

    Raises:
        UserError: the file is missing, or a line lacks a column or has a value that is not accepted.
    """
    names = [field.name for field in fields(Published)]
    try:
        with open(path, encoding="utf-8", newline="") as handle:
            reader = csv.DictReader(handle)
            if reader.fieldnames != names:
                raise UserError(f"{path}: columns are {reader.fieldnames}; accepted: {', '.join(names)}")
            rows = list(reader)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    return [_published(path, number, row) for number, row in enumerate(rows, start=2)]


def _published(path: Path, number: int, row: Mapping[str, str]) -> Published:
    if any(value is None or value == "" for value in row.values()):
        raise UserError(f"{path}: line {number}: a cell is empty")
    if row["certainty"] not in _CERTAINTIES:
        raise UserError(
            f"{path}: line {number}: certainty is {row['certainty']!r}; accepted: {', '.join(_CERTAINTIES)}"
        )
    try:
        value = float(row["value"])
    except ValueError:
        raise UserError(f"{path}: line {number}: value is {row['value']!r}; accepted: a number, in per cent") from None
    if not 0 <= value <= 100:
        raise UserError(f"{path}: line {number}: value is {value}; accepted: 0 to 100, in per cent")
    return Published(**{**row, "value": value})  # type: ignore[arg-type]


def read_settings(path: Path, published: Sequence[Published]) -> dict[str, dict[str, Any]]:
    """The settings of every paper that has a number.

    Raises:
        UserError: the file is missing or not YAML, or a paper or one of its keys is missing or unknown.
    """
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path}: is not valid YAML ({error})") from None
    expected = {"citation", "note", *SETTINGS}
    for arxiv in {row.arxiv for row in published}:
        found = set(content.get(arxiv, {})) if isinstance(content, dict) else set()
        if found != expected:
            problem = ", ".join([*(f"lacks {key}" for key in sorted(expected - found)),
                                 *(f"has unknown {key}" for key in sorted(found - expected))])  # fmt: skip
            raise UserError(f"{path}: {arxiv}: {problem}")
    return dict(content)
