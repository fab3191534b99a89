"""Studies that stop when they are certain: what each look compares, and what is left to train after it.

A look is a study of its own in the folder ``looks/SEEDS/`` of the study: the methods that were not decided before, with
as many seeds. Its decisions are files of the results, so that a study that was killed plans what it planned before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from logging import Logger
from pathlib import Path
from typing import Any

from evals.core.comparisons import Looks
from evals.core.config.sections import SeedsByLooks
from evals.statistics.sequential import nominal_levels
from rlvr.study.study import Study

LOOKS = "looks/"
"""The folder, in a study's own, of its looks."""
_LEVEL = 0.05


@dataclass(frozen=True)
class PlannedLook:
    """A look at a study.

    Attributes:
        study: what is compared.
        level: of every interval, so that all of the whole study err together in the study's level, 5 %.
        level_alone: the same for one comparison by itself.
        earlier: the folder of the look before, or none.
        is_due: whether something was left to decide, by the decisions that are there.
        decisions: the bytes of its decisions' file; None where there is none.
    """

    study: Study
    seeds: int
    margin: float
    level: float
    level_alone: float
    earlier: str | None
    is_due: bool
    decisions: bytes | None

    @property
    def is_taken(self) -> bool:
        """Return whether its decisions were there when this was planned."""
        return self.decisions is not None


def decisions_of(folder: str) -> Path:
    """The decisions of a look."""
    return Path(f"results/{folder}decisions.json")


def read_decisions(folder: str) -> bytes | None:
    """The bytes of a look's decisions, if they are there."""
    path = decisions_of(folder)
    return path.read_bytes() if path.is_file() else None


def look_folders(study: Study) -> list[str]:
    """The folders of all looks at a study, in order; none where it does not stop early."""
    design = study.config.seeds
    return [f"{study.folder}{LOOKS}{seeds}/" for seeds in design.looks] if isinstance(design, SeedsByLooks) else []


def plan_looks(study: Study) -> tuple[Study, dict[str, PlannedLook]]:
    """Plan the looks at a study by the decisions of those that were taken: the study that is left, and folder -> look.

    Where a decision is not there yet, everything goes on.
    """
    design = study.config.seeds
    if not isinstance(design, SeedsByLooks):
        return study, {}
    compared = [(model, method) for model in study.config.models for method in study.methods]
    open_ = [pair for pair in compared if pair[1] != study.config.reference_method]
    levels = nominal_levels(design.looks, design.at_most, design.level / 100 / len(open_))
    levels_alone = nominal_levels(design.looks, design.at_most, _LEVEL)
    ends = dict.fromkeys(open_, design.looks[-1])
    looks: dict[str, PlannedLook] = {}
    of_looks = zip(look_folders(study), design.looks, levels, levels_alone, strict=True)
    for folder, seeds, level, level_alone in of_looks:
        before = next(reversed(looks), None)
        left = open_ or list(ends)  # a look that is not due is never made
        compared_now = _with_reference(dict.fromkeys(left, seeds), study)
        decisions = read_decisions(folder) if open_ else None
        looks[folder] = PlannedLook(
            study=replace(study, seeds_of=compared_now),
            seeds=seeds,
            margin=design.margin / 100,
            level=level,
            level_alone=level_alone,
            earlier=before,
            is_due=bool(open_),
            decisions=decisions,
        )
        if decisions is not None:
            rows = Looks.read(decisions_of(folder)).last()
            decided = {key for key, look in rows.items() if look.is_decided}
            ends |= {pair: seeds for pair in open_ if pair in decided}
            open_ = [pair for pair in open_ if pair not in decided]
    return replace(study, seeds_of=_with_reference(ends, study)), looks


def _with_reference(seeds: Mapping[tuple[str, str], int], study: Study) -> dict[tuple[str, str], int]:
    """Give the reference method of each model as many seeds as the method that has most of them."""
    reference = study.config.reference_method
    of_models: dict[str, int] = {}
    for (model, _), count in seeds.items():
        of_models[model] = max(of_models.get(model, 0), count)
    return {**{(model, reference): count for model, count in of_models.items()}, **seeds}


@dataclass(frozen=True)
class NextLook:
    """What is left of a study that stops when it is certain.

    Attributes:
        seeds: of the next look; None where all looks were taken.
        comparisons: that are open by then.
        runs: training runs up to the next look.
        possible: training runs in all, if nothing is certain before the last look.
    """

    seeds: int | None
    comparisons: int
    runs: int
    possible: int

    def __str__(self) -> str:
        """A line for the user."""
        if self.seeds is None:
            return f"All looks are taken: {self.runs} training runs in all"
        return (
            f"Stops when certain: {self.runs} training runs up to the look after {self.seeds} seeds, where "
            f"{self.comparisons} comparisons are open; at most {self.possible} training runs in all"
        )

    def jobs(self) -> dict[str, Any]:
        """The number of jobs of each rule, up to the next look and in all, for the progress display."""
        of_each_run = ("train", "sample", "grade")
        planned, possible = dict.fromkeys(of_each_run, self.runs), dict.fromkeys(of_each_run, self.possible)
        return {"seeds": self.seeds, "planned": planned, "possible": possible}


def next_look(study: Study, looks: Mapping[str, PlannedLook]) -> NextLook | None:
    """Count the training runs of a ``study``, the one that is left, up to the next look, and at most.

    None where nothing stops early.
    """
    its = [look for folder, look in looks.items() if folder == f"{study.folder}{LOOKS}{look.seeds}/"]
    if not its:
        return None
    look = next((look for look in its if look.is_due and not look.is_taken), None)
    possible = sum(study.seeds_of.values())
    if look is None:
        return NextLook(None, 0, possible, possible)
    by_then = sum(min(count, look.seeds) for count in study.seeds_of.values())
    compared = sum(method != study.config.reference_method for _, method in look.study.seeds_of)
    return NextLook(look.seeds, compared, by_then, possible)


def announce_look(study: Study, looks: Mapping[str, PlannedLook], logger: Logger) -> None:
    """Say to Snakemake's log what is planned up to the next look; the progress display counts by it what may come.

    To be called when a study was planned, and again when it is planned anew after a look.
    """
    if (look := next_look(study, looks)) is not None:
        logger.info(str(look), extra={"look": look.jobs()})
