"""Curves of other trainers' runs as a figure, tables and a page."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from matplotlib.figure import Figure

from evals.core.errors import UserError, counted
from evals.figures import style
from evals.figures.fitting import legend_below
from evals.tables import numbers
from evals.tables.layout import Column, Table, interval_columns, make_table, markdown, table_frame, write_table
from rlvr.report.html import embedded, write_page
from rlvr_curves.compare import Fit, Methods, methods_of
from rlvr_curves.names import NAMES, SHOWN, Name
from rlvr_curves.runs import Run, read_runs
from rlvr_curves.sources import few

_TITLES = {
    "reward": "Reward",
    "length": "Response length (tokens)",
    "entropy": "Entropy (nats)",
    "kl": "KL (nats)",
    "clip_fraction": "Clip fraction",
}
_NONE = numbers.NOTHING
_FEW, _MANY = 3, 10**6  # names that are not read, in the terminal and on the page


def write_curves(
    runs: Sequence[str],
    axis: Literal["steps", "tokens", "seconds"] = "steps",
    reference: str | None = None,
    names: str = "",
    out: Path = Path("curves"),
) -> list[str]:
    """Draw and compare runs of TRL, verl and other trainers, from the files that they or their trackers wrote.

    Rewards, lengths, entropies, divergences and clip fractions over one axis, with bands over seeds; the ceiling and
    efficiency of every method where its rewards bend; and its reward against the reference's where it has seeds.

    Args:
        runs: METHOD=PATH each: a file, a directory or a quoted pattern; runs of one method are its seeds.
        axis: axis of all curves.
        reference: method that the others are compared with; default: the first.
        names: names of your own metrics, such as reward=rewards/accuracy/mean,step=iteration.
        out: directory for index.html, the figure and the tables.
    """
    read = read_runs(runs, names)
    methods = methods_of(read, axis)
    if reference is not None and reference not in methods.runs:
        raise UserError(f"--reference: {reference} is no method; accepted: {', '.join(methods.runs)}")
    reference = reference or next(iter(methods.runs))
    inputs = [file for run in read for file in run.files]
    columns = comparison_columns(methods, reference)
    title = f"Rewards after {methods.end:.6g} {methods.unit}"
    tables = [
        make_table("comparison", title, columns, list(methods.runs), _notes(methods)),
        fit_table(methods),
        runs_table(read, _FEW),
        names_table(read, [row for row in names_of(read) if _users(row, read)]),
    ]
    style.write_figure("curves", partial(draw, methods), out / "curves", inputs, axis=methods.axis)
    write_table(out / "comparison", tables, table_frame(columns, list(methods.runs)), inputs, {"axis": methods.axis})
    drawing = out / "curves.svg"
    caption = f"Over {methods.unit}: the mean of a method's seeds, and a band from the lowest to the highest."
    figure = ("curves", embedded(drawing), f"Curves over {methods.unit}", caption)
    shown = [*tables[:2], runs_table(read, _MANY), names_table(read, names_of(read))]
    sections: list[dict[str, Any]] = [{"heading": "Curves", "figure": figure}]
    sections += [{"heading": table.title, "tables": [table]} for table in shown]
    title = f"Runs of {', '.join(methods.runs)}"
    content: dict[str, Any] = {"title": title, "explanation": None, "sections": sections}
    write_page("curves.html.jinja", out / "index.html", [*inputs, drawing], [], "rlvr_curves", **content)
    return markdown(tables).splitlines()


def _notes(methods: Methods) -> list[str]:
    notes = [
        f"Training rewards, each the mean of the last tenth of the {methods.axis.partition(': ')[0]} that every run "
        "reached. Brackets: 95 % intervals over seeds, which count as independent; p after Holm. One seed has neither.",
    ]
    for runs in methods.runs.values():
        for run in runs:
            if not run.names["steps"][1]:
                words = "an entry with a reward: neither wandb.log nor a metric gives one (yours: --names step=NAME)"
                notes.append(f"{run.path}: a step is {words}.")
            if run.lost:
                notes.append(f"{run.path}: the reward of {counted(run.lost, 'step')} is no number and is left out.")
    return notes


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
        Column("Steps", lambda method: f"{min(run.steps for run in methods.runs[method]):g}", csv="steps"),
        Column("Reward", value, _number, cells("reward")),
        Column(f"Versus {reference}", versus, lambda cell: _number(cell, "+") if cell else _NONE, cells("versus")),
        Column("p (Holm)", p_values.get, numbers.p_value, "p_value_holm"),
        Column("Verdict", verdict, csv="verdict"),
    ]


def _number(cell: tuple[float, tuple[float, float] | None], sign: str = "") -> str:
    value, interval = cell
    low, high = (numbers.rounded(end, f"{sign}.3g") for end in interval or (0.0, 0.0))
    return numbers.rounded(value, f"{sign}.3g") + (f" [{low}, {high}]" if interval else "")


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
        Column(f"C_mid ({methods.unit})", parameter("log_midpoint")),
        Column("B", parameter("log_exponent")),
        Column("Identified", is_identified),
    ]
    note = (
        "R = R_0 + (A - R_0) / (1 + (C_mid / C)^B) (arXiv 2510.13786), fitted to training rewards; R_0 is that of the "
        "first step, which is before training. Brackets: 95 % intervals over seeds (jackknife)."
    )
    return make_table("scaling", "Ceiling and efficiency", columns, list(methods.runs), [note])


def names_of(runs: Sequence[Run]) -> list[Name]:
    """The whole table of names, after those of ``--names``."""
    own = [row for run in runs for row, _ in run.names.values() if row not in NAMES]
    return [*dict.fromkeys(own), *NAMES]


def _users(row: Name, runs: Sequence[Run]) -> list[str]:
    return list(dict.fromkeys(run.method for run in runs for used, _ in run.names.values() if used == row))


def names_table(runs: Sequence[Run], rows: Sequence[Name]) -> Table:
    """The names of steps, rewards, tokens and times, and the methods in whose logs each was read."""
    columns: list[Column[Name]] = [
        Column("Quantity", lambda row: row.quantity.replace("_", " ")),
        Column("Name in the log", lambda row: row.name),
        Column("Counts", lambda row: row.counts or _NONE),
        Column("Logged as", lambda row: row.form),
        Column("Written by", lambda row: row.written_by),
        Column("Read for", lambda row: ", ".join(_users(row, runs)) or _NONE),
    ]
    return make_table("names", "Names of metrics", columns, rows, ["The first name that a log has is taken."])


def runs_table(runs: Sequence[Run], most: int) -> Table:
    """The runs: where each was read, how long it is, and the names that the table of names lacks."""
    columns: list[Column[Run]] = [
        Column("Method", lambda run: run.method),
        Column("Run", lambda run: str(run.path)),
        Column("Files", lambda run: str(len(run.files))),
        Column("Steps", lambda run: f"{run.metrics['steps'].iloc[0]:g} to {run.metrics['steps'].iloc[-1]:g}"),
        Column("Rewards", lambda run: str(len(run.metrics))),
        Column("Not read", lambda run: few(run.unmapped, most) or _NONE),
    ]
    return make_table("runs", "Runs", columns, runs)


def draw(methods: Methods) -> Figure:
    """A panel for each metric: the mean over a method's seeds, a band from the lowest to the highest."""
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
        axes.set_xlabel(methods.unit)
    for axes in list(figure.axes)[len(known) :]:
        axes.remove()
    legend_below(figure, figure.axes[0].get_legend_handles_labels()[0], most=4)
    seeds = style.number_of_seeds(len(runs) for runs in methods.runs.values())
    words = "One run of each method" if seeds == "1" else f"Mean of {seeds} seeds, band from the lowest to the highest"
    style.set_title(figure, words)
    return figure
