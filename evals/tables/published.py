"""Published numbers (config/reference), the study's own beside them, and whether the two can be compared at all."""

import contextlib
import csv
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
from pydantic import ConfigDict, Field

from evals.core.errors import InvalidInput, UserError
from evals.core.record import ExtensibleRecord, Record
from evals.core.records import Condition, Score
from evals.core.yaml_file import read_yaml
from evals.results import Results
from evals.statistics.accuracy import FloatArray, pass_at_k
from evals.statistics.average import Average
from evals.tables import numbers
from evals.tables.layout import Column, Table, interval_columns, make_table, write_table
from evals.tables.main import average_text

Text = Annotated[str, Field(min_length=1)]
_BY_PROBLEM = "Avg(problem-weighted)"
_AVERAGES = (_BY_PROBLEM, "Average(3)", "Avg")
_AVERAGE_METRIC = re.compile(r"avg@\d+|pass@1|mean of \d+")
"""The mean accuracy of samples, whatever their number: more of them measure the same number more exactly."""


class Published(Record):
    """A published number, a line of ``published.csv``; ``certainty`` is whether this is what the paper says."""

    paper: Text
    arxiv: Text
    table: Text
    model: Text
    method: Text  # entry of the catalogue
    row: Text  # its name in the paper
    benchmark: Text  # entry of config/benchmarks, or the paper's name of its column
    metric: Text  # such as avg@16
    value: float = Field(ge=0, le=100)  # per cent
    certainty: Literal["published", "column inferred", "third-party text"]

    @property
    def is_average(self) -> bool:
        """Return whether it is the paper's own average over benchmarks."""
        return self.benchmark in _AVERAGES

    @property
    def measured(self) -> str:
        """The value and what it is of."""
        return f"{self.value:g} {self.metric}, {self.benchmark}"

    @property
    def citation(self) -> str:
        """The place in the paper, with what is doubtful about it."""
        doubt = "" if self.certainty == "published" else f", {self.certainty}"
        return f"{self.paper} (arXiv {self.arxiv}), {self.table}{doubt}, row {self.row}"


class Settings(ExtensibleRecord):
    """The settings that have to be the same for a comparison, with names for people; null where a paper is silent."""

    temperature: Any = Field(title="temperature")
    top_p: Any = Field(title="top-p")
    max_new_tokens: Any = Field(title="longest response")
    training_problems: Any = Field(title="training problems")
    checkpoint: Any = Field(title="checkpoint")
    evaluation_prompt: Any = Field(title="prompt of the evaluation")


class PaperSettings(Settings):
    """The settings of a paper, an entry of ``settings.yaml``."""

    model_config = ConfigDict(extra="forbid")

    citation: str
    note: str | None
    samples_per_problem: Any
    averages: dict[str, tuple[str, ...]] = Field(default={})  # an average -> its benchmarks, where a row lacks some
    stand_ins: dict[str, str] = Field(default={})  # a benchmark of problems that nobody has -> ours of the same source


class OwnSettings(Settings):
    """The settings of a study."""

    models: dict[str, str | None]  # name in the study -> its name in papers, such as Qwen3-8B-Base; null without one
    methods: dict[str, dict[str, str]] = Field(default={})  # model -> method -> the entry that it is for this model


@dataclass(frozen=True)
class Confrontation:
    """A published number and ours."""

    published: Published
    condition: Condition  # our method on our model
    ours: Average  # over all benchmarks where the number is of none of ours
    differing: tuple[str, ...]  # settings that differ, as "setting (theirs, ours)"
    unknown: tuple[str, ...]  # settings that the paper does not give, likewise
    their_difference: float | None  # of the number to that of the reference method in the same paper; of one
    our_difference: float | None
    verdict: str  # inside, outside by ..., or no interval, each perhaps "as far as published"; or not comparable

    @property
    def of_ours(self) -> bool:
        """Whether the published number is of our model, and on benchmarks of ours."""
        return not any(setting.startswith(("model (", "benchmark (")) for setting in self.differing)

    @property
    def compares(self) -> bool:
        """Whether nothing that is known differs."""
        return not self.differing


def read_published(path: Path) -> list[Published]:
    """Read every published number."""
    names = list(Published.model_fields)
    try:
        with open(path, encoding="utf-8", newline="") as handle:
            reader = csv.DictReader(handle)
            if reader.fieldnames != names:
                raise InvalidInput(str(path), "", f"columns are {reader.fieldnames}", ", ".join(names))
            rows: list[dict[str, Any]] = list(reader)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    published = []
    for number, row in enumerate(rows, start=2):
        with contextlib.suppress(TypeError, ValueError):  # the record says what is accepted
            row["value"] = float(row["value"])
        published.append(Published.parse(row, f"{path}: line {number}"))
    return published


