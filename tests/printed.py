"""The text of figures for papers, as their PDFs have it: what the page cuts, and what overlaps."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations
from typing import Any
from unittest.mock import patch

import numpy as np
from matplotlib.figure import Figure
from matplotlib.path import Path as Outline
from matplotlib.text import Text
from matplotlib.transforms import Affine2D, Bbox

_SLACK = 0.5  # points


@contextmanager
def printed_faults() -> Iterator[list[str]]:
    """Collect the faults of the text in every PDF that is saved meanwhile."""
    faults: list[str] = []
    save, draw = Figure.savefig, Text.draw

    def saved(figure: Figure, target: Any, **options: Any) -> None:
        outlines: dict[Text, Outline] = {}  # as drawn last: the layout draws first

        def drawn(text: Text, renderer: Any, *others: Any, **more: Any) -> None:
            if text.get_visible() and text.get_text().strip():
                outlines[text] = _outline(text, renderer)
            draw(text, renderer, *others, **more)

        with patch.object(Text, "draw", drawn):
            save(figure, target, **options)
        if options.get("format") == "pdf":
            faults.extend(
                _faults(
                    [(text.get_text(), outline) for text, outline in outlines.items()], *(72 * figure.get_size_inches())
                )
            )

    with patch.object(Figure, "savefig", saved):
        yield faults


def _outline(text: Text, renderer: Any) -> Outline:
    """The rectangle of a text in points, turned as it is."""
    box, alone = text.get_window_extent(renderer), Text(0, 0, text.get_text(), fontproperties=text.get_fontproperties())
    alone.set_figure(text.get_figure())
    size = alone.get_window_extent(renderer)
    turn = Affine2D().rotate(math.radians(text.get_rotation())).translate(*np.mean(box.get_points(), axis=0))
    half = size.width / 2 - _SLACK, size.height / 2 - _SLACK
    return turn.transform_path(Outline(Bbox([[-half[0], -half[1]], half]).corners()[[0, 1, 3, 2, 0]]))


def _faults(outlines: list[tuple[str, Outline]], width: float, height: float) -> Iterator[str]:
    if not outlines:
        yield "no text at all"
    page = Bbox([[0, 0], [width, height]])
    for words, outline in outlines:
        if not all(page.contains(*corner) for corner in outline.vertices):
            yield f"cut: {words!r} at {outline.get_extents()} of {page}"
    for (one, here), (other, there) in combinations(outlines, 2):
        if here.intersects_path(there, filled=True):
            yield f"overlap: {one!r} and {other!r}"
