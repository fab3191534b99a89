"""The table of a study of several models made from scratch: do the verdicts of a small model hold on a larger one?"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from evals.core.comparisons import Verdict
from evals.core.manifest import read_manifest
from evals.core.random import stream_seed
from evals.core.records import Condition, Interval
from evals.results import Results
from evals.statistics.ranks import Means, inversions, kendall_tau, repeated_tau, tau_interval
from evals.statistics.weighting import weighted_mean
from evals.tables import numbers
from evals.tables.layout import Column, interval_columns, make_table, table_frame, write_table
from evals.tables.main import difference_text
from evals.tables.robust import score_matrix

DRAWS = 10_000
_CONTRAST_NOTE = (
    "The mean angle of a method's gradients to the reference method's on the same rollouts, and in parentheses that of "
    "random token weights."
)
_ORDER_NOTE = (
    "tau: Kendall's correlation of the methods' scores on two models, with the interval that seeds leave. Repeated: "
    "the tau of a model with its own repetition by other seeds, the median and in parentheses what 95 % of repetitions "
    "exceed. A tau within that is no evidence of another order. Inverted: two methods whose order is certain on both "
    "models and not the same (Holm over all pairs of methods and of models)."
)


@dataclass(frozen=True)
class _Order:
    """Two models: how alike they order the methods, and how alike each would order them again."""

    models: tuple[str, str]
    tau: float
    interval: Interval
    repeated: tuple[tuple[float, float], tuple[float, float]]
    inverted: tuple[str, ...]  # "GSPO and DAPO"


@dataclass(frozen=True)
class _Sized:
    """The results of a study on models of several sizes.

    Attributes:
        sizes: model -> parameters, the smallest first.
        methods: method -> model -> its row; the base models are one of them.
    """

    results: Results
    sizes: Mapping[str, int]
    methods: Mapping[str, Mapping[str, Condition]]

    def columns(self, text: Callable[[Condition], str]) -> list[Column[str]]:
        """The method, and a column for each model."""
        first = next(iter(self.sizes))

        def cell(method: str, model: str) -> str:
            return text(self.methods[method][model])

        named = Column[str]("Method", lambda method: self.methods[method][first].runs[0].title)
        columns = [
            Column[str](f"{model}, {numbers.count(size)}", lambda method, model=model: cell(method, model))  # type: ignore[misc]
            for model, size in self.sizes.items()
        ]
        return [named, *columns]

    def difference(self, row: Condition) -> str:
        comparison = self.results.comparison(row, self.results.reference_method)
        return f"{difference_text(comparison)} {comparison.verdict if comparison else ''}".strip()

    def score(self, row: Condition) -> str:
        average = self.results.average(row)
        return numbers.percent_with_interval(average.value, average.confidence_interval)

    def angle(self, row: Condition) -> str:
        contrast = self.results.contrast(row)
        return numbers.NOTHING if contrast is None else f"{contrast.degrees:.1f} ({contrast.floor_degrees:.1f})"

    def orders(self) -> list[_Order]:
        """Each two models side by side, in the methods that have several seeds on all of them."""
        rows = [on for on in self.methods.values() if all(len(row.seeds) > 1 for row in on.values())]
        if len(rows) < 2:
            return []
        models, titles = list(self.sizes), [on[next(iter(self.sizes))].runs[0].title for on in rows]
        studies = [Means.of([self._by_seed(on[model]) for on in rows]) for model in models]
        generators = [np.random.default_rng(stream_seed("order of methods", model)) for model in models]
        repeated = [repeated_tau(study, source, DRAWS) for study, source in zip(studies, generators, strict=True)]
        p_values = inversions(studies)
        alpha = 1.0 - self.results.confidence
        orders = []
        for one, other in combinations(range(len(models)), 2):
            interval = tau_interval(studies[one], studies[other], generators[one], DRAWS, self.results.confidence)
            certain = [pair[2:] for pair, p_value in p_values.items() if pair[:2] == (one, other) and p_value <= alpha]
            inverted = tuple(f"{titles[first]} and {titles[second]}" for first, second in certain)
            tau = float(kendall_tau(studies[one].means, studies[other].means))
            pair = models[one], models[other]
            orders.append(_Order(pair, tau, interval, (repeated[one], repeated[other]), inverted))
        return orders

    def _by_seed(self, row: Condition) -> Any:
        return weighted_mean(score_matrix(self.results, row).T, self.results.weights)

    def sentences(self, methods: Sequence[str]) -> list[str]:
        """A sentence for every method whose verdict is not the same on all models, and one for those where it is."""
        told, same = [], []
        for method in methods:
            rows = self.methods[method]
            comparisons = {
                model: comparison
                for model in self.sizes
                if (comparison := self.results.comparison(rows[model], self.results.reference_method))
            }
            title, verdicts = rows[next(iter(self.sizes))].runs[0].title, [row.verdict for row in comparisons.values()]
            if len(set(verdicts)) == 1:
                same.append(f"{title} ({verdicts[0]})")
                continue
            words = []
            for model, row in comparisons.items():
                effect = row.minimum_detectable_effect
                unseen = f", MDE {numbers.percent(effect)}" if not Verdict(row.verdict).is_difference and effect else ""
                words.append(f"{row.verdict} on {model}{unseen}")
            told.append(f"{title}: {'; '.join(words)}.")
        return [*([f"The same verdict on every model: {', '.join(same)}."] if same else []), *told]


def write_sizes_table(results: Results, bases: Sequence[Path], out: Path) -> None:
    """Write every method's difference and contrast by model, and whether the models order the methods alike.

    ``bases`` are the manifests of the models, ``results/base/MODEL/manifest.json``.
    """
    parameters = {path.parent.name: int(read_manifest(path, "base_model").details["parameters"]) for path in bases}
    sizes = dict(sorted(parameters.items(), key=lambda item: item[1]))
    methods: dict[str, dict[str, Condition]] = {}
    for row in results.conditions:
        methods.setdefault(row.method, {})[row.model] = row
    sized = _Sized(results, sizes, {method: on for method, on in methods.items() if on.keys() == sizes.keys()})
    first, title = next(iter(sizes)), results.reference_title
    compared = [
        method for method, on in sized.methods.items() if results.comparison(on[first], results.reference_method)
    ]
    tables = [
        make_table(
            "sizes",
            f"Points over {title}, by model",
            sized.columns(sized.difference),
            compared,
            [*sized.sentences(compared), results.extraction_note],
        ),
        make_table(
            "sizes_scores",
            f"avg@{results.k} (%), by model",
            sized.columns(sized.score),
            [*sized.methods],
            [results.extraction_note],
        ),
        make_table(
            "sizes_contrast",
            f"Contrast with {title} (°), by model",
            sized.columns(sized.angle),
            compared,
            [_CONTRAST_NOTE],
        ),
    ]
    if orders := sized.orders():
        tables.append(make_table("sizes_order", "Order of the methods", _order_columns(), orders, [_ORDER_NOTE]))
    rows = [row for on in sized.methods.values() for row in on.values()]
    write_table(out, tables, table_frame(_csv_columns(sized), rows), [*results.sources, *bases], {"draws": DRAWS})


def _order_columns() -> list[Column[_Order]]:
    def repeated(index: int, words: str) -> Column[_Order]:
        return Column(
            f"{words} repeated", lambda row: row.repeated[index], lambda taus: f"{taus[0]:.2f} ({taus[1]:.2f})"
        )

    return [
        Column("Models", lambda row: " and ".join(row.models)),
        Column("tau", lambda row: row, lambda row: f"{row.tau:.2f} [{row.interval[0]:.2f}, {row.interval[1]:.2f}]"),
        repeated(0, "First"),
        repeated(1, "Second"),
        Column("Inverted", lambda row: "; ".join(row.inverted) or "none"),
    ]


def _csv_columns(sized: _Sized) -> list[Column[Condition]]:
    """The columns of the file that the figure is drawn from: a row for every method on every model."""
    results = sized.results

    def compared(row: Condition) -> Mapping[str, Any]:
        comparison = results.comparison(row, results.reference_method)
        known = {} if comparison is None else comparison.to_json()
        kept = ("difference", "p_value_holm", "minimum_detectable_effect", "verdict")
        return {**{key: known.get(key) for key in kept}, **interval_columns(known.get("confidence_interval"))}

    return [
        Column("", lambda row: row.model, csv="model"),
        Column("", lambda row: sized.sizes[row.model], csv="parameters"),
        Column("", lambda row: row.method, csv="method"),
        Column("", lambda row: row.runs[0].title, csv="title"),
        Column("", lambda row: len(row.seeds), csv="seeds"),
        Column("", lambda row: results.average(row).value, csv="average"),
        Column("", lambda row: getattr(results.contrast(row), "degrees", None), csv="contrast_degrees"),
        Column("", lambda row: row, csv=compared),
    ]
