"""The fitting of a figure's text into its page: what is too long is wrapped or turned, and the figure grows instead.

Text is measured as it is drawn, so that titles of any study are whole, and beside one another.
"""

import textwrap
import warnings
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from typing import Any, Literal

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

_GAP = 4.0  # pixels between two texts, of 72 to 100 an inch
_APART = 8.0  # points between an axis and the labels below it, where those beside it end at its corner
_NARROWEST = 6  # characters of a line
_PASSES = 2  # what was wrapped moves the panels, and so changes the room of other texts
_ENOUGH = 10  # times the height of a figure, in which titles of any length leave the panels some
_TITLED, _NAMED, _BESIDE = 0.94, 0.85, 0.28  # of the width: the title of a legend below, its names, names beside panels


def fit_text(figure: Figure) -> None:
    """Wrap titles, labels and legends to their room, turn tick labels that touch, and keep the panels' height."""
    _lay_out(figure)
    is_high = _height(_names(figure)) > _panel_height(figure) or _height(figure.legends) > figure.bbox.height
    is_long = any(_length(text) > room for text, room in [*_rooms(figure), *_upright_rooms(figure)])
    if not (is_high or is_long or _touch([*_tick_labels(figure, "x"), *_tick_labels(figure, "y")])):
        return
    written, panel = dict[Text, str](), _panel_height(figure)
    figure.set_figheight(_ENOUGH * figure.get_figheight())
    for _ in range(_PASSES):
        _lay_out(figure)
        along = _tick_labels(figure, "x")
        if _touch([*along, *_tick_labels(figure, "y")]):
            turn = {"labelrotation": 45, "labelrotation_mode": "xtick"} if _touch(along) else {}
            for axes in figure.axes:
                axes.tick_params(axis="x", pad=_APART, **turn)
        _wrap_all(_rooms(figure), written)
    _lay_out(figure)
    panel = max(panel, _height(_names(figure)))
    lines = len({round(axes.get_window_extent().y0) for axes in figure.axes})
    needed = figure.bbox.height + lines * (panel - _panel_height(figure))
    figure.set_figheight(max(needed, _height(figure.legends)) / figure.dpi)
    _lay_out(figure)
    _wrap_all([*_rooms(figure), *_upright_rooms(figure)], written)


def wrapped(words: str, inches: float) -> str:
    """Words in lines of so many inches, for tick labels, which nothing can wrap after they are set."""
    figure = Figure()
    text = figure.text(0, 0, words)
    _wrap(text, words, inches * figure.dpi)
    return text.get_text()


def _names(figure: Figure) -> list[Text]:
    return [axes.yaxis.label for axes in figure.axes if axes.yaxis.label.get_rotation() == 0]


def _height(artists: Iterable[Artist]) -> float:
    """The height of the tallest one with a gap."""
    return max((artist.get_window_extent().height + _GAP for artist in artists), default=0.0)


def _lay_out(figure: Figure) -> None:
    """Place the panels; text that was not wrapped yet may leave them no room."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "constrained_layout not applied")
        figure.draw_without_rendering()


def _wrap_all(rooms: Iterable[tuple[Text, float]], written: dict[Text, str]) -> None:
    """Wrap every text to its room; ``written`` remembers what it says without line ends of ours."""
    for text, room in rooms:
        _wrap(text, written.setdefault(text, text.get_text()), room)


def legend_below(figure: Figure, handles: Sequence[Artist], words: str = "", most: int = 9) -> None:
    """Name ``handles`` below the panels, in as many columns as fit under ``words``; the figure grows by its height."""
    for columns in range(min(most, len(handles)), 0, -1):
        place: dict[str, Any] = {"loc": "outside lower center", "ncols": columns, "fontsize": 8.5}
        legend = figure.legend(handles=list(handles), title=words, title_fontsize=8.5, **place)
        _wrap(legend.get_title(), words, _TITLED * figure.bbox.width)
        for text in legend.get_texts():
            _wrap(text, text.get_text(), _NAMED * figure.bbox.width)
        if columns > 1 and legend.get_window_extent().width > figure.bbox.width - 2 * _GAP:
            legend.remove()
            continue
        figure.set_figheight(figure.get_figheight() + legend.get_window_extent().height / figure.dpi)
        return


def legend_beside(figure: Figure, axes: Axes) -> None:
    """Name the lines of ``axes`` at the right of the panels: inside, nine names would hide the lines."""
    legend = figure.legend(*axes.get_legend_handles_labels(), loc="outside right center", fontsize=8)
    for text in legend.get_texts():
        _wrap(text, text.get_text(), _BESIDE * figure.bbox.width)


def _rooms(figure: Figure) -> Iterator[tuple[Text, float]]:
    """The texts along the page, and the pixels that each has."""
    yield from ((text, 0.98 * figure.bbox.width) for text in figure.texts if not _is_upright(text))
    boxes = [axes.get_window_extent() for axes in figure.axes]
    for axes, box in zip(figure.axes, boxes, strict=True):
        right = min((other.x0 for other in boxes if other.x0 > box.x1), default=figure.bbox.width)
        texts: list[Any] = [child for child in axes.get_children() if isinstance(child, Text)]
        yield from ((text, 0.96 * box.width if text in axes.texts else right - box.x0 - _GAP) for text in texts)
        yield axes.xaxis.label, box.width + _GAP
        legend = axes.get_legend()
        if legend is not None and (names := legend.get_texts()):  # which share what its marks leave of the width
            widest = max(name.get_window_extent().width for name in names)
            yield from ((name, box.width - (legend.get_window_extent().width - widest)) for name in names)


def _upright_rooms(figure: Figure) -> Iterator[tuple[Text, float]]:
    yield from ((text, figure.bbox.height - _GAP) for text in figure.texts if _is_upright(text))
    for axes in figure.axes:
        if _is_upright(axes.yaxis.label):
            yield axes.yaxis.label, max(axes.get_window_extent().height, figure.bbox.height / 2)


def _is_upright(text: Text) -> bool:
    return text.get_rotation() == 90


def _wrap(text: Text, words: str, room: float) -> None:
    """Write ``words`` in lines that are at most ``room`` pixels long, wherever a line breaks."""
    text.set_text(words)
    characters = max(map(len, words.split("\n")))
    while characters > _NARROWEST and (length := _length(text)) > room:
        characters = max(_NARROWEST, min(characters - 1, round(characters * room / length) + 2))
        text.set_text("\n".join(textwrap.fill(line, characters) for line in words.split("\n")))


def _length(text: Text) -> float:
    box = text.get_window_extent()
    return box.height if _is_upright(text) else box.width


def _panel_height(figure: Figure) -> float:
    return min(axes.get_window_extent().height for axes in figure.axes)


def _tick_labels(figure: Figure, letter: Literal["x", "y"]) -> list[Text]:
    """The labels of the ticks of all x or y axes that are drawn, and not turned."""
    drawn, along = [], int(letter == "y")
    for axes in figure.axes:
        low, high = axes.get_window_extent().padded(1).get_points()[:, along]
        for label in getattr(axes, f"get_{letter}ticklabels")(which="both"):
            middle = np.mean(label.get_window_extent().get_points()[:, along])
            if label.get_visible() and label.get_text() and label.get_rotation() == 0 and low <= middle <= high:
                drawn.append(label)
    return drawn


def _touch(texts: Sequence[Text]) -> bool:
    boxes = [text.get_window_extent().padded(_GAP / 2) for text in texts]
    return any(one.overlaps(other) for one, other in combinations(boxes, 2))
