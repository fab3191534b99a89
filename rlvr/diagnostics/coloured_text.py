"""Responses as coloured text, for a person to read: the page itself, whatever its tokens are coloured by.

One HTML file without scripts or anything from elsewhere. A quantity is chosen by radio buttons, which style sheets act
on; every token's numbers stand in its tooltip and in a table below its response.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from evals.core.files import write_text
from rlvr.page_template import page_template

Row = Mapping[Hashable, Any]

LEVELS = 4
_LARGEST = 0.98
"""Quantile of the sizes on the page from which on a token has the strongest colour."""


@dataclass(frozen=True)
class Quantity:
    """What tokens are coloured by.

    Attributes:
        key: short name, for classes of the style sheet.
        title: for the reader.
        values: rows -> its values [rows], not a number where there is none.
        unit: of its values, with a space before it.
        middle: the value that has no colour; above it blue, below it orange.
        one_sided: whether nothing lies below the middle.
    """

    key: str
    title: str
    values: Callable[[pd.DataFrame], npt.NDArray[np.float64]]
    unit: str = ""
    middle: float = 0.0
    one_sided: bool = False


@dataclass(frozen=True)
class View:
    """What a page shows of a table whose rows are tokens.

    Attributes:
        title: heading of the page.
        explanation: what only this kind of page has, in sentences.
        quantities: that tokens can be coloured by; the first one at the start.
        header: of the tables of numbers.
        cells: row -> a token's numbers.
        words: row -> the same in a sentence.
        heading: row of a response -> its name, what became of it, and what is said in small print.
        stopped: row -> whether the token is struck through.
    """

    title: str
    explanation: str
    quantities: Sequence[Quantity]
    header: Sequence[str]
    cells: Callable[[Row], tuple[str, ...]]
    words: Callable[[Row], str]
    heading: Callable[[Row], tuple[str, str, str]]
    stopped: Callable[[Row], bool] = lambda row: False


@dataclass(frozen=True)
class Token:
    """One token as it is shown.

    Attributes:
        shown: its text; what cannot be seen has a sign.
        breaks: the text goes on in a new line after it.
        classes: colour classes, one a quantity.
        words: its numbers, in a sentence.
        cells: its numbers, for the table.
    """

    shown: str
    breaks: bool
    classes: str
    words: str
    cells: tuple[str, ...]


@dataclass(frozen=True)
class Response:
    """One response and its name, what became of it, and what is said in small print."""

    name: str
    outcome: str
    remark: str
    tokens: Sequence[Token]


@dataclass(frozen=True)
class Group:
    """The responses to one problem."""

    problem: str
    text: str | None
    responses: Sequence[Response]


def write_coloured_text(view: View, frame: pd.DataFrame, texts: Mapping[str, str], out: Path) -> None:
    """Write the page.

    Args:
        view: what it shows.
        frame: rows in the order of the text; ``problem``, ``group``, ``sample`` and ``text`` beside what ``view`` asks.
        texts: id -> text of problems, as far as known.
        out: the HTML file.
    """
    values = {quantity.key: quantity.values(frame) for quantity in view.quantities}
    scales = {quantity.key: scale_of(values[quantity.key], quantity.middle) for quantity in view.quantities}
    page = page_template("coloured_text.html.jinja", "rlvr.diagnostics").render(
        view=view,
        groups=_groups(view, frame, values, scales, texts),
        legends={quantity.key: _legend(quantity, scales[quantity.key]) for quantity in view.quantities},
        levels=range(1, LEVELS + 1),
    )
    write_text(out, page)


def numbers(frame: pd.DataFrame, column: str) -> npt.NDArray[np.float64]:
    """A column [rows] in float64."""
    return frame[column].to_numpy(dtype=np.float64)


def scale_of(values: npt.NDArray[np.float64], middle: float) -> float:
    """The distance from the middle from which on a token has the strongest colour; 0 if all are in the middle."""
    distances = np.abs(values[np.isfinite(values)] - middle)
    return float(np.quantile(distances, _LARGEST)) if len(distances) else 0.0


def level(value: float, middle: float, scale: float) -> int:
    """Strength of a colour, -LEVELS (orange) to LEVELS (blue): each begins at twice the distance of the one before."""
    distance = abs(value - middle)
    if not np.isfinite(value) or scale <= 0:
        return 0
    strength = sum(distance >= limit for limit in _limits(scale))
    return strength if value > middle else -strength


def _limits(scale: float) -> list[float]:
    return [scale / 2 ** (LEVELS - strength) for strength in range(1, LEVELS + 1)]


def _legend(quantity: Quantity, scale: float) -> list[tuple[int, str]]:
    """Level and what it means, orange to blue."""
    if scale <= 0:
        return [(0, f"{quantity.middle:g} everywhere")]
    limits = _limits(scale)
    below = [(-strength, f"≤ {quantity.middle - limits[strength - 1]:.2g}") for strength in range(LEVELS, 0, -1)]
    above = [(strength, f"≥ {quantity.middle + limits[strength - 1]:.2g}") for strength in range(1, LEVELS + 1)]
    return [(0, "less"), *above] if quantity.one_sided else [*below, (0, "between"), *above]


def _groups(
    view: View,
    frame: pd.DataFrame,
    values: Mapping[str, npt.NDArray[np.float64]],
    scales: Mapping[str, float],
    texts: Mapping[str, str],
) -> list[Group]:
    found: dict[Any, dict[int, list[Token]]] = {}
    heads: dict[Any, dict[int, Row]] = {}
    for place, row in enumerate(frame.to_dict("records")):
        classes = [
            class_of(quantity.key, level(float(values[quantity.key][place]), quantity.middle, scales[quantity.key]))
            for quantity in view.quantities
        ]
        classes += ["stopped"] if view.stopped(row) else []
        text = str(row["text"])
        token = Token(visible(text), text.endswith("\n"), " ".join(classes), view.words(row), view.cells(row))
        found.setdefault(row["group"], {}).setdefault(row["sample"], []).append(token)
        heads.setdefault(row["group"], {}).setdefault(row["sample"], row)
    groups = []
    for group, samples in found.items():
        problem = str(next(iter(heads[group].values()))["problem"])
        responses = [Response(*view.heading(heads[group][sample]), tokens) for sample, tokens in samples.items()]
        groups.append(Group(problem, texts.get(problem), responses))
    return groups


def class_of(key: str, strength: int) -> str:
    """Name of a colour class, such as ``push-up-3``."""
    side = "up" if strength > 0 else "down"
    return f"{key}-{side}-{abs(strength)}" if strength else f"{key}-0"


def visible(text: str) -> str:
    """Text with a sign for each line break, and for a space that stands alone."""
    return "·" if text == " " else text.replace("\n", "↵")
