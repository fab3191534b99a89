"""Stages that look inside trainings: token tables, probing updates, the papers' claims, and pages of both."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from evals.core.config.sections import StudyExecution
from evals.core.files import read_json
from rlvr.stages.shown import ENDINGS, RESULTS, Shown
from rlvr.stages.stage import ASIDE, File, Files, Stage
from rlvr.stages.train import is_portable

_CLAIM_FIGURES = Path("results/figures/phenomena")


class OfReplay(Stage):
    """A stage of a run that is replayed."""

    target = "results/diagnostics/{replayed}"

    replayed: str
    table_version: Annotated[Any, ASIDE] = None

    def versions(self) -> Any:
        """The version of a run's token table and probes."""
        return self.table_version


class TokenTable(OfReplay):
    """The token table of a run: one row for each token of some steps."""

    kind = "token_table"
    endings = ("/manifest.json", "/tokens.parquet")
    threads_of = "training_threads"

    trained: File
    steps: tuple[int, ...]

    def run(self, machine: StudyExecution) -> None:
        """Repeat the training in memory, and write down its steps."""
        from evals.generation import arithmetic

        run_file = self.trained.with_name("run.json")
        arithmetic.set_up(self.threads(machine), is_portable(read_json(run_file), machine.device))
        from rlvr.diagnostics.replay import write_token_table

        write_token_table(run_file, self.out, list(self.steps), machine.device, machine.grading_workers)


class Probes(OfReplay):
    """What null, joint, one-sided and head-only updates would do to each token of a table."""

    kind = "probes"
    endings = ("/probes.manifest.json", "/probes.parquet")

    table: File

    def run(self, machine: StudyExecution) -> None:
        """Measure them."""
        from evals.generation import arithmetic

        arithmetic.set_up(1)
        from rlvr.diagnostics.probes import write_probes

        write_probes(self.table.parent, None)


class MeasureClaim(Stage):
    """A claim of a paper, measured on the study's runs, and its figure.

    Attributes:
        measured_on: the files that stand for everything that it is measured on.
        names: what it is given: tables, weighting_tables, runs and benchmarks, by these names.
        benchmark_problems: so many of the benchmark's problems are sampled; None for all.
    """

    kind = "phenomenon"
    outputs = (
        "results/figures/phenomena/{claim}.png",
        *(f"results/phenomena/{{claim}}{ending}" for ending in (".json", ".parquet", ".manifest.json")),
        *(f"results/figures/phenomena/{{claim}}{ending}" for ending in (".svg", ".pdf", ".manifest.json")),
    )
    target = "results/phenomena/{claim}"
    caption = ("phenomenon.rst", "Claims of the papers")

    claim: str
    measured_on: Files
    names: dict[str, tuple[str, ...]]
    benchmark_problems: int | None = None

    @property
    def code(self) -> str:
        """The module that measures it."""
        return f"rlvr.diagnostics.claims.{self.claim}"

    def run(self, machine: StudyExecution) -> None:
        """Measure it, and draw it."""
        from evals.generation import arithmetic

        arithmetic.set_up(1)
        from rlvr.diagnostics.claims.claim import measure_claim
        from rlvr.diagnostics.claims.inputs import Inputs

        inputs = Inputs(
            tables=[Path(name) for name in self.names.get("tables", ())],
            weighting_tables=[Path(name) for name in self.names.get("weighting_tables", ())],
            results=RESULTS,
            runs=self.names.get("runs", ()),
            benchmarks=self.names.get("benchmarks", ()),
            benchmark_problems=self.benchmark_problems,
        )
        measure_claim(self.claim, inputs, self.out, _CLAIM_FIGURES / self.claim)


class OfClaims(Shown):
    """A stage made from all claims that were measured, which names the others with what they need."""

    folder: str = ""
    findings: Files
    notes: tuple[str, ...]
    left_out: tuple[str, ...] = ()


class ClaimsTable(OfClaims):
    """The verdicts on all claims."""

    kind = "table_phenomena"
    target = "results/tables/phenomena"
    endings = ENDINGS["table"]
    call = "rlvr.diagnostics.claims.findings:write_table"
    caption = ("phenomena.rst", "Tables")
    constants = {"figures": "../figures/phenomena"}
    unused = ("folder",)


class TokensPage(Stage):
    """The rollouts of a step, token by token."""

    kind = "tokens_page"
    outputs = (
        "results/diagnostics/{replayed}/step-{step}.html",
        "results/diagnostics/{replayed}/step-{step}.manifest.json",
    )
    module = "rlvr.diagnostics.tokens.view"
    caption = ("tokens.rst", "Rollouts, token by token")

    replayed: str
    step: int
    table: File
    problems: File
    template: File

    def run(self, machine: StudyExecution) -> None:
        """Write it."""
        from rlvr.diagnostics.tokens.view import write_page

        write_page(self.table.parent, self.out, self.step, problem_texts=self.problems)


class ClaimsPage(OfClaims):
    """The papers' claims on one page."""

    kind = "page_phenomena"
    outputs = ("results/phenomena.html", "results/phenomena.manifest.json")
    call = "rlvr.report.pages:write_phenomena_page"
    caption = ("phenomena.rst", "Study")
    templates = ("base.html.jinja", "macros.html.jinja", "report.css", "sections.html.jinja")
    unused = ("folder", "drawn")

    study: str
    drawn: Files
    rollouts: Files
    constants = {"figures": _CLAIM_FIGURES}
