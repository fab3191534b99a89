"""The tables of factors: the effects of a factorial's levels, and a study on models of several sizes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import combinations, pairwise
from operator import attrgetter, itemgetter
from pathlib import Path

import numpy as np
import numpy.typing as npt

from evals.core.comparisons import Verdict
from evals.core.config.methods import Factorial
from evals.core.config.sections import Statistics
from evals.core.manifest import read_manifest
from evals.core.random import stream_seed
from evals.core.records import Condition, Interval, Way
from evals.results import Results
from evals.scores.designs import Columns, Files, Row, Sheet, across, frame, tested, tested_cells
from evals.statistics.difference import Difference
from evals.statistics.factorial import Design
from evals.statistics.power import minimum_detectable_effect
from evals.statistics.ranks import Means, inversions, kendall_tau, repeated_tau, tau_interval
from evals.statistics.resampling import holm
from evals.statistics.weighting import weighted_mean
from evals.tables import numbers
from evals.tables.layout import Column, Table, interval_columns, make_table, write_table
from evals.tables.main import average_text, difference_text
from evals.tables.robust import score_matrix

LEVEL, DRAWS = 0.05, 10_000
_EFFECTS = (
    "A main effect is the mean difference that a level makes to the factor's first one, over all cells that differ in "
    "nothing else; an interaction is how much more it makes beside the other level. Intervals are of one effect each; "
    "p-values and verdicts are corrected over all effects and models (Holm)."
)
_SIZES = "How much larger an effect is on the second model. p-values are corrected over these rows."
_PARTS = (
    "What the effects say of a combination of levels: its difference to the first levels, and the part of each factor, "
    "the mean over all orders in which the levels could be changed. Intervals are of one row each."
)
_ALIASES = "An effect is that of its row plus a part of these three-way interactions, if there are any."
_CONTRAST = (
    "The mean angle of a method's gradients to the reference method's on the same rollouts, and in parentheses that of "
    "random token weights."
)
_ORDER = (
    "tau: Kendall's correlation of the methods' scores on two models, with the interval that seeds leave. Repeated: "
    "the tau of a model with its own repetition by other seeds, the median and in parentheses what 95 % of repetitions "
    "exceed. A tau within that is no evidence of another order. Inverted: two methods whose order is certain on both "
    "models and not the same (Holm over all pairs of methods and of models)."
)


@dataclass(frozen=True)
class Effect:
    """A weighted sum of the cells' scores on a model: an effect, or a part of a difference; fractions of one."""

    model: str
    kind: str  # "main effect", "interaction", "size", "part", "control"
    name: str
    estimate: Difference
    aliases: str = ""
    p_value_holm: float = 1.0

    @property
    def difference(self) -> float:
        return float(self.estimate.estimate)

    @property
    def confidence_interval(self) -> Interval:
        low, high = self.estimate.interval(1.0 - LEVEL)
        return float(low), float(high)

    @cached_property
    def p_value(self) -> float:
        return float(self.estimate.p_values())

    @cached_property
    def minimum_detectable_effect(self) -> float:
        """The effect that 4 of 5 studies of this size would find, before Holm."""
        return float(minimum_detectable_effect(replace(self.estimate, arms=()), LEVEL))

    @property
    def verdict(self) -> str:
        raises = "raises" if self.difference > 0 else "lowers"
        return "not distinguishable" if self.p_value_holm > LEVEL else raises

    @property
    def cells(self) -> Row:
        """The row of the CSV file."""
        cells = tested_cells(self, "p_value")
        named = {"model": self.model, "kind": self.kind, "name": self.name, "effect": cells.pop("difference")}
        return {**named, **cells, "aliases": self.aliases}


