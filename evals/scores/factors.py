"""The tables of factors: the effects of a factorial's levels, and a study on models of several sizes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, pairwise, product
from operator import attrgetter, itemgetter
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from evals.core.comparisons import Verdict
from evals.core.config.methods import Factorial
from evals.core.config.sections import Statistics
from evals.core.manifest import read_manifest
from evals.core.random import stream_seed
from evals.core.records import Condition, Interval, Way
from evals.results import Results
from evals.scores.designs import Columns, Files, Row, Sheet, across, cells_of, frame, tested
from evals.statistics.difference import Arm, Difference, estimate_difference
from evals.statistics.factorial import Design
from evals.statistics.power import minimum_detectable_effect
from evals.statistics.ranks import Means, inversions, kendall_tau, repeated_tau, smallest_inversion
from evals.statistics.resampling import holm
from evals.statistics.suite import Suite
from evals.tables import numbers
from evals.tables.differences import average_text, difference_text
from evals.tables.families import means_of
from evals.tables.layout import Column, Table, interval_columns, make_table, write_table

LEVEL, DRAWS = 0.05, 10_000
_FAMILIES = (
    (("main effect", "interaction"), "factorial", "Effects (points)", "Effect", (
        "A main effect is the mean difference that a level makes to the factor's first one, over all cells that differ "
        "in nothing else; an interaction is how much more it makes beside the other level. Intervals are of one effect "
        "each; p-values and verdicts are corrected over all effects and models (Holm)."
    )),
    (("size",), "factorial_sizes", "Effects by model", "Effect", (
        "How much larger an effect is on the second model. p-values are corrected over these rows."
    )),
    (("part",), "factorial_parts", "Parts of a difference (points)", "Combination: factor", (
        "What the effects say of a combination of levels: its difference to the first levels, and the part of each "
        "factor, the mean over all orders in which the levels could be changed. Intervals are of one row each."
    )),
    (("control",), "factorial_controls", "Controls, against the first levels (points)", "Control", ""),
)  # fmt: skip
"""The families of tests, in the order of their tables: kinds, name, title, heading, note."""
_ALIASES = "An effect is that of its row plus a part of these three-way interactions, if there are any."
_CONTRAST = (
    "The mean angle of a method's gradients to the reference method's on the same rollouts, and in parentheses that of "
    "random token weights."
)
_ORDER = (
    "tau: Kendall's correlation of the methods' scores on two models. Repeated: that "
    "of a model with its own repetition by other seeds, the median and in parentheses what 95 % of repetitions "
    "exceed. A tau within that is no evidence of another order. Inverted: two methods whose order is certain on both "
    "models and not the same, over problems and seeds (Holm over all pairs of methods and of models). MDE: the "
    "difference, one way on one model and the other way on the other, that is found four times in five (median pair)."
)


@dataclass(frozen=True)
class Effect:
    """A weighted sum of the cells' scores on a model: an effect, or a part of a difference; fractions of one."""

    kind: str  # "main effect", "interaction", "size", "part", "control"
    model: str
    name: str
    aliases: str
    difference: float
    confidence_interval: Interval
    p_value: float
    p_value_holm: float
    minimum_detectable_effect: float  # that 4 of 5 studies of this size would find, before Holm

    @property
    def verdict(self) -> str:
        raises = "raises" if self.difference > 0 else "lowers"
        return "not distinguishable" if self.p_value_holm > LEVEL else raises


