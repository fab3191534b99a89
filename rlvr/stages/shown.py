"""The base of stages that people look at, made from a study's scores and comparisons; and a study's two small files."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from evals.core.config.sections import StudyExecution
from evals.core.files import write_json
from rlvr.stages.stage import File, Files, Stage

RESULTS = Path("results")
RUNS, COSTS = RESULTS / "runs", RESULTS / "costs"


class WriteStudy(Stage):
    """The resolved configuration of a study: what changes in it makes the report again."""

    kind = "study_file"
    outputs = ("results/{folder}study.json",)
    is_local = True
    order = 200  # by it MLflow knows the trainings that are under way

    folder: str
    study: dict[str, Any]

    def run(self, machine: StudyExecution) -> None:
        """Write it."""
        write_json(self.out, self.study)


class WriteRuns(Stage):
    """The run sheet: all runs that a study evaluates."""

    kind = "run_sheet"
    outputs = ("results/{folder}runs.json",)
    is_local = True
    order = 200  # by it MLflow knows the trainings that are under way

    folder: str
    sheet: tuple[dict[str, Any], ...]

    def run(self, machine: StudyExecution) -> None:
        """Write it."""
        write_json(self.out, list(self.sheet))


ENDINGS = {"table": (".md", ".csv", ".manifest.json"), "figure": (".png", ".svg", ".pdf", ".manifest.json")}


class Shown(Stage):
    """A table, figure or page of a study, in the study's folder.

    Attributes:
        more_endings: of further files, of a table or figure.
    """

    more_endings: ClassVar[tuple[str, ...]] = ()

    folder: str

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        """Take the outputs of a table or figure from its kind: ``figure_scores`` writes ``figures/scores.png`` ..."""
        directory, _, name = cls.kind.partition("_")
        if directory in ENDINGS and not cls.target:
            cls.target = f"results/{{folder}}{directory}s/{name}"
            cls.endings = (*ENDINGS[directory], *cls.more_endings)
            cls.caption = cls.caption or (f"{directory}.rst", f"{directory.title()}s")
        super().__pydantic_init_subclass__(**options)

    @property
    def code(self) -> str:
        """The module that makes it."""
        return self.module or self.call.partition(":")[0]


class OfResults(Shown):
    """A stage made from the scores, the comparisons and the run sheet of a study, which its function gets as one."""

    scores: Files
    comparisons: File
    runs: File

    def arguments(self) -> dict[str, Any]:
        """The three files, read and checked, as ``results``."""
        from evals.results import read_results

        rest = {key: value for key, value in super().arguments().items() if key not in OfResults.model_fields}
        return {"results": read_results(self.runs, self.scores, self.comparisons), **rest}


class OfTrainings(OfResults):
    """A stage made from the trainings, too: their manifests stand for the validation, which no stage declares."""

    constants = {"training": RUNS}
    unused = ("metrics", "manifests")

    metrics: Files
    manifests: Files