def read_settings(path: Path, published: Sequence[Published]) -> dict[str, PaperSettings]:
    """Read the settings of every paper that has a number."""
    content = read_yaml(path)
    known = content if isinstance(content, dict) else {}
    papers = sorted({row.arxiv for row in published})
    return {arxiv: PaperSettings.parse(known.get(arxiv, {}), f"{path}: {arxiv}") for arxiv in papers}


def confront(
    results: Results, published: Sequence[Published], settings: Mapping[str, PaperSettings], own: OwnSettings
) -> list[Confrontation]:
    """Put ours beside every published number of a method of the study, in the study's order of methods."""
    confrontations, compared = [], Settings.model_fields.items()
    reference = results.reference_method
    for condition in results.conditions:
        entry = own.methods.get(condition.model, {}).get(condition.method, condition.method)
        for row in published:
            if row.method != entry:
                continue
            theirs = settings[row.arxiv]
            parts = _parts(row, published, theirs)
            own_parts = tuple(theirs.stand_ins.get(name, name) for name in parts)
            names, ours, metric = _ours(results, condition, row, own_parts)
            benchmark = row.benchmark if names and names == parts else ", ".join(names) or "mean of ours"
            pairs: list[tuple[str | None, Any, Any]] = [
                ("model", row.model, own.models[condition.model] or "not named: published_as"),
                ("benchmark", row.benchmark, benchmark),
                ("metric", row.metric, metric),
                *((field.title, getattr(theirs, name), getattr(own, name)) for name, field in compared),
            ]
            differing = tuple(f"{words} ({their}, {mine})" for words, their, mine in pairs if their not in (None, mine))
            unknown = tuple(f"{words} (not given, {mine})" for words, their, mine in pairs if their is None)
            verdict = "not comparable" if differing else _verdict(row.value, ours)
            verdict += ", as far as published" if unknown and not differing else ""
            their_difference = _their_difference(row, published, reference)
            our_difference = getattr(results.comparison(condition, reference), "difference", None)
            differences = (their_difference, our_difference)
            confrontations.append(Confrontation(row, condition, ours, differing, unknown, *differences, verdict))
    return confrontations


def _their_difference(row: Published, published: Sequence[Published], reference: str) -> float | None:
    """Return the difference to the reference method in the same paper, model, benchmark and metric, perhaps table.

    Several tables that repeat one number count as one; if they differ, there is none.
    """
    key = (row.arxiv, row.model, row.benchmark, row.metric)
    same = [
        other
        for other in published
        if other.method == reference and (other.arxiv, other.model, other.benchmark, other.metric) == key
    ]
    of_reference = [other.value for other in same if other.table == row.table][:1] or {other.value for other in same}
    if row.method == reference or len(of_reference) != 1:
        return None
    (value,) = of_reference
    return (row.value - value) / 100


def _verdict(published: float, ours: Average) -> str:
    """Say whether a published number, in per cent, lies inside the interval of ours, made alike, or how far outside."""
    if ours.confidence_interval is None:
        return "no interval"
    low, high = (100 * bound for bound in ours.confidence_interval)
    outside = max(low - published, published - high)
    return "inside" if outside <= 0 else f"outside by {outside:.1f}"


def _parts(row: Published, published: Sequence[Published], paper: PaperSettings) -> tuple[str, ...]:
    """The benchmarks that a published number is of: of an average those of its row, or those that the paper names."""
    if not row.is_average or row.benchmark in paper.averages:
        return paper.averages.get(row.benchmark, (row.benchmark,))
    same = (row.arxiv, row.table, row.model, row.row)
    of_row = [one for one in published if (one.arxiv, one.table, one.model, one.row) == same]
    return tuple(dict.fromkeys(one.benchmark for one in of_row if not one.is_average))


def _ours(
    results: Results, condition: Condition, row: Published, parts: tuple[str, ...]
) -> tuple[tuple[str, ...], Average, str]:
    """The benchmarks of a published number if we have all, ours on them (or on all of ours), and its metric.

    In an average each benchmark weighs the same, or each problem.
    """
    names = parts if parts and set(parts) <= set(results.benchmarks) else ()
    metric, of_problem = row.metric, _of_problem(row.metric, results)
    if of_problem is None and not _AVERAGE_METRIC.fullmatch(metric):
        metric = f"avg@{results.samples_per_problem}"
    by_problem = row.benchmark == _BY_PROBLEM
    return names, results.average_over(condition, names or results.benchmarks, by_problem, of_problem), metric


