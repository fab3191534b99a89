"""One look for every figure: colours that colour-blind readers tell apart, the same colour per method everywhere.

Bytes are deterministic: the same data gives the same PNG and SVG, so a rebuilt figure differs only if its data do.
"""

import contextlib
import math
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.typing import RcKeyType

from evals.core.files import replacing
from evals.core.manifest import write_output_manifest
from evals.core.records import BASE, Run
from evals.figures.fitting import fit_text, wrapped

ENDINGS = (".png", ".svg", ".pdf")
NEUTRAL = "#6b6b6b"
VERDICT_COLOURS = {
    "better": "#0072b2",
    "worse": "#d55e00",
    "equivalent": "#009e73",
    "not decided": NEUTRAL,
    "not distinguishable": NEUTRAL,
    "no contrast with the reference": "#949494",
}
MARGIN: Any = {"color": VERDICT_COLOURS["equivalent"], "alpha": 0.13, "linewidth": 0}
"""The shade of the margin of equivalence."""
# Each has 3:1 contrast to white (WCAG 2.2, 1.4.11), and each two are 26 apart in CIELAB for readers with protanopia and
# deuteranopia (matrices of Machado, Oliveira and Fernandes, 2009), 43 for others; found by a random search for that.
COLOURS = (
    "#332288", "#900014", "#039883", "#008aff", "#c173c5", "#9f8c55", "#560035", "#799e00", "#003cf8",
)  # fmt: skip
LINES: tuple[Any, ...] = ("-", "--", "-.", (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5, 1, 1.5)))
PAGE_WIDTH, COLUMN_WIDTH = 6.8, 3.3  # inches of the text and of a column in two-column conference styles
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
mpl.rcParams["text.parse_math"] = False  # a name with two dollars is no formula, in figures of other styles neither
_RC: dict[RcKeyType, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#9a9a9a",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.7,
    "xtick.color": "#4d4d4d",
    "ytick.color": "#4d4d4d",
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "svg.hashsalt": "rlvr-bench",
    "svg.fonttype": "path",  # the reader's machine may lack the font
    "pdf.fonttype": 42,  # TrueType; publishers refuse Type 3
}


@dataclass(frozen=True)
class MethodStyle:
    """The colour, marker and line of a method; the marker changes once the colours are used up."""

    colour: str
    marker: str
    line: Any = "-"


def method_styles(runs: Sequence[Run]) -> dict[str, MethodStyle]:
    """Choose styles by a method's place in the study, so that appending a method recolours nothing."""
    styles = {BASE: MethodStyle(NEUTRAL, "o")}
    for number, method in enumerate(dict.fromkeys(run.method for run in runs if run.method != BASE)):
        line, colour = divmod(number, len(COLOURS))
        styles[method] = MethodStyle(COLOURS[colour], MARKERS[line % len(MARKERS)], LINES[number % len(LINES)])
    return styles


@contextlib.contextmanager
def figure_style(widest: float = 99.0) -> Iterator[None]:
    """Apply the settings that every figure is drawn and saved under; ``widest`` in inches."""
    with mpl.rc_context({**_RC, "figure.figsize": (widest, widest)}):
        yield


