"""Curves of other trainers' runs as a figure, tables and a page."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from evals.core.errors import UserError
from evals.figures import style
from evals.tables import numbers
from evals.tables.layout import Column, Table, interval_columns, make_table, table_frame, write_table
from rlvr.curves.compare import Fit, Methods, methods_of
from rlvr.curves.read import SHOWN, read_run
from rlvr.report.html import embedded, write_page

_TITLES = {
    "reward": "Reward",
    "length": "Response length (tokens)",
    "entropy": "Entropy (nats)",
    "kl": "KL (nats)",
    "clip_fraction": "Clip fraction",
}
_NONE = numbers.NOTHING


def write_curves(words: Sequence[str], axis: str, reference: str | None, out: Path) -> list[Table]:
    """Read runs; write figure, tables and page into a directory, and return the tables."""
    runs = [read_run(word) for word in words]
    methods = methods_of(runs, axis)
    if reference is not None and reference not in methods.runs:
        raise UserError(f"--reference: {reference} is no method; accepted: {', '.join(methods.runs)}")
    reference = reference or next(iter(methods.runs))
    inputs = [file for run in runs for file in run.files]
    columns = comparison_columns(methods, reference)
    tables = [
        make_table("comparison", f"Rewards after {methods.end:.6g} {axis}", columns, list(methods.runs), _notes(axis)),
        fit_table(methods),
        names_table(methods),
    ]
    style.write_figure("curves", partial(draw, methods), out / "curves", inputs, axis=axis)
    write_table(out / "comparison", tables, table_frame(columns, list(methods.runs)), inputs, {"axis": axis})
    drawing = out / "curves.svg"
    caption = f"Over {axis}: the mean of a method's seeds, and a band from the smallest to the largest."
    sections: list[dict[str, Any]] = [{"heading": table.title, "tables": [table]} for table in tables]
    sections.insert(0, {"heading": "Curves", "figure": ("curves", embedded(drawing), f"Curves over {axis}", caption)})
    title = f"Runs of {', '.join(methods.runs)}"
    write_page(
        "curves.html.jinja",
        out / "index.html",
        [*inputs, drawing],
        [],
        title=title,
        explanation=None,
        sections=sections,
    )
    return tables


def _notes(axis: str) -> list[str]:
    return [
        f"Training rewards, each the mean of the last tenth of the {axis} that every run reached. Brackets: 95 % "
        "intervals over seeds, which count as independent; p after Holm. One seed has neither.",
    ]


def comparison_columns(methods: Methods, reference: str) -> list[Column[str]]:
    """The columns of the comparison: a row is a method."""
    p_values = methods.p_values(reference)

    def value(method: str, other: str | None = None) -> tuple[float, tuple[float, float] | None]:
        difference = methods.difference(method, other)
        low, high = (float(end) for end in difference.interval())
        return float(difference.estimate), None if pd.isna(low) else (low, high)

    def versus(method: str) -> tuple[float, tuple[float, float] | None] | None:
        return None if method == reference else value(method, reference)

    def verdict(method: str) -> str:
        p_value = p_values.get(method)
        if method == reference:
            return "reference"
        if p_value is None:
            return "needs two seeds of each"
        return "not distinguishable" if p_value > 0.05 else "higher" if value(method, reference)[0] > 0 else "lower"

    def cells(prefix: str) -> Any:
        return lambda cell: {prefix: cell and cell[0], **interval_columns(cell and cell[1], f"{prefix}_")}

    return [
        Column("Method", str, csv="method"),
        Column("Seeds", lambda method: len(methods.runs[method]), csv="seeds"),
        Column("Steps", lambda method: min(len(run.metrics) for run in methods.runs[method]), csv="steps"),
        Column("Reward", value, _number, cells("reward")),
        Column(f"Versus {reference}", versus, lambda cell: _number(cell, "+") if cell else _NONE, cells("versus")),
        Column("p (Holm)", p_values.get, numbers.p_value, "p_value_holm"),
        Column("Verdict", verdict, csv="verdict"),
    ]


def _number(cell: tuple[float, tuple[float, float] | None], sign: str = "") -> str:
    value, interval = cell
    ends = f" [{interval[0]:{sign}.3g}, {interval[1]:{sign}.3g}]" if interval else ""
    return f"{value:{sign}.3g}{ends}"


def fit_table(methods: Methods) -> Table:
    """The ceiling-and-efficiency fit of every method."""
    fits = {method: methods.fit(method) for method in methods.runs}

    def parameter(name: str) -> Any:
        def text(method: str) -> str:
            fit = fits[method]
            return _number(fit.parameter(name)) if isinstance(fit, Fit) and fit.is_identified else _NONE

        return text

    def is_identified(method: str) -> str:
        fit = fits[method]
        return f"no: {fit}" if isinstance(fit, str) else "yes" if fit.is_identified else "no: the curve does not bend"

    columns: list[Column[str]] = [
        Column("Method", str),
        Column("Ceiling A", parameter("ceiling")),
        Column(f"C_mid ({methods.axis})", parameter("log_midpoint")),
        Column("B", parameter("log_exponent")),
        Column("Identified", is_identified),
    ]
    note = (
        "R = R_0 + (A - R_0) / (1 + (C_mid / C)^B) (arXiv 2510.13786), fitted to training rewards; R_0 is that of the "
        "first step, which is before training. Brackets: 95 % intervals over seeds (jackknife)."
    )
    return make_table("scaling", "Ceiling and efficiency", columns, list(methods.runs), [note])


def names_table(methods: Methods) -> Table:
    """What every metric was called in the files, and the names that the table of names lacks."""
    runs = [run for of_method in methods.runs.values() for run in of_method]
    rows = list(dict.fromkeys((run.method, tuple(run.names.items()), tuple(run.unmapped)) for run in runs))
    columns: list[Column[Any]] = [
        Column("Method", lambda row: row[0]),
        Column("Read as", lambda row: ", ".join(f"{name}: {given}" for name, given in row[1])),
        Column("Not mapped", lambda row: ", ".join(row[2]) or _NONE),
    ]
    return make_table("names", "Names of metrics", columns, rows)


def draw(methods: Methods) -> Figure:
    """A panel for each metric: the mean over a method's seeds, a band from the smallest to the largest."""
    known = [name for name in SHOWN if any(methods.over(method, name) for method in methods.runs)]
    figure = style.new_figure(3.4 * min(3, len(known)), 0.7 + 2.4 * -(-len(known) // 3))
    panels = figure.subplots(-(-len(known) // 3), min(3, len(known)), squeeze=False).flat
    for axes, name in zip(panels, known, strict=False):
        for number, method in enumerate(methods.runs):
            if course := methods.over(method, name):
                colour = style.COLOURS[number % len(style.COLOURS)]
                line = style.LINES[number // len(style.COLOURS) % len(style.LINES)]
                spent, values = course
                axes.plot(spent, values.mean(axis=0), color=colour, linestyle=line, linewidth=1.4, label=method)
                axes.fill_between(spent, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.18, linewidth=0)
        axes.set_title(_TITLES[name])
        axes.set_xlabel(methods.axis)
    for axes in list(figure.axes)[len(known) :]:
        axes.remove()
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)))
    seeds = style.number_of_seeds(len(runs) for runs in methods.runs.values())
    style.set_title(figure, f"Mean of {seeds} seeds, band from the smallest to the largest")
    return figure
