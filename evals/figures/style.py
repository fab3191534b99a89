"""One look for every figure: colours that colour-blind readers tell apart, the same colour per method everywhere.

Bytes are deterministic: the same data gives the same PNG and SVG, so a rebuilt figure differs only if its data do.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.typing import RcKeyType

from evals.core.files import replacing
from evals.core.records import BASE, Run

ENDINGS = (".png", ".svg")
NEUTRAL = "#6b6b6b"
VERDICT_COLOURS = {"better": "#0072b2", "worse": "#d55e00", "not distinguishable": NEUTRAL}
# Paul Tol's "muted" scheme (personal.sron.nl/~pault), ordered so that the first ones differ most.
COLOURS = (
    "#332288", "#cc6677", "#117733", "#88ccee", "#aa4499", "#999933", "#882255", "#44aa99", "#ddcc77",
)  # fmt: skip
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
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
}


@dataclass(frozen=True)
class MethodStyle:
    """The colour and marker of a method; the marker changes once the colours are used up."""

    colour: str
    marker: str


def method_styles(runs: Sequence[Run]) -> dict[str, MethodStyle]:
    """Choose styles by a method's place in the study, so that appending a method recolours nothing."""
    methods = [method for method in dict.fromkeys(run.method for run in runs) if method != BASE]
    styles = {
        method: MethodStyle(
            COLOURS[place % len(COLOURS)],
            MARKERS[place // len(COLOURS) % len(MARKERS)],
        )
        for place, method in enumerate(methods)
    }
    return {BASE: MethodStyle(NEUTRAL, "o")} | styles


@contextlib.contextmanager
def figure_style() -> Iterator[None]:
    """Apply the settings that every figure is drawn and saved under."""
    with mpl.rc_context(_RC):
        yield


def new_figure(width: float, height: float) -> Figure:
    """An empty figure in inches, outside pyplot's global state and needing no display."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save(figure: Figure, out: Path) -> None:
    """Write ``{out}.png`` at 200 dpi and ``{out}.svg``, without dates.

    Raises:
        UserError: a file cannot be written.
    """
    for ending, metadata in ((".png", {"Software": None}), (".svg", {"Date": None, "Creator": None})):
        with replacing(out.with_name(out.name + ending)) as temporary:
            figure.savefig(temporary, format=ending[1:], dpi=200, metadata=metadata)
