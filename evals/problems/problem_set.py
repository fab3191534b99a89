"""A problem set as it is evaluated or trained on: its rows with their texts, in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evals.core.files import read_jsonl
from evals.core.manifest import verify_outputs
from evals.core.run_spec import PLACEHOLDER
from evals.problems.gated import TEXT_HASH, restore_texts


@dataclass(frozen=True)
class ProblemSet:
    """The problems of one directory under ``results/problems``.

    Attributes:
        rows: each with ``id``, ``problem`` (its text) and ``answer``, in the file's order.
        gated: the texts may be read and answered, and written nowhere: no artifact, table or message may hold them, nor
            a response that could quote them.
    """

    rows: Sequence[Mapping[str, Any]]
    gated: bool

    def prompts(self, template: str) -> list[str]:
        """What the policy is given for each problem."""
        return [render_prompt(template, str(row["problem"])) for row in self.rows]


def load(directory: Path) -> ProblemSet:
    """The problems of a directory that ``rlvr-bench stage`` wrote; a gated set's texts come from its source.

    Raises:
        UserError: the directory's files are missing, damaged or lack a key, or a gated set's source cannot be read.
    """
    manifest = verify_outputs(directory / "manifest.json", "problems")
    path = directory / "problems.jsonl"
    if manifest.parameters.get("gated", False):
        rows = read_jsonl(path, required=("id", TEXT_HASH, "answer"))
        settings = {**manifest.parameters, "path": manifest.details.get("path")}
        return ProblemSet(restore_texts(rows, settings), gated=True)
    return ProblemSet(read_jsonl(path, required=("id", "problem", "answer")), gated=False)


def render_prompt(template: str, problem: str) -> str:
    r"""``template`` with the problem's text in place of ``{problem}``; other braces, as in ``\boxed{}``, are text."""
    return template.replace(PLACEHOLDER, problem)
