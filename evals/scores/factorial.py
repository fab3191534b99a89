"""The effects of a factorial: what each level of a factor, and each two of different factors, do to the score.

A cell of the design is a method, and an effect a weighted sum of all cells' scores, whose variance has the parts of any
comparison: other problems, and other seeds. Seeds are blocks: what one adds to all cells is no variance.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from evals.core.config.methods import Factorial
from evals.core.config.sections import Statistics
from evals.core.records import BASE, Interval
from evals.scores.comparison import BenchmarkCounts, extraction_note, read_counts
from evals.statistics.clusters import Clusters
from evals.statistics.difference import Difference, estimate_combination
from evals.statistics.factorial import Design
from evals.statistics.power import minimum_detectable_effect
from evals.statistics.resampling import holm
from evals.statistics.weighting import weighted_mean, weights_of
from evals.tables import numbers
from evals.tables.layout import Column, Table, interval_columns, make_table, table_frame, write_table

LEVEL = 0.05
_NOTE = (
    "A main effect is the mean difference that a level makes to the factor's first one, over all cells that differ in "
    "nothing else; an interaction is how much more it makes beside the other level. Intervals are of one effect each; "
    "p-values and verdicts are corrected over all effects and models (Holm)."
)
_SIZES_NOTE = "How much larger an effect is on the second model. p-values are corrected over these rows."
_PARTS_NOTE = (
    "What the effects say of a combination of levels: its difference to the first levels, and the part of each factor, "
    "the mean over all orders in which the levels could be changed. Intervals are of one row each."
)
_ALIASES_NOTE = "An effect is that of its row plus a part of these three-way interactions, if there are any."


@dataclass(frozen=True)
class Estimated:
    """A weighted sum of the cells' scores on a model: an effect, or a part of a difference; fractions of one."""

    model: str
    kind: str  # "main effect", "interaction", "size", "part", "control"
    name: str
    difference: Difference
    p_value_holm: float = 1.0
    aliases: tuple[str, ...] = field(default=())

    @property
    def value(self) -> float:
        return float(self.difference.estimate)

    @property
    def interval(self) -> Interval:
        low, high = self.difference.interval(1.0 - LEVEL)
        return float(low), float(high)

    @property
    def minimum_detectable_effect(self) -> float:
        """The effect that 4 of 5 studies of this size would find, before Holm."""
        return float(minimum_detectable_effect(replace(self.difference, arms=()), LEVEL))

    @property
    def verdict(self) -> str:
        if self.p_value_holm > LEVEL:
            return "not distinguishable"
        return "raises" if self.value > 0 else "lowers"


@dataclass(frozen=True)
class _Cells:
    """The accuracies of all cells of a model."""

    benchmarks: Sequence[BenchmarkCounts]
    weights: Sequence[float]

    def combine(self, methods: Sequence[tuple[str, str]], coefficients: npt.ArrayLike, blocks: bool) -> Difference:
        """Combine the scores of (model, method)s over all benchmarks."""
        arms = [[counts.arm(*method) for counts in self.benchmarks] for method in methods]
        clusters: list[Clusters] = [counts.clusters for counts in self.benchmarks]
        return estimate_combination(
            [[accuracies for accuracies, _ in arm] for arm in arms],
            np.asarray(coefficients).tolist(),
            weights=self.weights,
            samples=[[samples for _, samples in arm] for arm in arms],
            clusters=clusters,
            seeds_are_blocks=blocks,
        )

    def average(self, model: str, method: str) -> float:
        """The mean score of a cell."""
        return float(weighted_mean([counts.arm(model, method)[0].mean() for counts in self.benchmarks], self.weights))


def write_factorial_table(
    scores: Sequence[Path],
    factorial: Factorial,
    cells: Sequence[str],
    controls: Mapping[str, str],
    statistics: Statistics,
    out: Path,
) -> None:
    """Write every effect with its interval, the parts of named combinations, the design and what it aliases.

    Args:
        scores: of all runs.
        cells: the methods that are the cells of the design, in its order; the first has all first levels.
        controls: methods of known outcome, with their titles.
    """
    benchmarks, design = read_counts(scores), Design.of(factorial)
    sizes = {counts.benchmark: counts.problems for counts in benchmarks}
    trained = _Cells(benchmarks, weights_of(statistics.weighting or "benchmarks", sizes))
    models = list(dict.fromkeys(model for model, method in benchmarks[0].methods.values() if method != BASE))
    effects = _corrected(_effects(trained, design, cells, models))
    across = _corrected(_across_models(trained, design, cells, models))
    parts = _corrected(_parts(trained, factorial, design, cells, models))
    against = _corrected(
        [
            Estimated(model, "control", title, trained.combine([(model, name), (model, cells[0])], [1.0, -1.0], False))
            for name, title in controls.items()
            for model in models
        ]
    )
    tables = [
        _table(
            "factorial",
            "Effects (points)",
            effects,
            models,
            [_NOTE, " ".join(design.describe()), *_distinguishable(effects)],
        )
    ]
    if across:
        tables.append(
            _table(
                "factorial_sizes",
                "Effects by model",
                across,
                list(dict.fromkeys(row.model for row in across)),
                [_SIZES_NOTE],
            )
        )
    if parts:
        tables.append(_table("factorial_parts", "Parts of a difference (points)", parts, models, [_PARTS_NOTE]))
    if against:
        heading = "Controls, against the first levels (points)"
        tables.append(_table("factorial_controls", heading, against, models, []))
    tables += [_aliases(effects, models[0]), _scores(trained, design, cells, models, benchmarks[0].k)]
    if note := extraction_note(benchmarks):
        tables = [replace(table, notes=(*table.notes, note)) for table in tables]
    rows = [*effects, *across, *parts, *against]
    frame = table_frame(_csv_columns(), rows)
    write_table(out, tables, frame, [counts.path for counts in benchmarks], {"cells": list(cells)})


