"""The problems of one directory with their texts, in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from evals.core.config.problem_sets import BenchmarkProblems
from evals.core.manifest import verify_outputs
from evals.core.record import read_rows
from evals.core.records import Gold, Problem
from evals.core.run_spec import PLACEHOLDER
from evals.problems.read import restore_texts


@dataclass(frozen=True)
class ProblemSet:
    """The problems of one directory under ``results/problems``.

    Attributes:
        problems: in the file's order.
        gated: the texts may be read and answered, and written nowhere: no artifact, table or message may hold them, nor
            a response that could quote them.
    """

    problems: Sequence[Problem]
    gated: bool

    def prompts(self, template: str) -> list[str]:
        """The prompt of each problem."""
        return [render_prompt(template, problem.problem) for problem in self.problems]


def load(directory: Path) -> ProblemSet:
    """Load the problems of a directory; a gated set's texts come from its source.

    Raises:
        UserError: the directory's files are missing, damaged or lack a key, or a gated set's source cannot be read.
    """
    manifest = verify_outputs(directory / "manifest.json", "problems")
    path = directory / "problems.jsonl"
    if manifest.parameters.get("gated", False):
        content = {**manifest.parameters, "path": manifest.details.get("path"), "sha256": None}
        settings = BenchmarkProblems.parse(content, str(directory / "manifest.json"))
        return ProblemSet(restore_texts(read_rows(path, Gold), settings), gated=True)
    return ProblemSet(read_rows(path, Problem), gated=False)


def render_prompt(template: str, problem: str) -> str:
    r"""``template`` with the problem's text in place of ``{problem}``; other braces, as in ``\boxed{}``, are text."""
    return template.replace(PLACEHOLDER, problem)
