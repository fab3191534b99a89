"""Published numbers (config/reference), the study's own beside them, and whether the two can be compared at all."""

import contextlib
import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pandas as pd
from pydantic import ConfigDict, Field

from evals.core.errors import InvalidInput, UserError
from evals.core.record import ExtensibleRecord, Record
from evals.core.records import ALL_BENCHMARKS, Condition
from evals.core.yaml_file import read_yaml
from evals.results import Results
from evals.statistics.average import Average
from evals.tables.layout import Column, Table, interval_columns, make_table, write_table
from evals.tables.main import average_text

Text = Annotated[str, Field(min_length=1)]
_AVERAGES = ("Avg(problem-weighted)", "Average(3)", "Avg")


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


class PaperSettings(Settings):
    """The settings of a paper, an entry of ``settings.yaml``."""

    model_config = ConfigDict(extra="forbid")

    citation: str
    note: str | None
    samples_per_problem: Any


class OwnSettings(Settings):
    """The settings of a study."""

    models: dict[str, str]  # name in the study -> what it is, such as Qwen3-8B-Base


@dataclass(frozen=True)
class Confrontation:
    """A published number and ours."""

    published: Published
    condition: Condition  # our method on our model
    ours: Average  # over all benchmarks where the number is of none of ours
    differing: tuple[str, ...]  # settings that differ or that the paper does not give, as "setting (theirs, ours)"
    verdict: str  # inside, outside by ..., or not comparable


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
    found, compared = [], Settings.model_fields.items()
    for condition in results.conditions:
        for row in published:
            if row.method != condition.method:
                continue
            benchmark = row.benchmark if row.benchmark in results.benchmarks else None
            average = results.average(condition, benchmark or ALL_BENCHMARKS)
            theirs = settings[row.arxiv]
            pairs: list[tuple[str | None, Any, Any]] = [
                ("model", row.model, own.models[condition.model]),
                ("benchmark", row.benchmark, benchmark or "mean of ours"),
                ("metric", row.metric, f"avg@{results.samples_per_problem}"),
                *((field.title, getattr(theirs, name), getattr(own, name)) for name, field in compared),
            ]
            differing = tuple(
                f"{words} ({'not given' if their is None else their}, {mine})"
                for words, their, mine in pairs
                if their is None or their != mine
            )
            verdict = "not comparable" if differing else "not comparable: no interval"
            if average.confidence_interval is not None and not differing:
                low, high = (100 * bound for bound in average.confidence_interval)
                outside = max(low - row.value, row.value - high)
                verdict = "inside" if outside <= 0 else f"outside by {outside:.1f}"
            found.append(Confrontation(row, condition, average, differing, verdict))
    return found


def write_paper_vs_ours_table(results: Results, reference: Path, own: str, out: Path) -> None:
    """Write published numbers, ours, and whether they compare."""
    numbers_path, settings_path = reference / "published.csv", reference / "settings.yaml"
    published = read_published(numbers_path)
    settings = read_settings(settings_path, published)
    confrontations = confront(results, published, settings, OwnSettings.parse_text(own, "--own"))
    tables, frame = [paper_vs_ours_table(confrontations, settings)], paper_vs_ours_frame(confrontations)
    write_table(out, tables, frame, [*results.sources, numbers_path, settings_path], {"own": own})


def paper_vs_ours_table(confrontations: Sequence[Confrontation], settings: Mapping[str, PaperSettings]) -> Table:
    """Lay out the table for people, with a note for each paper."""
    columns: list[Column[Confrontation]] = [
        Column("Method", lambda one: one.condition.title),
        Column("Published (%)", lambda one: one.published.measured),
        Column("Ours (%)", lambda one: one.ours, average_text),
        Column("Verdict", lambda one: one.verdict),
        Column("What differs (theirs, ours)", lambda one: "; ".join(one.differing) or "nothing"),
        Column("Source", lambda one: one.published.citation),
    ]
    comparable = sum(not one.differing for one in confrontations)
    summary = (
        f"{comparable} of {len(confrontations)} published numbers were made under the settings of this study. "
        "The others stand here so that the scales can be seen; no difference between them and ours means anything."
    )
    cited = sorted({one.published.arxiv for one in confrontations})
    notes = [f"arXiv {arxiv}: {settings[arxiv].citation}. {settings[arxiv].note or ''}".strip() for arxiv in cited]
    return make_table("paper_vs_ours", "Published numbers and ours", columns, confrontations, [summary, *notes])


def paper_vs_ours_frame(confrontations: Sequence[Confrontation]) -> pd.DataFrame:
    """The rows in full precision; fractions of one, the published value too."""
    shared = ("paper", "arxiv", "table", "row", "published_model", "benchmark", "metric", "certainty")
    columns = ["model", "method", *shared, "published", "ours", *interval_columns(None), "verdict", "differing"]
    rows = []
    for one in confrontations:
        published, condition, ours = one.published, one.condition, one.ours
        rows.append(
            {
                **{name: getattr(published, name.removeprefix("published_")) for name in shared},
                **interval_columns(ours.confidence_interval),
                "model": condition.model,
                "method": condition.method,
                "published": published.value / 100,
                "ours": ours.value,
                "verdict": one.verdict,
                "differing": "; ".join(one.differing),
            }
        )
    return pd.DataFrame(rows, columns=columns)