def write_factorial_table(
    scores: Files, sheet: Sequence[Way], factorial: Factorial, statistics: Statistics, out: Path
) -> None:
    """Write every effect with its interval, the parts of named combinations, the design and what it aliases.

    A cell of the design is a way with levels, in the design's order, the first with all first levels; a control has
    none. An effect is a weighted sum of all cells' scores, whose variance has the parts of any comparison: other
    problems, and other seeds. Seeds are blocks: what one adds to all cells is no variance.
    """
    design, cells = Design.of(factorial), [way for way in sheet if way.levels]
    study = Sheet.read(scores, sheet, cells[0].name, statistics)
    arms = {model: [(model, way.name) for way in cells] for model in study.models}
    terms = [(design.label(effect.term), effect) for effect in design.effects]
    rows = list[tuple[str, str, str, str, Difference]]()
    for model, of_model in arms.items():
        for name, effect in terms:
            kind = "main effect" if len(effect.term) == 1 else "interaction"
            aliases = "; ".join(map(design.label, effect.aliases))
            rows.append((kind, model, name, aliases, study.combine(of_model, effect.weights, blocks=True)))
        for title, levels in factorial.parts.items():  # the difference to the first cell, and each factor's part in it
            parts = design.parts(levels)
            named: dict[str, npt.ArrayLike] = {title: sum(parts.values())}
            if len(parts) > 1:  # of one factor alone the part is the difference, which is tested once
                named |= {f"{title}: {factor}": part for factor, part in parts.items()}
            for name, weights in named.items():
                rows.append(("part", model, name, "", study.combine(of_model, weights, blocks=True)))
    for one, other in pairwise(arms):
        for name, effect in terms:
            weights, both = np.concatenate([-effect.weights, effect.weights]), [*arms[one], *arms[other]]
            rows.append(("size", f"{other} less {one}", name, "", study.combine(both, weights, blocks=False)))
    for way, model in product((way for way in sheet if not way.levels), arms):
        difference = study.combine([(model, way.name), arms[model][0]], [1.0, -1.0], blocks=False)
        rows.append(("control", model, way.title, "", difference))
    described, tables, written = " ".join(design.describe()), list[Table](), list[Row]()
    for kinds, name, title, heading, note in _FAMILIES:
        effects = _corrected([row for row in rows if row[0] in kinds])
        places: dict[str, dict[str, Effect]] = {row.model: {} for row in effects}
        for row in effects:
            places[row.model][row.name] = row
            gain = cells_of(row, "p_value")
            cells_ = {"model": row.model, "kind": row.kind, "name": row.name, "effect": gain.pop("difference")}
            written.append({**cells_, **gain, "aliases": row.aliases})
        notes = [note, described] if name == "factorial" else [note]
        for model, on_model in places.items() if name == "factorial" else ():
            certain = [row for row in on_model.values() if row.p_value_holm <= LEVEL]
            certain.sort(key=lambda row: -abs(row.difference))
            said = [f"{row.name} ({numbers.points(row.difference)})" for row in certain]
            notes.append(f"Distinguishable on {model}: {', '.join(said) or 'none'}.")
        tables += [make_table(name, title, *across(Column(heading, str), places, tested), notes)] if effects else []
    aliased = [row for row in rows if row[1] == study.models[0] and row[3]]
    columns: Columns = [Column("Effect", itemgetter(2)), Column("Aliased with", itemgetter(3))]
    tables.append(make_table("factorial_aliases", "Aliases", columns, aliased, [_ALIASES if aliased else "None."]))
    columns = [Column("Method", attrgetter("name"))]
    columns += [Column(name, partial(lambda name, way: way.levels[name], name)) for name in design.factors]
    for model in study.models:
        mean = partial(lambda model, way: study.mean(model, way.name), model)
        columns.append(Column(f"avg@{study.benchmarks[0].k} (%), {model}", mean, numbers.percent))
    tables.append(make_table("factorial_cells", "Cells", columns, cells))
    study.write(out, tables, written, factorial=factorial.identity())


def _corrected(rows: Sequence[tuple[str, str, str, str, Difference]]) -> list[Effect]:
    """Test the differences of a family; p-values are corrected over all of them."""
    effects, p_values = [], [float(row[-1].p_values()) for row in rows]
    for row, p_value, corrected in zip(rows, p_values, holm(p_values).tolist() if rows else [], strict=True):
        estimate, (low, high) = row[-1], row[-1].interval(1.0 - LEVEL)
        smallest = float(minimum_detectable_effect(replace(estimate, arms=()), LEVEL))
        value, interval = float(estimate.estimate), (float(low), float(high))
        effects.append(Effect(*row[:4], value, interval, p_value, corrected, smallest))
    return effects


def write_sizes_table(results: Results, bases: Files, out: Path) -> None:
    """Write every method's difference and contrast by model, and whether the models order the methods alike.

    ``bases`` are the manifests of a base model of each model, ``results/base/NAME/manifest.json``.
    """
    models_of = {run.base_model: run.model for run in results.runs}
    counts = {path: int(read_manifest(path, "base_model").details["parameters"]) for path in bases}
    parameters = {models_of[path.parent.name]: count for path, count in counts.items()}
    models = sorted(parameters, key=parameters.__getitem__)
    methods: dict[str, dict[str, Condition]] = {}
    for condition in results.conditions:
        methods.setdefault(condition.method, {})[condition.model] = condition
    methods = {method: on for method, on in methods.items() if on.keys() == parameters.keys()}
    rows = [_sized(results, row, parameters[model]) for on in methods.values() for model, row in on.items()]
    compared, title = [row for row in rows if row["_versus"]], results.reference_title
    heading = Column[str]("Method", lambda method: methods[method][models[0]].runs[0].title)

    def by_model(name: str, title: str, cell: str, shown: Sequence[Row], *notes: str) -> Table:
        on = {model: {row["method"]: row[cell] for row in shown if row["model"] == model} for model in models}
        places = {f"{model}, {numbers.count(parameters[model])}": cells for model, cells in on.items()}
        return make_table(name, title, *across(heading, places, lambda size, value: [Column(size, value)]), notes)

    sentences = _sentences([[row for row in compared if row["model"] == model] for model in models])
    note = results.extraction_note
    tables = [
        by_model("sizes", f"Points over {title}, by model", "_difference", compared, *sentences, note),
        by_model("sizes_scores", f"avg@{results.k} (%), by model", "_score", rows, note),
        by_model("sizes_contrast", f"Contrast with {title} (°), by model", "_contrast", compared, _CONTRAST),
    ]
    several = [on for on in methods.values() if all(len(row.seeds) > 1 for row in on.values())]
    tables += [_order_table(results, models, several)] if len(several) > 1 else []
    write_table(out, tables, frame(rows), [*results.sources, *bases], {"draws": DRAWS})