def new_figure(width: float, height: float) -> Figure:
    """An empty figure in inches, at most as wide as the style says, outside pyplot's state and needing no display."""
    figure = Figure(figsize=(min(width, mpl.rcParams["figure.figsize"][0]), height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def label_lines(panels: Iterable[Axes], titles: Sequence[str], width: int) -> None:
    """Name each line of panels at its left, in lines of ``width`` characters."""
    for axes, title in zip(panels, titles, strict=True):
        axes.set_ylabel(textwrap.fill(title, width), rotation=0, ha="right", va="center", weight="bold")


def row_labels(titles: Sequence[str], inches: float) -> tuple[list[str], float]:
    """Titles in lines of so many inches, and the height in inches of rows with room for the longest of them."""
    labels = [wrapped(title, inches) for title in titles]
    return labels, 0.17 * max(label.count("\n") + 1.4 for label in labels)


def draw_estimate(
    axes: Axes,
    place: float,
    value: float,
    interval: tuple[float, float] | None,
    colour: str,
    marker: str = "o",
    line: str = "-",
    is_upright: bool = False,
) -> None:
    """Draw a value at a place of the other axis, and its interval, whose ends no marker hides."""

    def at(values: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
        places = [place] * len(values)
        return (places, values) if is_upright else (values, places)

    axes.plot(*at([value]), marker, color=colour, markersize=4.5, markeredgecolor="white", markeredgewidth=0.6)
    if interval is not None:
        (axes.vlines if is_upright else axes.hlines)(place, *interval, color=colour, linewidth=1.6, linestyle=line)
        axes.plot(*at(interval), "_" if is_upright else "|", color=colour, markersize=6, markeredgewidth=1.2)


def titled_panels(figure: Figure, titles: Sequence[str], columns: int, **style: float) -> list[Axes]:
    """Panels that share both axes, in lines of ``columns``, a title each; the lowest of a column has the numbers."""
    lines = math.ceil(len(titles) / columns)
    every = list(figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False).flat)
    for axes in every[len(titles) :]:
        axes.remove()
    for number, (axes, title) in enumerate(zip(every, titles, strict=False)):
        axes.set_title(title, **style)
        if number + columns >= len(titles):
            axes.tick_params(labelbottom=True)
    return every[: len(titles)]


def small_panels(
    titles: Sequence[str], most: int, width: tuple[float, float], height: tuple[float, float]
) -> tuple[Figure, list[Axes]]:
    """A figure of at most so many panels in a line; width and height in inches, of the rest and of each panel."""
    across = min(most, len(titles))
    figure = new_figure(width[0] + width[1] * across, height[0] + height[1] * math.ceil(len(titles) / across))
    return figure, titled_panels(figure, titles, across, fontsize=8.5)


def verdict_marks(colours: Mapping[str, str], **style: Any) -> list[Line2D]:
    """The entries of a legend for verdicts and their colours, which verdicts of no difference share."""
    alike = {colour: [verdict for verdict in colours if colours[verdict] == colour] for colour in colours.values()}
    return [
        Line2D([], [], color=colour, marker="o", label=" or ".join(same), **style) for colour, same in alike.items()
    ]


def set_title(figure: Figure, words: str, **style: float) -> None:
    """Write the title of a whole figure."""
    figure.suptitle(words, x=0.01, ha="left", weight="bold", **style)


def number_of_seeds(numbers: Iterable[int]) -> str:
    """The one number of seeds, or the smallest and the largest: ``3``, ``2 to 3``."""
    counts = sorted(numbers)
    return " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))


def write_figure(
    name: str,
    draw: Callable[[], Figure],
    out: Path,
    inputs: Sequence[Path],
    column: Callable[[], Figure] | None = None,
    **parameters: Any,
) -> None:
    """Draw a figure in this look; write it as ``{out}.png``, ``.svg`` and, for papers, ``.pdf``, with a manifest.

    ``column`` draws what fits into a column of a paper, ``{out}_column.pdf``.
    """
    endings = [*ENDINGS, *(["_column.pdf"] if column else [])]
    with figure_style():
        save(draw(), out)
    save_for_papers(draw, out.with_name(f"{out.name}.pdf"), PAGE_WIDTH)
    if column:
        save_for_papers(column, out.with_name(f"{out.name}_column.pdf"), COLUMN_WIDTH)
    write_output_manifest("figure", out, endings, inputs, {"figure": name, **parameters})


def save(figure: Figure, out: Path) -> None:
    """Write ``{out}.png`` at 200 dpi and ``{out}.svg``, without dates."""
    fit_text(figure)
    for ending, metadata in ((".png", {"Software": None}), (".svg", {"Date": None, "Creator": None})):
        with replacing(out.with_name(out.name + ending)) as temporary:
            figure.savefig(temporary, format=ending[1:], dpi=200, metadata=metadata)


def save_for_papers(draw: Callable[[], Figure], out: Path, width: float) -> Figure:
    """Write a figure without its title, which a paper says in the caption, at most ``width`` inches wide."""
    with figure_style(width), replacing(out) as temporary:
        figure = draw()
        figure.suptitle("")
        fit_text(figure)
        dates = {"CreationDate": None, "Creator": None, "Producer": None}
        figure.savefig(temporary, format="pdf", metadata=dates)
    return figure
