"""Stages that make problems and check them: drawn, read from the Hub or from files; disjoint; with their verifiers.

They come first: bad problems end the study at once.
"""

from __future__ import annotations

from typing import Any

from evals.core.run_spec import VERIFIER_FILE
from evals.grading.code import VERIFIER_VERSION
from rlvr.stages.stage import File, Files, Stage

SET = ("/manifest.json", "/problems.jsonl")
"""The files of a set of problems, in its directory."""


class ProblemStage(Stage):
    """A stage that makes or checks problems."""

    target = "results/problems/{name}"
    order = 200


class DrawProblems(ProblemStage):
    """Problems drawn from a seed, of the side of the split that they belong to."""

    kind = "draw_problems"
    endings = SET
    call = "evals.problems.arithmetic:write_problems"

    name: str
    kinds: tuple[dict[str, Any], ...]
    split: str
    count: int
    seed: int

    def arguments(self) -> dict[str, Any]:
        """The name begins the ids of the problems."""
        return {**super().arguments(), "name": self.name}


class ReadProblems(ProblemStage):
    """A benchmark read from the Hub or from files."""

    kind = "read_problems"
    endings = SET
    call = "evals.problems.problem_set:write_benchmark"
    unused = ("files",)  # they stand in the content, too

    name: str
    content: dict[str, Any]
    files: Files = ()


class ReadTrainingSet(ReadProblems):
    """A published training set."""

    kind = "read_training_set"
    call = "evals.problems.training_set:write_training_set"


class ReadSolutions(ReadTrainingSet):
    """A published set of worked solutions that a model is fine-tuned on."""

    kind = "read_solutions"
    target = "results/solutions/{name}"


class TryVerifier(ProblemStage):
    """A user's function that grades: tried on the problems, and copied into the results."""

    kind = "try_verifier"
    target = "results/verifiers/{name}"
    endings = ("/manifest.json", f"/{VERIFIER_FILE}")
    call = "evals.grading.trial:try_verifier"
    version = VERIFIER_VERSION

    name: str
    file: File
    problems: File


class CheckDisjoint(ProblemStage):
    """The check that no problem of a benchmark is trained on; one a benchmark, so that another one touches nothing."""

    kind = "check_disjoint"
    target = "results/problems/{name}/disjoint.json"
    endings = ("",)
    call = "evals.problems.disjoint:check_disjoint"

    name: str
    benchmark: File
    trained_on: Files = ()

    def arguments(self) -> dict[str, Any]:
        """The benchmark by its directory."""
        return {**super().arguments(), "benchmark": self.benchmark.parent}