def _sized(results: Results, condition: Condition, parameters: int) -> Row:
    average, contrast = results.average(condition), results.contrast(condition)
    versus = results.comparison(condition, results.reference_method)
    cells = cells_of(versus)
    interval = {key: cells.pop(key) for key in interval_columns(None)}
    angle = f"{contrast.degrees:.1f} ({contrast.floor_degrees:.1f})" if contrast else numbers.NOTHING
    row: dict[str, Any] = {"model": condition.model, "parameters": parameters, "method": condition.method}
    row |= {"title": condition.runs[0].title, "seeds": len(condition.seeds), "average": average.value}
    row |= {"contrast_degrees": contrast.degrees if contrast else None, **cells, **interval, "_versus": versus}
    row["_difference"] = f"{difference_text(versus)} {versus.verdict if versus else ''}".strip()
    return row | {"_score": average_text(average), "_contrast": angle}


def _sentences(by_model: Sequence[Sequence[Row]]) -> list[str]:
    """A sentence for those methods whose verdict is the same on all models, and one for each other."""
    same, told = [], []
    for rows in zip(*by_model, strict=True):
        words, title = [], rows[0]["title"]
        for row in rows:
            effect = None if Verdict(row["verdict"]).is_difference else row["minimum_detectable_effect"]
            words.append(f"{row['verdict']} on {row['model']}{f', MDE {numbers.percent(effect)}' if effect else ''}")
        if len({row["verdict"] for row in rows}) == 1:
            same.append(f"{title} ({rows[0]['verdict']})")
        else:
            told.append(f"{title}: {'; '.join(words)}.")
    return [*([f"The same verdict on every model: {', '.join(same)}."] if same else []), *told]


def _order_table(results: Results, models: Sequence[str], methods: Sequence[Mapping[str, Condition]]) -> Table:
    """Each two models side by side, in the methods that have several seeds on all of them."""
    methods = [{model: replace(row, runs=results.held(row)) for model, row in on.items()} for on in methods]
    names, studies, repeated = [on[models[0]].runs[0].title for on in methods], list[Means](), list[str]()
    for model in models:
        studies.append(means_of(results, [on[model] for on in methods]))
        generator = np.random.default_rng(stream_seed("order of methods", model))
        repeated.append("{:.2f} ({:.2f})".format(*repeated_tau(studies[-1], generator, DRAWS)))
    differences = [_differences(results, [on[model] for on in methods]) for model in models]
    p_values, alpha, rows = inversions(differences), 1.0 - results.confidence, []
    for one, other in combinations(range(len(models)), 2):
        tau = f"{kendall_tau(studies[one].means, studies[other].means):.2f}"
        pairs = enumerate(combinations(names, 2))
        inverted = [" and ".join(pair) for number, pair in pairs if p_values[one, other, number] <= alpha]
        both = zip(differences[one], differences[other], strict=True)
        smallest = numbers.percent(median(smallest_inversion(*pair, len(p_values), alpha) for pair in both))
        said = tau, repeated[one], repeated[other], "; ".join(inverted) or "none", smallest
        rows.append((f"{models[one]} and {models[other]}", *said))
    headers = ("Models", "tau", "First repeated", "Second repeated", "Inverted", "MDE (pp)")
    columns: Columns = [Column(header, itemgetter(place)) for place, header in enumerate(headers)]
    return make_table("sizes_order", "Order of the methods", columns, rows, [_ORDER])


def _differences(results: Results, methods: Sequence[Condition]) -> list[Difference]:
    """The difference of each two methods on a model, over problems and seeds."""
    samples = [results.samples[name] for name in results.benchmarks]
    suite = Suite(results.weights, [results.clusters.get(name) for name in results.benchmarks])
    arms = [Arm(results.rates(row.runs), samples) for row in methods]
    return [estimate_difference(one, other, suite) for one, other in combinations(arms, 2)]
