"""Studies that stop when they are certain: what each look compares, and what is left to train after it.

A look is a study of its own in the folder ``looks/SEEDS/`` of the study: the methods that were not decided before, with
as many seeds. Its decisions are files of the results, so that a study that was killed plans what it planned before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from logging import Logger
from pathlib import Path
from typing import Any

from evals.core.comparisons import Looks
from evals.core.config.sections import SeedsByLooks
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
        is_taken: whether its own decisions were there when this was planned.
    """

    study: Study
    seeds: int
    margin: float
    level: float
    level_alone: float
    earlier: str | None
    is_due: bool
    is_taken: bool


def decisions_of(folder: str) -> Path:
    """The decisions of a look."""
    return Path(f"results/{folder}decisions.json")


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
    from evals.statistics.sequential import nominal_levels  # here: scipy comes with it

    compared = product(study.config.models, study.methods)
    open_ = [pair for pair in compared if pair[1] != study.config.reference_method]
    levels = nominal_levels(design.looks, design.at_most, design.level / 100 / len(open_))
    levels_alone = nominal_levels(design.looks, design.at_most, _LEVEL)
    ends = dict.fromkeys(open_, design.looks[-1])
    looks: dict[str, PlannedLook] = {}
    of_looks = zip(look_folders(study), design.looks, levels, levels_alone, strict=True)
    for folder, seeds, level, level_alone in of_looks:
        left = open_ or list(ends)  # a look that is not due is never made
        looks[folder] = PlannedLook(
            study=replace(study, seeds_of=_with_reference(dict.fromkeys(left, seeds), study)),
            seeds=seeds,
            margin=design.margin / 100,
            level=level,
            level_alone=level_alone,
            earlier=next(reversed(looks), None),
            is_due=bool(open_),
            is_taken=bool(open_) and decisions_of(folder).is_file(),
        )
        if looks[folder].is_taken:
            rows = Looks.read(decisions_of(folder)).last()
            decided = {key for key, look in rows.items() if look.is_decided}
            ends |= {pair: seeds for pair in open_ if pair in decided}
            open_ = [pair for pair in open_ if pair not in decided]
    return replace(study, seeds_of=_with_reference(ends, study)), looks


def _with_reference(seeds: Mapping[tuple[str, str], int], study: Study) -> dict[tuple[str, str], int]:
    """Give the reference method of each model as many seeds as the method that has most of them."""
    most: dict[tuple[str, str], int] = {}
    for (model, _), count in seeds.items():
        pair = model, study.config.reference_method
        most[pair] = max(most.get(pair, 0), count)
    return {**most, **seeds}


def next_look(study: Study, looks: Mapping[str, PlannedLook]) -> tuple[str, dict[str, Any]] | None:
    """Say what is left of a study that stops when it is certain; None where nothing stops early.

    Args:
        study: the one that is left after the looks that were taken.

    Returns:
        a line for the user, and for the progress display the seeds of the next look, if there is one, and the number of
        jobs of each rule up to it and in all.
    """
    if not looks:
        return None
    of_each_run = ("train", "sample", "grade")
    possible = by_then = sum(study.seeds_of.values())
    look = next((look for look in looks.values() if look.is_due and not look.is_taken), None)
    if look is None:
        words = f"All looks are taken: {possible} training runs in all"
    else:
        by_then = sum(min(count, look.seeds) for count in study.seeds_of.values())
        open_ = sum(method != study.config.reference_method for _, method in look.study.seeds_of)
        words = (
            f"Stops when certain: {by_then} training runs up to the look after {look.seeds} seeds, where {open_} "
            f"comparisons are open; at most {possible} training runs in all"
        )
    planned, all_jobs = dict.fromkeys(of_each_run, by_then), dict.fromkeys(of_each_run, possible)
    return words, {"seeds": look.seeds if look else None, "planned": planned, "possible": all_jobs}


def announce_look(study: Study, looks: Mapping[str, PlannedLook], logger: Logger) -> None:
    """Say to Snakemake's log what is planned up to the next look; the progress display counts by it what may come.

    To be called when a study was planned, and again when it is planned anew after a look.
    """
    if said := next_look(study, looks):
        logger.info(said[0], extra={"look": said[1]})
