"""Reading ``results/scores/{benchmark}.json`` back for comparisons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from evals.core.errors import UserError
from evals.core.files import read_json
from evals.core.manifest import verify_outputs
from evals.statistics.accuracy import FloatArray, check_counts


@dataclass(frozen=True)
class ScoredRun:
    """One run's counts of correct samples, aligned with the table's problems."""

    run: str
    model: str
    method: str
    correct_counts: tuple[int, ...]


@dataclass(frozen=True)
class ScoreTable:
    """All runs' scores on one benchmark; ``runs`` in file order, by name."""

    path: Path
    benchmark: str
    samples: int
    problems: int
    runs: Mapping[str, ScoredRun]

    def accuracies(self, runs: Sequence[str]) -> FloatArray:
        """Fraction of correct samples [len(runs), N]."""
        return np.array([self.runs[run].correct_counts for run in runs]) / self.samples


def read_score_table(path: Path) -> ScoreTable:
    """Read a scores file after checking it against its manifest.

    Raises:
        UserError: the file is missing, changed or malformed, or a run's counts are no counts or of another length.
    """
    verify_outputs(path.with_suffix(".manifest.json"), "scores")
    content = read_json(path)
    _require(path, "the file", content, ("benchmark", "samples_per_problem", "problem_ids", "scores"))
    samples, problems = content["samples_per_problem"], len(content["problem_ids"])
    if problems < 2:
        raise UserError(f"{path}: problem_ids: a comparison needs at least two problems, found {problems}")
    runs: dict[str, ScoredRun] = {}
    for number, row in enumerate(content["scores"], start=1):
        _require(path, f"scores entry {number}", row, ("run", "model", "method", "correct_counts"))
        counts = row["correct_counts"]
        if len(counts) != problems:
            raise UserError(
                f"{path}: run {row['run']}: correct_counts has {len(counts)} entries for {problems} problems"
            )
        try:
            check_counts(counts, samples)
        except ValueError as error:
            raise UserError(f"{path}: run {row['run']}: {error}") from None
        runs[row["run"]] = ScoredRun(row["run"], row["model"], row["method"], tuple(counts))
    if not runs:
        raise UserError(f"{path}: scores: is empty")
    return ScoreTable(path, content["benchmark"], samples, problems, runs)


def _require(path: Path, where: str, value: object, keys: Sequence[str]) -> None:
    """Refuse what is no object or lacks a key."""
    missing = [key for key in keys if not isinstance(value, dict) or key not in value]
    if missing:
        raise UserError(f"{path}: {where} lacks {', '.join(missing)}")