def _effects(trained: _Cells, design: Design, cells: Sequence[str], models: Sequence[str]) -> Iterator[Estimated]:
    for model in models:
        methods = [(model, cell) for cell in cells]
        for effect in design.effects:
            kind = "main effect" if len(effect.term) == 1 else "interaction"
            aliases = tuple(map(design.label, effect.aliases))
            difference = trained.combine(methods, effect.weights, True)
            yield Estimated(model, kind, design.label(effect.term), difference, aliases=aliases)


def _across_models(trained: _Cells, design: Design, cells: Sequence[str], models: Sequence[str]) -> Iterator[Estimated]:
    """Estimate how much larger each effect is on a model than on the one before."""
    for one, other in pairwise(models):
        methods = [*((one, cell) for cell in cells), *((other, cell) for cell in cells)]
        for effect in design.effects:
            difference = trained.combine(methods, np.concatenate([-effect.weights, effect.weights]), False)
            yield Estimated(f"{other} less {one}", "size", design.label(effect.term), difference)


def _parts(
    trained: _Cells, factorial: Factorial, design: Design, cells: Sequence[str], models: Sequence[str]
) -> Iterator[Estimated]:
    for model in models:
        methods = [(model, cell) for cell in cells]
        for title, levels in factorial.parts.items():
            parts = design.parts(levels)
            rows = {title: sum(parts.values())}
            if len(parts) > 1:  # of one factor alone the part is the difference, which is tested once
                rows |= {f"{title}: {factor}": part for factor, part in parts.items()}
            for name, weights in rows.items():
                yield Estimated(model, "part", name, trained.combine(methods, weights, True))


def _corrected(rows: Iterator[Estimated] | list[Estimated]) -> list[Estimated]:
    """Correct the p-values of rows over all of them."""
    known = list(rows)
    p_values = holm([float(row.difference.p_values()) for row in known]).tolist() if known else []
    return [replace(row, p_value_holm=p_value) for row, p_value in zip(known, p_values, strict=True)]


def _distinguishable(effects: Sequence[Estimated]) -> list[str]:
    """Name the effects that are certain, in a sentence for every model."""
    sentences = []
    for model in dict.fromkeys(row.model for row in effects):
        certain = [row for row in effects if row.model == model and row.p_value_holm <= LEVEL]
        named = [
            f"{row.name} ({numbers.points(row.value)})" for row in sorted(certain, key=lambda row: -abs(row.value))
        ]
        sentences.append(f"Distinguishable on {model}: {', '.join(named) or 'none'}.")
    return sentences


def _table(name: str, title: str, rows: Sequence[Estimated], models: Sequence[str], notes: Sequence[str]) -> Table:
    """A row for each name, with the columns of every model."""
    heading = {"part": "Combination: factor", "control": "Control"}.get(rows[0].kind, "Effect")
    of_models = {(row.name, row.model): row for row in rows}

    def columns(model: str) -> list[Column[str]]:
        def row(name: str) -> Estimated:
            return of_models[name, model]

        return [
            Column(model, row, lambda known: numbers.points_with_interval(known.value, known.interval)),
            Column("p (Holm)", row, lambda known: numbers.p_value(known.p_value_holm)),
            Column("MDE", row, lambda known: numbers.percent(known.minimum_detectable_effect)),
            Column("Verdict", row, lambda known: known.verdict),
        ]

    listed = [column for model in models for column in columns(model)]
    return make_table(
        name, title, [Column(heading, str), *listed], list(dict.fromkeys(row.name for row in rows)), notes
    )


def _aliases(effects: Sequence[Estimated], model: str) -> Table:
    columns: list[Column[Estimated]] = [
        Column("Effect", lambda row: row.name),
        Column("Aliased with", lambda row: "; ".join(row.aliases)),
    ]
    rows = [row for row in effects if row.model == model and row.aliases]
    return make_table("factorial_aliases", "Aliases", columns, rows, [_ALIASES_NOTE] if rows else ["None."])


def _scores(trained: _Cells, design: Design, cells: Sequence[str], models: Sequence[str], k: int) -> Table:
    columns: list[Column[tuple[Any, str]]] = [
        Column("Method", lambda row: row[1]),
        *(
            Column[tuple[Any, str]](
                factor,
                lambda row, index=index, levels=levels: levels[row[0][index]],  # type: ignore[misc]
            )
            for index, (factor, levels) in enumerate(design.factors.items())
        ),
        *(
            Column[tuple[Any, str]](
                f"avg@{k} (%), {model}",
                lambda row, model=model: trained.average(model, row[1]),  # type: ignore[misc]
                numbers.percent,
            )
            for model in models
        ),
    ]
    return make_table("factorial_cells", "Cells", columns, list(zip(design.cells, cells, strict=True)))


def _csv_columns() -> list[Column[Estimated]]:
    """The columns of the file that the figure is drawn from."""
    return [
        *(Column[Estimated]("", lambda row, key=key: getattr(row, key), csv=key) for key in ("model", "kind", "name")),  # type: ignore[misc]
        Column("", lambda row: row.value, csv="effect"),
        Column("", lambda row: interval_columns(row.interval), csv=dict),
        Column("", lambda row: float(row.difference.p_values()), csv="p_value"),
        Column("", lambda row: row.p_value_holm, csv="p_value_holm"),
        Column("", lambda row: row.minimum_detectable_effect, csv="minimum_detectable_effect"),
        Column("", lambda row: row.verdict, csv="verdict"),
        Column("", lambda row: "; ".join(row.aliases), csv="aliases"),
    ]
