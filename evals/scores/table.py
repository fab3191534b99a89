"""The correct counts of all runs on one benchmark, which comparisons are computed from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from evals.core.errors import InvalidInput
from evals.core.manifest import verify_outputs
from evals.core.records import BenchmarkScores
from evals.statistics.accuracy import FloatArray


@dataclass(frozen=True)
class BenchmarkCounts:
    """The correct samples of all runs on one benchmark.

    Attributes:
        path: the file, for messages.
        samples: samples per problem.
        problems: their number N.
        methods: run -> its model and method, in file order.
        counts: run -> correct samples of each problem.
    """

    path: Path
    benchmark: str
    samples: int
    problems: int
    methods: Mapping[str, tuple[str, str]]
    counts: Mapping[str, Sequence[int]]

    def accuracies(self, runs: Sequence[str]) -> FloatArray:
        """Fraction of correct samples [len(runs), N]."""
        return np.array([self.counts[run] for run in runs]) / self.samples


def read_counts(path: Path) -> BenchmarkCounts:
    """Read a scores file for comparisons, after checking it against its manifest.

    Raises:
        UserError: the file is missing, changed or malformed, or holds fewer than two problems.
    """
    verify_outputs(path.with_suffix(".manifest.json"), "scores")
    content = BenchmarkScores.read(path)
    problems = len(content.problem_ids)
    if problems < 2:
        raise InvalidInput(str(path), "problem_ids", f"has {problems}", "at least 2 problems, for a comparison")
    return BenchmarkCounts(
        path,
        content.benchmark,
        content.samples_per_problem,
        problems,
        {row.run: (row.model, row.method) for row in content.scores},
        {row.run: row.correct_counts for row in content.scores},
    )
