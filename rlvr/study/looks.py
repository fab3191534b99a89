"""Studies that stop when they are certain: what each look compares, and what is left to train after it.

A look is a study of its own in the folder ``looks/SEEDS/`` of the study: the methods that were not decided before, with
as many seeds. Its decisions are files of the results, so that a study that was killed plans what it planned before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

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
        level: of every interval, so that all of the whole study err together in 5 %.
        level_alone: the same for one comparison by itself.
        earlier: the folder of the look before, or none.
        is_due: whether something was left to decide, by the decisions that are there.
    """

    study: Study
    seeds: int
    margin: float
    level: float
    level_alone: float
    earlier: str | None
    is_due: bool


def plan_looks(study: Study, results: Path = Path("results")) -> tuple[Study, dict[str, PlannedLook]]:
    """Plan the looks at a study by the decisions of those that were taken: the study that is left, and folder -> look.

    Where a decision is not there yet, everything goes on.
    """
    design = study.config.seeds
    if not isinstance(design, SeedsByLooks):
        return study, {}
    compared = [(model, method) for model in study.config.models for method in study.methods]
    open_ = [pair for pair in compared if pair[1] != study.config.reference_method]
    levels = nominal_levels(design.looks, design.at_most, _LEVEL / len(open_))
    levels_alone = nominal_levels(design.looks, design.at_most, _LEVEL)
    ends = dict.fromkeys(open_, design.looks[-1])
    looks: dict[str, PlannedLook] = {}
    for seeds, level, level_alone in zip(design.looks, levels, levels_alone, strict=True):
        folder, before = f"{study.folder}{LOOKS}{seeds}/", next(reversed(looks), None)
        left = open_ or list(ends)  # a look that is not due is never made
        compared_now = _with_reference(dict.fromkeys(left, seeds), study)
        looks[folder] = PlannedLook(
            replace(study, seeds_of=compared_now), seeds, design.margin / 100, level, level_alone, before, bool(open_)
        )
        decisions = results / folder / "decisions.json"
        if open_ and decisions.is_file():
            decided = {key for key, look in Looks.read(decisions).last().items() if look.verdict is not None}
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
