"""Show responses as coloured text: a page of a replayed step, or of a comparison of two checkpoints.

The page is one HTML file without scripts or external files. The reader chooses a quantity by radio buttons, which style
sheets act on; every token's numbers are in its tooltip and in a table below its response.
"""

import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pandas as pd

from evals.core.errors import InvalidInput
from evals.core.files import read_jsonl, write_text
from evals.core.manifest import write_output_manifest
from evals.tables.numbers import rounded
from rlvr.page_template import page_template
from rlvr.tokens.table import DISPLACEMENT, is_comparison, read_comparison, read_token_table

Row = Mapping[Hashable, Any]
Values = npt.NDArray[np.float64]

LEVELS = 4
_ROUNDED = (
    "The change is that of two passes in float32 over the weights before and after the step. "
    "The log-probs beside it are the run's own, in lower precision, and their difference is mostly rounding."
)
_LARGEST = 0.98  # quantile of the sizes on the page from which on a token has the strongest colour


@dataclass(frozen=True)
class Quantity:
    """A number that tokens can be coloured by."""

    key: str  # short name, for classes of the style sheet
    title: str
    formula: str  # of columns, as pandas evaluates it; NaN where there is no value
    unit: str = ""  # unit of its values, with a space before it
    middle: float = 0.0  # the value that has no colour; above it blue, below it orange
    one_sided: bool = False  # whether nothing lies below the middle
    in_float32: str = ""  # a column that has the value by passes in float32, in tables of runs in another precision

    def values(self, rows: pd.DataFrame) -> Values:
        """The quantity of each token [N]; NaN where ``rows`` lack a column of it."""
        formula = self.in_float32 if self.in_float32 in rows else self.formula
        columns = re.findall(r"\w+", formula)
        return np.asarray(rows.reindex(columns=columns).astype(np.float64).eval(formula))

    def named(self, rows: pd.DataFrame) -> Self:
        """Return the quantity with a title that says so where ``rows`` have it by passes in float32."""
        return replace(self, title=f"{self.title}, by passes in float32") if self.in_float32 in rows else self


class StepView:
    """One step of a run: a title, and the rows of its tokens in the order of the text.

    Of a step whose rollouts the training kept, the quantities of the update are left out.
    """

    explanation = "Struck through: the loss stopped the token's gradient."
    quantities: tuple[Quantity, ...] = (
        Quantity("push", "advantage × weight", "advantage * weight"),
        Quantity("weight", "weight", "weight", middle=1.0),
        Quantity(
            "change", "log-prob change over the step", "new_log_prob - old_log_prob", " nats", in_float32=DISPLACEMENT
        ),
        Quantity("gate", "gate", "gate", middle=1.0),
        Quantity("entropy", "entropy", "entropy", " nats", one_sided=True),
        Quantity("surprise", "−log-prob when sampled", "-old_log_prob", " nats", one_sided=True),
    )
    header = ("token", "class", "weight", "log-prob", "after the step", "change", "entropy", "ratio", "gate")
    sentence = "{}, weight {}, log-prob {} → {} ({}), entropy {}, ratio {}, gate {}"  # a token's cells in words

    def __init__(self, table: Path, step: int | None, problems: Sequence[str], count: int) -> None:
        """Choose the problems ``problems``, or the first ``count`` that have rewarded and punished rollouts."""
        frame = read_token_table(table)
        steps = sorted(frame["step"].unique())
        if step is None and len(steps) == 1:
            step = steps[0]
        if step not in steps:
            message = "is missing" if step is None else f"is {step}"
            raise InvalidInput("--step", "", message, ", ".join(map(str, steps)))
        frame = frame[frame["step"] == step]
        self.quantities = recorded(frame)
        if DISPLACEMENT in frame:
            self.explanation += f" {_ROUNDED}"
        _check_problems(problems, frame["problem"])
        sides = frame.groupby("group")["side"].agg(["min", "max"])
        mixed = sides.index[(sides["min"] < 0) & (sides["max"] > 0)]
        first = frame["group"].isin((mixed if len(mixed) else sides.index)[:count])
        self.frame = frame[frame["problem"].isin(problems) if problems else first]
        self.title = f"{self.frame['run'].iloc[0]}, step {step}"

    def heading(self, row: Row) -> tuple[str, str, str]:
        """Return a response's name, outcome and small print, from its first row."""
        outcome = f"reward {row['reward']:g}, advantage {rounded(row['advantage'], '+.3f')}"
        return f"Rollout {row['sample']}", outcome, f"optimizer step {row['mini_batch']}"

    def cells(self, row: Row) -> tuple[str, ...]:
        """Return a token's row of the table of numbers, below ``header``, apart from its text."""
        before, after = row["old_log_prob"], row["new_log_prob"]
        change = row.get(DISPLACEMENT, after - before)
        numbers = [(row["weight"], ".3f"), (before, ".4f"), (after, ".4f"), (change, "+.4f")]
        numbers += [(row["entropy"], ".4f"), (row["ratio"], ".4f"), (row["gate"], ".3f")]
        return str(row["token_class"]), *("–" if np.isnan(value) else f"{value:{form}}" for value, form in numbers)