def write_factorial_table(
    scores: Files, sheet: Sequence[Way], factorial: Factorial, statistics: Statistics, out: Path
) -> None:
    """Write every effect with its interval, the parts of named combinations, the design and what it aliases.

    A cell of the design is a way with levels, in the design's order, the first with all first levels; a control has
    none. An effect is a weighted sum of all cells' scores, whose variance has the parts of any comparison: other
    problems, and other seeds. Seeds are blocks: what one adds to all cells is no variance.
    """
    design, cells = Design.of(factorial), [way for way in sheet if way.levels]
    study = Sheet.read(scores, cells[0].name, statistics)

    def estimate(kind: str, name: str, weights: npt.ArrayLike, *models: str, aliases: str = "") -> Effect:
        arms = [(model, way.name) for model in models for way in cells]
        combined = study.combine(arms, weights, blocks=len(models) == 1)
        return Effect(" less ".join(reversed(models)), kind, name, combined, aliases)

    def against_first(model: str, way: Way) -> Effect:
        arms = [(model, way.name), (model, cells[0].name)]
        return Effect(model, "control", way.title, study.combine(arms, [1.0, -1.0], blocks=False))

    named = [(design.label(of.term), of) for of in design.effects]
    kinds = {1: "main effect", 2: "interaction"}
    effects = [
        estimate(kinds[len(of.term)], name, of.weights, model, aliases="; ".join(map(design.label, of.aliases)))
        for model in study.models
        for name, of in named
    ]
    sizes = [
        estimate("size", name, np.concatenate([-of.weights, of.weights]), *pair)
        for pair in pairwise(study.models)
        for name, of in named
    ]
    parts = [
        estimate("part", name, weights, model) for model in study.models for name, weights in _parts(factorial, design)
    ]
    controls = [against_first(model, way) for way in sheet if not way.levels for model in study.models]
    labels = (
        ("factorial", "Effects (points)", "Effect", _EFFECTS),
        ("factorial_sizes", "Effects by model", "Effect", _SIZES),
        ("factorial_parts", "Parts of a difference (points)", "Combination: factor", _PARTS),
        ("factorial_controls", "Controls, against the first levels (points)", "Control", ""),
    )
    tables, written = list[Table](), list[Row]()
    for rows, (name, title, heading, note) in zip((effects, sizes, parts, controls), labels, strict=True):
        corrected = _corrected(rows)
        places = {
            row.model: {other.name: other for other in corrected if other.model == row.model} for row in corrected
        }
        said = [" ".join(design.describe()), *_distinguishable(places)] if name == "factorial" else []
        tables += [across(name, title, heading, places, tested, note, *said)] if corrected else []
        written += [row.cells for row in corrected]
    aliased = [row for row in effects if row.model == study.models[0] and row.aliases]
    columns: Columns = [Column("Effect", attrgetter("name")), Column("Aliased with", attrgetter("aliases"))]
    tables.append(make_table("factorial_aliases", "Aliases", columns, aliased, [_ALIASES if aliased else "None."]))
    levels: Columns = [
        Column(factor, partial(lambda factor, way: way.levels[factor], factor)) for factor in design.factors
    ]
    scores_of = {model: partial(lambda model, way: study.mean(model, way.name), model) for model in study.models}
    averages: Columns = [
        Column(f"{study.average_header}, {model}", mean, numbers.percent) for model, mean in scores_of.items()
    ]
    tables.append(
        make_table("factorial_cells", "Cells", [Column("Method", attrgetter("name")), *levels, *averages], cells)
    )
    study.write(out, tables, written)


def _parts(factorial: Factorial, design: Design) -> Iterator[tuple[str, npt.ArrayLike]]:
    """The differences of named combinations to the first cell, and the part that each factor has in them."""
    for title, levels in factorial.parts.items():
        parts = design.parts(levels)
        yield title, sum(parts.values())
        if len(parts) > 1:  # of one factor alone the part is the difference, which is tested once
            yield from ((f"{title}: {factor}", part) for factor, part in parts.items())


def _corrected(rows: Sequence[Effect]) -> list[Effect]:
    """Correct the p-values of rows over all of them."""
    p_values = holm([row.p_value for row in rows]).tolist() if rows else []
    return [replace(row, p_value_holm=p_value) for row, p_value in zip(rows, p_values, strict=True)]


def _distinguishable(effects: Mapping[str, Mapping[str, Effect]]) -> Iterator[str]:
    """Name the effects that are certain, in a sentence for every model."""
    for model, rows in effects.items():
        certain = sorted(
            (row for row in rows.values() if row.p_value_holm <= LEVEL), key=lambda row: -abs(row.difference)
        )
        named = ", ".join(f"{row.name} ({numbers.points(row.difference)})" for row in certain)
        yield f"Distinguishable on {model}: {named or 'none'}."


