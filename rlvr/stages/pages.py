"""Stages that write the pages of a study: its report, every response, what was written in training; and MLflow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlvr.stages.shown import RESULTS, OfResults, Shown
from rlvr.stages.stage import File, Files

_PAGE = ("base.html.jinja", "macros.html.jinja", "report.css")
_VIEWER = (*_PAGE, "responses.html.jinja", "responses.js")


class ResponsesPage(Shown):
    """Every response to a benchmark. The texts lie in the directory beside the page, which loads them when needed.

    Attributes:
        benchmarks: of the study, each with such a page.
        tokens: token tables of responses, where somebody made them (docs/diagnostics.md).
        report, rollouts: addresses of other pages, from this one.
    """

    kind = "page_responses"
    outputs = (
        "results/{folder}responses/{benchmark}/index.html",
        "results/{folder}responses/{benchmark}/manifest.json",
        "results/{folder}responses/{benchmark}/texts/",
    )
    call = "rlvr.report.responses:write_responses_page"
    templates = _VIEWER
    constants = {"results": RESULTS}
    unused = ("grades", "samples")

    benchmark: str
    runs: File
    audits: Files
    grades: Files
    samples: Files
    tokens: Files
    benchmarks: tuple[str, ...]
    report: str = ""
    rollouts: str = ""

    def arguments(self) -> dict[str, Any]:
        """The token tables by their directories."""
        directories = tuple(path.parent for path in self.tokens)
        return {**super().arguments(), "benchmark": self.benchmark, "tokens": directories}


class RolloutsPage(Shown):
    """What the policies wrote while they were trained.

    The tables lie beside the trainings' declared files, which stand for them; a training that was finished before any
    were kept is not repeated for them.

    Attributes:
        replays: directory and hash of the manifest of every replayed training, where somebody made them. As inputs they
            would make a training that is done again be replayed again, too, for a page that shows whatever is there.
    """

    kind = "page_rollouts"
    outputs = (
        "results/{folder}rollouts/index.html",
        "results/{folder}rollouts/manifest.json",
        "results/{folder}rollouts/texts/",
    )
    call = "rlvr.report.rollouts:write_rollouts_page"
    templates = _VIEWER
    constants = {"results": RESULTS}
    unused = ("manifests", "problems", "replays")

    runs: File
    manifests: Files
    problems: File
    benchmarks: tuple[str, ...]
    replays: dict[str, str] = {}

    def arguments(self) -> dict[str, Any]:
        """The replays by their directories."""
        return {**super().arguments(), "replayed": tuple(map(Path, self.replays))}


class Report(OfResults):
    """The report, one self-contained HTML file.

    Attributes:
        title: of a named study, its heading.
        own_figures: the names of its figures.
        rollouts: address of the page of rollouts.
    """

    kind = "report_html"
    outputs = ("results/{folder}report.html", "results/{folder}report.manifest.json")
    call = "rlvr.report.page:write_report"
    templates = (*_PAGE, "report.html.jinja", "report.js")
    caption = ("report.rst", "Study")
    constants = {"directory": RESULTS}
    unused = ("tables", "figures", "manifests")

    study: File
    audits: Files
    tables: Files
    figures: Files
    manifests: Files
    notes: tuple[str, ...]
    title: str | None = None
    own_figures: tuple[str, ...] = ()
    rollouts: str = ""

    def arguments(self) -> dict[str, Any]:
        """The figures by their directory."""
        return {**super().arguments(), "figures": RESULTS / f"{self.folder}figures"}


class Track(OfResults):
    """MLflow, made again from the files. The database is not declared: it holds other things than ours."""

    kind = "track"
    outputs = ("results/{folder}tracking.json",)
    call = "rlvr.report.mlflow.projection:track"

    tables: Files
    figures: Files
    manifests: Files
    choices: Files

    def arguments(self) -> dict[str, Any]:
        """The study by its folder."""
        return {"results": RESULTS, "study": RESULTS / self.folder}
