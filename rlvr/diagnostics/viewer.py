"""Rollouts as coloured text: what one step of training made of each token, for a person to read.

One HTML file without scripts or anything from elsewhere. A quantity is chosen by radio buttons, which style sheets act
on; every token's numbers stand in its tooltip and in a table below its rollout.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined

from evals.artifacts import read_jsonl, write_text
from evals.errors import UserError
from rlvr.diagnostics.token_columns import read_token_table

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
        unit: of its values, with a space before it.
        middle: the value that has no colour; above it blue, below it orange.
    """

    key: str
    title: str
    unit: str = ""
    middle: float = 0.0


QUANTITIES = (
    Quantity("push", "advantage × weight"),
    Quantity("weight", "weight", middle=1.0),
    Quantity("change", "log-prob change over the step", " nats"),
    Quantity("gate", "gate", middle=1.0),
    Quantity("entropy", "entropy", " nats"),
    Quantity("surprise", "−log-prob when sampled", " nats"),
)


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
class Rollout:
    """One response."""

    sample: int
    reward: float
    advantage: float
    mini_batch: int
    tokens: Sequence[Token]


@dataclass(frozen=True)
class Group:
    """The rollouts of one problem."""

    problem: str
    text: str | None
    rollouts: Sequence[Rollout]


HEADER = ("token", "class", "weight", "log-prob", "after the step", "change", "entropy", "ratio", "gate")


def write_page(
    table: Path, step: int, problems: Sequence[str], count: int, texts: Mapping[str, str], out: Path
) -> None:
    """Write the page of some groups of one step.

    Args:
        table: directory with ``tokens.parquet``.
        step: which one.
        problems: ids of the problems to show; with none, the first ``count`` that have rewarded and punished rollouts.
        count: how many.
        texts: id -> text of problems, as far as known.
        out: the HTML file.

    Raises:
        UserError: the table is missing or damaged, or has no such step or problem.
    """
    path = table / "tokens.parquet"
    frame = read_token_table(path)
    steps = sorted(frame["step"].unique())
    if step not in steps:
        raise UserError(f"--step: is {step}; accepted: {', '.join(map(str, steps))}")
    chosen = _choose(frame[frame["step"] == step], problems, count)
    values = quantity_values(chosen)
    scales = {quantity.key: scale_of(values[quantity.key], quantity.middle) for quantity in QUANTITIES}
    environment = Environment(
        loader=PackageLoader("rlvr.diagnostics", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("rollouts.html.jinja").render(
        run=str(chosen["run"].iloc[0]),
        step=step,
        groups=_groups(chosen, values, scales, texts),
        quantities=QUANTITIES,
        legends={quantity.key: _legend(quantity, scales[quantity.key]) for quantity in QUANTITIES},
        levels=range(1, LEVELS + 1),
        header=HEADER,
    )
    write_text(out, page)


def read_texts(path: Path) -> dict[str, str]:
    """Id -> text of the problems of a ``problems.jsonl``; a gated set has none.

    Raises:
        UserError: the file is missing or damaged.
    """
    return {str(row["id"]): str(row["problem"]) for row in read_jsonl(path, ("id",)) if "problem" in row}


def _choose(frame: pd.DataFrame, problems: Sequence[str], count: int) -> pd.DataFrame:
    """The rows of the groups wanted."""
    if problems:
        known = list(dict.fromkeys(frame["problem"]))
        unknown = [problem for problem in problems if problem not in known]
        if unknown:
            raise UserError(
                f"--problem: is {unknown[0]!r}, which is not in that step; accepted: {', '.join(known[:5])} ..."
            )
        return frame[frame["problem"].isin(problems)]
    sides = frame.groupby("group")["side"].agg(["min", "max"])
    mixed = sides.index[(sides["min"] < 0) & (sides["max"] > 0)]
    groups = list(mixed[:count]) or list(sides.index[:count])
    return frame[frame["group"].isin(groups)]


def quantity_values(frame: pd.DataFrame) -> dict[str, npt.NDArray[np.float64]]:
    """Quantity's key -> its values [rows]; not a number where there is none."""
    numbers = {column: frame[column].to_numpy(dtype=np.float64) for column in frame.select_dtypes("number")}
    return {
        "push": numbers["advantage"] * numbers["weight"],
        "weight": numbers["weight"],
        "change": numbers["new_log_prob"] - numbers["old_log_prob"],
        "gate": numbers["gate"],
        "entropy": numbers["entropy"],
        "surprise": -numbers["old_log_prob"],
    }


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
    one_sided = quantity.key in ("entropy", "surprise")
    return [*([] if one_sided else below), (0, "between" if not one_sided else "less"), *above]


def _groups(
    frame: pd.DataFrame,
    values: Mapping[str, npt.NDArray[np.float64]],
    scales: Mapping[str, float],
    texts: Mapping[str, str],
) -> list[Group]:
    classes = [
        " ".join(_class(quantity, float(values[quantity.key][row]), scales) for quantity in QUANTITIES)
        + (" stopped" if values["gate"][row] == 0 else "")
        for row in range(len(frame))
    ]
    groups: dict[int, dict[int, list[Token]]] = {}
    heads: dict[tuple[int, int], Row] = {}
    for row, colour in zip(frame.to_dict("records"), classes, strict=True):
        groups.setdefault(row["group"], {}).setdefault(row["sample"], []).append(_token(row, colour))
        heads[row["group"], row["sample"]] = row
    return [
        Group(
            problem=str(heads[group, next(iter(samples))]["problem"]),
            text=texts.get(str(heads[group, next(iter(samples))]["problem"])),
            rollouts=[_rollout(heads[group, sample], tokens) for sample, tokens in samples.items()],
        )
        for group, samples in groups.items()
    ]


def _class(quantity: Quantity, value: float, scales: Mapping[str, float]) -> str:
    return class_of(quantity.key, level(value, quantity.middle, scales[quantity.key]))


def class_of(key: str, strength: int) -> str:
    """Name of a colour class, such as ``push-up-3``."""
    side = "up" if strength > 0 else "down"
    return f"{key}-{side}-{abs(strength)}" if strength else f"{key}-0"


def _rollout(row: Row, tokens: Sequence[Token]) -> Rollout:
    return Rollout(
        sample=int(row["sample"]),
        reward=float(row["reward"]),
        advantage=float(row["advantage"]),
        mini_batch=int(row["mini_batch"]),
        tokens=tokens,
    )


def _token(row: Row, classes: str) -> Token:
    text = str(row["text"])
    number = {
        key: float(str(row[key])) for key in ("weight", "old_log_prob", "new_log_prob", "entropy", "ratio", "gate")
    }
    change = number["new_log_prob"] - number["old_log_prob"]
    cells = (
        visible(text),
        str(row["token_class"]),
        f"{number['weight']:.3f}",
        f"{number['old_log_prob']:.4f}",
        f"{number['new_log_prob']:.4f}",
        f"{change:+.4f}",
        f"{number['entropy']:.4f}",
        f"{number['ratio']:.4f}",
        "–" if np.isnan(number["gate"]) else f"{number['gate']:.3f}",
    )
    words = f"{row['token_class']}, weight {cells[2]}, log-prob {cells[3]} → {cells[4]} ({cells[5]}), "
    words += f"entropy {cells[6]}, ratio {cells[7]}, gate {cells[8]}"
    return Token(visible(text), text.endswith("\n"), classes, words, cells)


def visible(text: str) -> str:
    """Text with a sign for each line break, and for a space that stands alone."""
    return "·" if text == " " else text.replace("\n", "↵")