def recorded(rows: pd.DataFrame) -> tuple[Quantity, ...]:
    """Return the quantities of a step that its rows have values of."""
    return tuple(quantity.named(rows) for quantity in StepView.quantities if np.isfinite(quantity.values(rows)).any())


class ComparisonView:
    """Responses to some problems under two checkpoints, as :class:`StepView`."""

    explanation = (
        "Both models read the same responses; blue in the log-prob difference is what training made more likely. "
        "Classes of tokens are known of generated problems, rewards of graded responses."
    )
    quantities: tuple[Quantity, ...] = (
        Quantity("difference", "log-prob difference, trained less base", "trained_log_prob - base_log_prob", " nats"),
        Quantity("before", "base model's entropy", "base_entropy", " nats", one_sided=True),
        Quantity("after", "trained model's entropy", "trained_entropy", " nats", one_sided=True),
        Quantity("forward", "KL(trained, base)", "kl_trained_base", " nats", one_sided=True),
        Quantity("backward", "KL(base, trained)", "kl_base_trained", " nats", one_sided=True),
        Quantity("unlikely", "−log-prob of the base model", "-base_log_prob", " nats", one_sided=True),
        Quantity("surprise", "−log-prob of the trained model", "-trained_log_prob", " nats", one_sided=True),
    )
    header = (
        *("token", "class", "base log-prob", "trained log-prob", "difference"),
        *("base entropy", "trained entropy", "KL(trained, base)", "KL(base, trained)"),
    )
    sentence = "{}, log-prob {} → {} ({}), entropy {} → {}, KL(trained, base) {}, KL(base, trained) {}"

    def __init__(self, table: Path, problems: Sequence[str], count: int, responses: int | None) -> None:
        """Choose the problems ``problems``, or the first ``count`` that have right and wrong responses.

        Without such problems or without grades the first ones are chosen. ``responses`` limits the responses of each
        problem; None shows all.
        """
        overview = read_comparison(table, columns=("problem", "reward"))
        _check_problems(problems, overview["problem"])
        known = list(dict.fromkeys(overview["problem"]))
        if "reward" in overview:
            different = overview.groupby("problem")["reward"].nunique()
            known = [problem for problem in known if different[problem] > 1] or known
        frame = read_comparison(table, problems or known[:count])
        if responses is not None:
            firsts = frame.drop_duplicates(["problem", "sample"]).groupby("problem").head(responses)
            frame = frame.merge(firsts[["problem", "sample"]])
        self.title = f"{table.resolve().name}: two checkpoints"
        self.frame = frame.assign(group=frame["problem"])

    def heading(self, row: Row) -> tuple[str, str, str]:
        return f"Response {row['sample']}", f"reward {row['reward']:g}" if "reward" in row else "not graded", ""

    def cells(self, row: Row) -> tuple[str, ...]:
        before, after = row["base_log_prob"], row["trained_log_prob"]
        others = ("base_entropy", "trained_entropy", "kl_trained_base", "kl_base_trained")
        numbers = (f"{before:.4f}", f"{after:.4f}", rounded(after - before, "+.4f"))
        return str(row.get("token_class", "–")), *numbers, *(f"{row[name]:.4f}" for name in others)


def _check_problems(problems: Sequence[str], column: pd.Series) -> None:
    known = list(dict.fromkeys(column))
    if missing := [problem for problem in problems if problem not in known]:
        message = f"is {missing[0]!r}, which the table does not have"
        raise InvalidInput("--problem", "", message, f"{', '.join(known[:5])} ...")


