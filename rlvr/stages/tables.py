"""Stages that write the tables of a study. A table is one class: where it is made, and from what."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from evals.core.config.methods import Factorial
from evals.core.config.sections import Statistics
from evals.core.records import Way
from rlvr.stages.shown import COSTS, RUNS, OfResults, OfTrainings, Shown
from rlvr.stages.stage import ASIDE, File, Files


class MainTable(OfResults):
    """The main table, a row a method. Costs are written with a job but are no outputs of it."""

    kind = "table_main"
    call = "evals.tables.main:write_main_table"
    more_endings = (".tex", "_short.tex")
    caption = ("main.rst", "Tables")
    constants = {"costs": COSTS, "training": RUNS}
    unused = ("metrics",)

    metrics: Files
    notes: tuple[str, ...]


class BySeedTable(OfResults):
    """The scores of every seed."""

    kind = "table_by_seed"
    call = "evals.tables.by_seed:write_by_seed_table"


class RobustTable(OfTrainings):
    """Medians, and seeds that fell."""

    kind = "table_robust"
    call = "evals.tables.robust:write_robust_table"


class EfficiencyTable(OfTrainings):
    """The methods at equal tokens."""

    kind = "table_efficiency"
    call = "evals.tables.efficiency:write_efficiency_table"


class AuditTable(Shown):
    """How much was not judged, and where a second grader differs."""

    kind = "table_audit"
    call = "evals.tables.audit:write_audit_table"

    audits: Files
    runs: File


class DesignTable(Shown):
    """A table of a design: of methods that are trained in several ways, which the sheet lists."""

    scores: Files
    sheet: tuple[Way, ...]
    statistics: Statistics


class TrainedDesignTable(DesignTable):
    """One that needs what the training runs recorded, too: their manifests stand for it."""

    constants = {"training": RUNS}
    unused = ("manifests",)

    manifests: Files
    reference_method: str


class RatesTable(TrainedDesignTable):
    """Every method at the best of its learning rates."""

    kind = "table_rates"
    call = "evals.scores.designs:write_rates_table"


class DosesTable(TrainedDesignTable):
    """Every method under each dose of difference between sampler and trainer."""

    kind = "table_doses"
    call = "evals.scores.designs:write_doses_table"


class FactorialTable(DesignTable):
    """The effects of a factorial's levels, alone and in pairs."""

    kind = "table_factorial"
    call = "evals.scores.factors:write_factorial_table"

    factorial: Factorial


class SizesTable(OfResults):
    """The verdicts on models of several sizes."""

    kind = "table_sizes"
    call = "evals.scores.factors:write_sizes_table"

    bases: Files


class CheckpointsTable(OfResults):
    """The best policies of the trainings beside the last ones."""

    kind = "table_checkpoints"
    call = "evals.tables.checkpoints:write_checkpoints_table"

    best_scores: Files
    best_comparisons: File
    best_runs: File
    choices: Files


class PublishedTable(OfResults):
    """This study's numbers beside published ones."""

    kind = "table_paper_vs_ours"
    call = "evals.tables.published:write_paper_vs_ours_table"
    unused = ("published",)

    published: Files
    reference: Annotated[Path, ASIDE]
    own: dict[str, Any]