def _of_problem(metric: str, results: Results) -> Callable[[Score], FloatArray] | None:
    """Return the function from a score to pass@k or cons@k of each problem [N]; None where we do not compute that.

    Of a majority only the mean is stored. It is spread as widely as it can be, over problems that are right or wrong.
    """
    kind, _, written = metric.partition("@")
    k, samples = int(written) if written.isdecimal() else 0, results.samples_per_problem
    if kind == "pass" and 1 < k <= samples:
        return lambda score: pass_at_k(np.array(score.correct_counts)[:, None], samples, k)
    if kind == "cons" and k == samples and all(one.majority_at_k is not None for one in results.scores.values()):
        return lambda score: np.clip(_right(score) - np.arange(len(score.correct_counts)), 0.0, 1.0)
    return None


def _right(score: Score) -> float:
    """The problems that the majority gets right, in expectation."""
    return (score.majority_at_k or 0.0) * len(score.correct_counts)


def write_paper_vs_ours_table(results: Results, reference: Path, own: Mapping[str, Any], out: Path) -> None:
    """Write published numbers, ours, and whether they compare."""
    numbers_path, settings_path = reference / "published.csv", reference / "settings.yaml"
    published = read_published(numbers_path)
    settings = read_settings(settings_path, published)
    confrontations = confront(results, published, settings, OwnSettings.parse(own, "own"))
    table = paper_vs_ours_table(confrontations, settings, results.extraction_note)
    read = [*results.sources, numbers_path, settings_path]
    write_table(out, [table], paper_vs_ours_frame(confrontations), read, {"own": dict(own)})


def paper_vs_ours_table(
    confrontations: Sequence[Confrontation], settings: Mapping[str, PaperSettings], extraction: str = ""
) -> Table:
    """Lay out the table for people, with a note for each paper; one line where no number is of our models and tasks."""
    columns: list[Column[Confrontation]] = [
        Column("Method", lambda one: one.condition.title),
        Column("Published (%)", lambda one: one.published.measured),
        Column("Ours (%)", lambda one: one.ours, average_text),
        Column("Verdict", lambda one: one.verdict),
        Column("Versus their reference (pp)", lambda one: one.their_difference, numbers.points),
        Column("Ours, versus our reference (pp)", lambda one: one.our_difference, numbers.points),
        Column("What differs (theirs, ours)", lambda one: "; ".join((*one.differing, *one.unknown)) or "nothing"),
        Column("Source", lambda one: one.published.citation),
    ]
    comparable = sum(one.compares and not one.unknown for one in confrontations)
    known = sum(one.compares for one in confrontations) - comparable
    summary = (
        f"{comparable} of {len(confrontations)} published numbers were made under the settings of this study, and "
        f"{known} as far as their papers give them. The others stand here so that the scales can be seen; no "
        "difference between them and ours means anything. Differences to a reference method are of single training "
        "runs there unless a paper says otherwise, and have no intervals."
    )
    if not any(one.of_ours for one in confrontations):
        summary = f"None of {len(confrontations)} published numbers is of a model and a benchmark of this study."
        confrontations = ()
    cited = sorted({one.published.arxiv for one in confrontations})
    notes = [f"arXiv {arxiv}: {settings[arxiv].citation}. {settings[arxiv].note or ''}".strip() for arxiv in cited]
    return make_table(
        "paper_vs_ours", "Published numbers and ours", columns, confrontations, [summary, extraction, *notes]
    )


def paper_vs_ours_frame(confrontations: Sequence[Confrontation]) -> pd.DataFrame:
    """The rows in full precision; fractions of one, the published value too."""
    differences = ("their_difference", "our_difference")
    shared = ("paper", "arxiv", "table", "row", "published_model", "benchmark", "metric", "certainty")
    ours = ("published", "ours", *interval_columns(None), "verdict", "differing", "unknown", *differences)
    columns = ["model", "method", *shared, *ours]
    rows = []
    for one in confrontations:
        published, condition = one.published, one.condition
        rows.append(
            {
                **{name: getattr(published, name.removeprefix("published_")) for name in shared},
                **{name: getattr(one, name) for name in differences},
                **interval_columns(one.ours.confidence_interval),
                "model": condition.model,
                "method": condition.method,
                "published": published.value / 100,
                "ours": one.ours.value,
                "verdict": one.verdict,
                "differing": "; ".join(one.differing),
                "unknown": "; ".join(one.unknown),
            }
        )
    return pd.DataFrame(rows, columns=columns)