def write_page(
    table: Path,
    out: Path,
    step: int | None = None,
    problems: Sequence[str] = (),
    count: int = 3,
    responses: int | None = None,
    problem_texts: Path | None = None,
) -> None:
    """Write a token table as text: a page with problems' responses in colour.

    Args:
        table: directory made by `claims replay` or `claims compare`, or a run's rollouts/step-N.
        step: one of the steps kept, where there are several; a comparison has none.
        problems: ids; default: the first ones with right and wrong responses.
        count: how many problems, where none is named.
        responses: of a comparison: the first so many of each problem; default: all.
        problem_texts: problems.jsonl, to show what was asked.

    Raises:
        InvalidInput: there is no such table, step or problem, or a number is out of range.
    """
    for option, value in (("--groups", count), ("--responses", responses)):
        if value is not None and value < 1:
            raise InvalidInput(option, "", f"is {value}", "1 or more")
    compared = is_comparison(table)
    if compared and step is not None:
        raise InvalidInput("--step", "", f"is {step}", f"none, for {table} compares two checkpoints")
    if not compared and responses is not None:
        raise InvalidInput("--responses", "", f"is {responses}", f"with a comparison; {table} is of a run")
    texts = read_texts(problem_texts) if problem_texts else {}
    view = ComparisonView(table, problems, count, responses) if compared else StepView(table, step, problems, count)
    values = {quantity.key: quantity.values(view.frame) for quantity in view.quantities}
    scales = {quantity.key: scale_of(values[quantity.key], quantity.middle) for quantity in view.quantities}
    strengths = {
        quantity.key: levels(values[quantity.key], quantity.middle, scales[quantity.key]).tolist()
        for quantity in view.quantities
    }
    groups: dict[Any, dict[str, Any]] = {}
    for number, row in enumerate(view.frame.to_dict("records")):
        problem, text = str(row["problem"]), str(row["text"])
        group = groups.setdefault(row["group"], {"problem": problem, "text": texts.get(problem), "responses": {}})
        if row["sample"] not in group["responses"]:
            name, outcome, remark = view.heading(row)
            group["responses"][row["sample"]] = {"name": name, "outcome": outcome, "remark": remark, "tokens": []}
        classes = [class_of(key, strength[number]) for key, strength in strengths.items()]
        if row.get("gate") == 0:
            classes.append("stopped")
        # A line break, and a space that stands alone, are replaced by a sign.
        shown = "·" if text == " " else text.replace("\n", "↵")
        cells = view.cells(row)
        words = view.sentence.format(*cells).removeprefix("–, ")  # the dash: of no known class
        token = {"shown": shown, "breaks": text.endswith("\n"), "classes": " ".join(classes), "words": words}
        group["responses"][row["sample"]]["tokens"].append({**token, "cells": (shown, *cells)})
    page = page_template("coloured_text.html.jinja", "rlvr.tokens").render(
        view=view,
        groups=list(groups.values()),
        legends={quantity.key: legend(quantity, scales[quantity.key]) for quantity in view.quantities},
        levels=range(1, LEVELS + 1),
    )
    write_text(out, page)
    options = {"step": step, "problems": list(problems), "count": count, "responses": responses}
    read = [table / "manifest.json", *([problem_texts] if problem_texts else [])]
    write_output_manifest("page", out.with_suffix(""), [out.suffix], read, options)


def read_texts(path: Path) -> dict[str, str]:
    """Read the text of each problem of a ``problems.jsonl``, by its id; a gated set has none."""
    return {str(row["id"]): str(row["problem"]) for row in read_jsonl(path, ("id",)) if "problem" in row}


def scale_of(values: Values, middle: float) -> float:
    """Return the distance from the middle at which the strongest colour begins; 0 if all values are in the middle."""
    distances = np.abs(values[np.isfinite(values)] - middle)
    return float(np.quantile(distances, _LARGEST)) if len(distances) else 0.0


def levels(values: Values, middle: float, scale: float) -> npt.NDArray[np.int64]:
    """Return the strength [N] of each value's colour, -LEVELS (orange) to LEVELS (blue).

    Each strength begins at twice the distance from the middle. What is no finite number has none.
    """
    if scale <= 0:
        return np.zeros(len(values), dtype=np.int64)
    distances = values - middle
    strengths = np.searchsorted(_limits(scale), np.abs(distances), side="right")  # limits that are reached
    return np.where(np.isfinite(values), np.sign(distances) * strengths, 0).astype(np.int64)


def _limits(scale: float) -> list[float]:
    return [scale / 2 ** (LEVELS - strength) for strength in range(1, LEVELS + 1)]


def legend(quantity: Quantity, scale: float) -> list[tuple[int, str]]:
    """Each level and its meaning, orange to blue."""
    if scale <= 0:
        return [(0, f"{quantity.middle:g} everywhere")]
    limits = list(enumerate(_limits(scale), start=1))
    below = [(-strength, f"≤ {quantity.middle - limit:.2g}") for strength, limit in reversed(limits)]
    above = [(strength, f"≥ {quantity.middle + limit:.2g}") for strength, limit in limits]
    return [(0, "less"), *above] if quantity.one_sided else [*below, (0, "between"), *above]


def class_of(key: str, strength: int) -> str:
    """Return the name of a colour class, such as ``push-up-3``."""
    return f"{key}-{'up' if strength > 0 else 'down'}-{abs(strength)}" if strength else f"{key}-0"
