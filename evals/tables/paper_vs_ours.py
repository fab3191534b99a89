"""Published numbers beside a study's own, and whether the two can be compared at all."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from evals.core.errors import UserError
from evals.core.records import ALL_BENCHMARKS, Condition
from evals.results import Average, Results
from evals.tables import numbers
from evals.tables.layout import Table
from evals.tables.published import SETTINGS, Published

_WORDS = {
    "model": "model",
    "benchmark": "benchmark",
    "metric": "metric",
    "samples_per_problem": "samples a problem",
    "temperature": "temperature",
    "top_p": "top-p",
    "max_new_tokens": "longest response",
    "training_problems": "training problems",
    "checkpoint": "checkpoint",
}


@dataclass(frozen=True)
class OwnSettings:
    """How a study's numbers are made, in the terms of the published settings.

    Attributes:
        models: name in the study -> what it is, such as Qwen3-8B-Base.
        values: a value for each of the published settings but the number of samples, which the scores know.
    """

    models: Mapping[str, str]
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Confrontation:
    """One published number and ours.

    Attributes:
        published: the number.
        condition: our method on our model.
        benchmark: ours that is meant, or None for the mean over all of the study's.
        ours: our average.
        differing: settings that differ or that the paper does not give, in words.
        verdict: ``inside``, ``outside by ...`` or ``not comparable``.
    """

    published: Published
    condition: Condition
    benchmark: str | None
    ours: Average
    differing: tuple[str, ...]
    verdict: str


def parse_own_settings(text: str) -> OwnSettings:
    """Read the settings from JSON: ``models`` and a value for each published setting.

    Raises:
        UserError: it is not JSON, or a key is missing.
    """
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"--own: is not JSON ({error})") from None
    wanted = ["models", *(name for name in SETTINGS if name != "samples_per_problem")]
    missing = [key for key in wanted if not isinstance(content, dict) or key not in content]
    if missing:
        raise UserError(f"--own: lacks {', '.join(missing)}")
    return OwnSettings(content["models"], {key: content[key] for key in wanted[1:]})


def confront(
    results: Results, published: Sequence[Published], settings: Mapping[str, Mapping[str, Any]], own: OwnSettings
) -> list[Confrontation]:
    """Every published number of a method of the study, in the study's order of methods."""
    found = []
    for condition in results.conditions:
        for row in published:
            if row.method != condition.method:
                continue
            benchmark = row.benchmark if row.benchmark in results.benchmarks else None
            average = results.average(condition, benchmark or ALL_BENCHMARKS)
            differing = _differing(row, condition, benchmark, settings[row.arxiv], own, results.samples_per_problem)
            found.append(
                Confrontation(row, condition, benchmark, average, differing, _verdict(row, average, differing))
            )
    return found


def _differing(
    row: Published,
    condition: Condition,
    benchmark: str | None,
    settings: Mapping[str, Any],
    own: OwnSettings,
    samples_per_problem: int,
) -> tuple[str, ...]:
    """What keeps the two from being compared: ``setting (theirs, ours)``."""
    pairs: list[tuple[str, Any, Any]] = [
        ("model", row.model, own.models[condition.model]),
        ("benchmark", row.benchmark, benchmark or "mean of ours"),
        ("metric", row.metric, f"avg@{samples_per_problem}"),
    ]
    pairs += [(name, settings[name], own.values[name]) for name in SETTINGS if name != "samples_per_problem"]
    return tuple(
        f"{_WORDS[name]} ({'not given' if theirs is None else theirs}, {mine})"
        for name, theirs, mine in pairs
        if theirs is None or theirs != mine
    )


def _verdict(row: Published, ours: Average, differing: Sequence[str]) -> str:
    if differing:
        return "not comparable"
    if ours.confidence_interval is None:
        return "not comparable: no interval"
    low, high = (100 * bound for bound in ours.confidence_interval)
    if low <= row.value <= high:
        return "inside"
    return f"outside by {max(low - row.value, row.value - high):.1f}"


def paper_vs_ours_table(confrontations: Sequence[Confrontation], settings: Mapping[str, Mapping[str, Any]]) -> Table:
    """The table for people; one note per paper."""
    header = ("Method", "Published (%)", "Ours (%)", "Verdict", "What differs (theirs, ours)", "Source")
    rows = tuple(
        (
            one.condition.title,
            f"{one.published.value:g} {one.published.metric}, {one.published.benchmark}",
            numbers.percent_with_interval(one.ours.value, one.ours.confidence_interval),
            one.verdict,
            "; ".join(one.differing) or "nothing",
            f"{one.published.citation}, row {one.published.row}",
        )
        for one in confrontations
    )
    cited = sorted({one.published.arxiv for one in confrontations})
    notes = [
        f"arXiv {arxiv}: {settings[arxiv]['citation']}. {settings[arxiv]['note'] or ''}".strip() for arxiv in cited
    ]
    comparable = sum(not one.differing for one in confrontations)
    summary = (
        f"{comparable} of {len(confrontations)} published numbers were made under the settings of this study. "
        "The others stand here so that the scales can be seen; no difference between them and ours means anything."
    )
    return Table("paper_vs_ours", "Published numbers and ours", header, rows, (summary, *notes))


def paper_vs_ours_frame(confrontations: Sequence[Confrontation]) -> pd.DataFrame:
    """The same in full precision; fractions of one, as in every table of numbers here, the published value too."""
    columns = "model method paper arxiv table row published_model benchmark metric certainty published ours"
    names = [*columns.split(), "confidence_low", "confidence_high", "verdict", "differing"]
    rows = []
    for one in confrontations:
        low, high = one.ours.confidence_interval or (None, None)
        row = one.published
        rows.append([one.condition.model, one.condition.method, row.paper, row.arxiv, row.table, row.row, row.model,
                     row.benchmark, row.metric, row.certainty, row.value / 100, one.ours.value, low, high, one.verdict,
                     "; ".join(one.differing)])  # fmt: skip
    return pd.DataFrame(rows, columns=names)