def write_sizes_table(results: Results, bases: Files, out: Path) -> None:
    """Write every method's difference and contrast by model, and whether the models order the methods alike.

    ``bases`` are the manifests of the models, ``results/base/MODEL/manifest.json``.
    """
    parameters = {path.parent.name: int(read_manifest(path, "base_model").details["parameters"]) for path in bases}
    models = sorted(parameters, key=parameters.__getitem__)
    methods: dict[str, dict[str, Condition]] = {}
    for condition in results.conditions:
        methods.setdefault(condition.method, {})[condition.model] = condition
    methods = {method: on for method, on in methods.items() if on.keys() == parameters.keys()}
    rows = [_sized(results, row, parameters[model]) for on in methods.values() for model, row in on.items()]
    compared, title = [row for row in rows if row["_versus"]], results.reference_title

    def by_model(name: str, heading: str, cell: str, shown: Sequence[Row], *notes: str) -> Table:
        places = {
            f"{model}, {numbers.count(parameters[model])}": {
                row["title"]: row[cell] for row in shown if row["model"] == model
            }
            for model in models
        }
        return across(name, heading, "Method", places, lambda size, value: [Column(size, value)], *notes)

    sentences = _sentences([[row for row in compared if row["model"] == model] for model in models])
    note = results.extraction_note
    tables = [
        by_model("sizes", f"Points over {title}, by model", "_difference", compared, *sentences, note),
        by_model("sizes_scores", f"avg@{results.k} (%), by model", "_score", rows, note),
        by_model("sizes_contrast", f"Contrast with {title} (°), by model", "_contrast", compared, _CONTRAST),
    ]
    several = [on for on in methods.values() if all(len(row.seeds) > 1 for row in on.values())]
    if len(several) > 1:
        tables.append(_order_table(results, models, several))
    write_table(out, tables, frame(rows), [*results.sources, *bases], {"draws": DRAWS})


def _sized(results: Results, condition: Condition, parameters: int) -> Row:
    """The row of a method on a model."""
    average, contrast = results.average(condition), results.contrast(condition)
    versus = results.comparison(condition, results.reference_method)
    cells = tested_cells(versus)
    interval = {key: cells.pop(key) for key in interval_columns(None)}
    angle = f"{contrast.degrees:.1f} ({contrast.floor_degrees:.1f})" if contrast else numbers.NOTHING
    return {
        **{"model": condition.model, "parameters": parameters, "method": condition.method},
        **{"title": condition.runs[0].title, "seeds": len(condition.seeds), "average": average.value},
        **{"contrast_degrees": contrast.degrees if contrast else None, **cells, **interval},
        **{"_versus": versus, "_difference": f"{difference_text(versus)} {versus.verdict if versus else ''}".strip()},
        **{"_score": average_text(average), "_contrast": angle},
    }


def _sentences(by_model: Sequence[Sequence[Row]]) -> list[str]:
    """A sentence for those methods whose verdict is the same on all models, and one for each other."""
    same, told = [], []
    for rows in zip(*by_model, strict=True):
        if len({row["verdict"] for row in rows}) == 1:
            same.append(f"{rows[0]['title']} ({rows[0]['verdict']})")
            continue
        words = []
        for row in rows:
            effect = None if Verdict(row["verdict"]).is_difference else row["minimum_detectable_effect"]
            words.append(f"{row['verdict']} on {row['model']}{f', MDE {numbers.percent(effect)}' if effect else ''}")
        told.append(f"{rows[0]['title']}: {'; '.join(words)}.")
    return [*([f"The same verdict on every model: {', '.join(same)}."] if same else []), *told]


def _order_table(results: Results, models: Sequence[str], methods: Sequence[Mapping[str, Condition]]) -> Table:
    """Each two models side by side, in the methods that have several seeds on all of them."""
    titles = [on[models[0]].runs[0].title for on in methods]
    by_seed = [
        [weighted_mean(score_matrix(results, on[model]).T, results.weights) for on in methods] for model in models
    ]
    studies = {model: Means.of(seeds) for model, seeds in zip(models, by_seed, strict=True)}
    generators = {model: np.random.default_rng(stream_seed("order of methods", model)) for model in models}
    repeated = {
        model: "{:.2f} ({:.2f})".format(*repeated_tau(studies[model], generators[model], DRAWS)) for model in models
    }
    certain = [key for key, p_value in inversions([*studies.values()]).items() if p_value <= 1.0 - results.confidence]
    rows = []
    for one, other in combinations(models, 2):
        tau = float(kendall_tau(studies[one].means, studies[other].means))
        low, high = tau_interval(studies[one], studies[other], generators[one], DRAWS, results.confidence)
        pair = models.index(one), models.index(other)
        inverted = [f"{titles[first]} and {titles[second]}" for *places, first, second in certain if (*places,) == pair]
        said = f"{tau:.2f} [{low:.2f}, {high:.2f}]", repeated[one], repeated[other], "; ".join(inverted) or "none"
        rows.append((f"{one} and {other}", *said))
    headers = ("Models", "tau", "First repeated", "Second repeated", "Inverted")
    columns: list[Column[tuple[str, ...]]] = [Column(header, itemgetter(place)) for place, header in enumerate(headers)]
    return make_table("sizes_order", "Order of the methods", columns, rows, [_ORDER])
