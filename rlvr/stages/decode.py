"""Stages of decoding with two models: base and trained model read the same tokens, in step (docs/diagnostics.md)."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from evals.core.config.sections import StudyExecution
from evals.core.sampling import OfBenchmark, Sampling
from evals.decoding import VERSION as DECODING_VERSION
from evals.generation import VERSION as SAMPLER_VERSION
from evals.grading import VERSION as GRADER_VERSION
from rlvr.stages.evaluate import Grade, Sample
from rlvr.stages.problems import SET, CheckDisjoint, DrawProblems
from rlvr.stages.shown import OfResults, Shown
from rlvr.stages.stage import File, Files, Stage

_SAMPLES = Path("results/decoding/samples")


class DrawChoosingProblems(DrawProblems):
    """Problems on which thresholds are chosen, and none of which is scored."""

    kind = "decoding_problems"
    target = "results/decoding/{name}"

    without: Files = ()

    def arguments(self) -> dict[str, Any]:
        """Their ids begin with ``decoding``."""
        return {**super().arguments(), "name": "decoding"}


class TakeChoosingProblems(Stage):
    """Problems of a benchmark that is not reported, on which thresholds are chosen."""

    kind = "decoding_problems_taken"
    target = "results/decoding/{name}"
    endings = SET
    call = "evals.problems.problem_set:take_problems"

    name: str
    benchmark: File
    count: int | None = None

    def arguments(self) -> dict[str, Any]:
        """The benchmark by its directory."""
        return {"benchmark": self.benchmark.parent, "count": self.count}


class CheckChoosingProblems(CheckDisjoint):
    """The check that thresholds are chosen on nothing that is trained on or reported."""

    kind = "decoding_disjoint"
    target = "results/decoding/{name}/disjoint.json"


class Sweep(Stage):
    """Many ways of decoding, sampled and graded.

    Attributes:
        base, trained: directories of the two models.
        models: the manifests of both.
        grid: criteria, fractions, extrapolation_fractions and gammas.
        grading: how answers are read.
    """

    kind = "decoding_sweep"
    target = "results/decoding/sweeps/{decoded}"
    endings = ("/manifest.json", "/sweep.json")
    cost = "results/costs/decoding/{decoded}.tsv"
    version = [SAMPLER_VERSION, GRADER_VERSION, DECODING_VERSION]
    threads_of = "sampling_threads"

    decoded: str
    base: str
    trained: str
    models: Files
    problems: File
    disjoint: File
    sampling: Sampling
    own: OfBenchmark
    grid: dict[str, Any]
    grading: str

    def run(self, machine: StudyExecution) -> None:
        """Sample and grade what is missing."""
        from evals.generation.settings import EvaluationSettings

        settings = EvaluationSettings.of(self.sampling, self.own, machine)
        settings.choose_code_paths()
        from evals.core.single_writer import single_writer
        from evals.decoding.pair import read_pair
        from evals.decoding.settings import Grid
        from evals.decoding.sweep import sample_grid
        from evals.grading.pool import GradingPool
        from evals.grading.verdict import Kind

        grid, pair = Grid.parse(self.grid, "grid"), read_pair(Path(self.base), Path(self.trained), settings.dtype)
        with single_writer(self.out / ".writer", "sweeps into this directory"), GradingPool(1) as pool:
            sample_grid(pair, self.problems.parent, settings, grid, Kind(self.grading), pool, self.out)


class ChooseThresholds(Stage):
    """The thresholds and gammas, chosen by the sweeps."""

    kind = "decoding_choose"
    outputs = ("results/decoding/{name}.json", "results/decoding/{name}.manifest.json")
    call = "evals.decoding.choose:write_choice"
    version = DECODING_VERSION

    name: str
    sweeps: Files


class SamplePair(Sample):
    """The responses of two models that decode together to benchmarks.

    Attributes:
        chosen: the file of chosen thresholds, of which ``scheme`` is used.
        decoding: instead of both, one way of decoding: mode, driver, criterion, tau and gamma (docs/diagnostics.md).
    """

    kind = "decoding_sample"
    outputs = tuple(
        f"results/decoding/samples/{{policy}}/{{benchmark}}/{name}" for name in ("samples.jsonl", "manifest.json")
    )
    target = "results/decoding/samples/{policy}"
    cost = "results/costs/decoding/sample/{policy}.tsv"
    environment = ""
    version = [SAMPLER_VERSION, DECODING_VERSION]

    trained: File
    chosen: Files = ()
    scheme: str = ""
    decoding: dict[str, Any] = {}

    def sample(self, benchmarks: dict[Path, Any]) -> None:
        """Sample by the chosen decoding."""
        from evals.decoding.choose import chosen_decoding
        from evals.decoding.pair import identities, pair_draw, read_pair
        from evals.decoding.settings import Decoding
        from evals.generation.evaluate import sample_benchmarks

        settings = next(iter(benchmarks.values()))
        if self.chosen:
            decoding = chosen_decoding(self.chosen[0], self.scheme, self.trained.parent.name)
        else:
            decoding = Decoding.parse(self.decoding, "decoding")
        pair = read_pair(Path(self.source), self.trained.parent, settings.dtype)
        draws = partial(pair_draw, decoding, settings)
        parameters = {**identities(pair), "decoding": decoding.to_json()}
        sample_benchmarks(pair, benchmarks, self.out, draws, parameters)


class GradePair(Grade):
    """A verdict on every response of two models that decode together."""

    kind = "decoding_grade"
    outputs = tuple(f"results/decoding/{path.removeprefix('results/')}" for path in Grade.outputs)
    target = "results/decoding/grades/{policy}"
    cost = "results/costs/decoding/grade/{policy}.tsv"


class DecodingTable(OfResults):
    """Base, trained model, and both together."""

    kind = "table_decoding"
    call = "evals.decoding.table:write_table"
    caption = ("decoding_table.rst", "Decoding")
    constants = {"samples": _SAMPLES}

    chosen: File
    notes: tuple[str, ...]


class ReplacedTokensFigure(Shown):
    """Accuracy against the fraction of tokens replaced."""

    kind = "figure_replaced_tokens"
    call = "evals.decoding.figure:write_figure"
    caption = ("replaced_tokens.rst", "Decoding")

    sweeps: Files


class DecodingPage(OfResults):
    """Table and figure on one page."""

    kind = "page_decoding"
    outputs = ("results/decoding.html", "results/decoding.manifest.json")
    call = "rlvr.report.pages:write_decoding_page"
    caption = ("decoding_table.rst", "Study")
    templates = ("base.html.jinja", "macros.html.jinja", "report.css", "sections.html.jinja")
    constants = {"samples": _SAMPLES}
    unused = ("folder",)

    chosen: File
    figure: File
    notes: tuple[str, ...]
