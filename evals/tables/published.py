"""Published numbers (config/reference), the study's own beside them, and whether the two can be compared at all."""

import csv
import re
from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from pydantic import Field

from evals.core.errors import InvalidInput
from evals.core.files import reading
from evals.core.record import Record
from evals.core.values import Text
from evals.core.yaml_file import read_yaml
from evals.results import Results
from evals.tables import numbers
from evals.tables.differences import average_text
from evals.tables.layout import Column, interval_columns, make_table, write_table

Row = Mapping[str, Any]
AVERAGES = ("Avg(problem-weighted)", "Average(3)", "Avg")  # in the first every problem weighs the same
_AVERAGE_METRIC = re.compile(r"avg@\d+|pass@1|mean of \d+")  # more samples measure the same number more exactly
COMPARED = {
    "temperature": "temperature", "top_p": "top-p", "max_new_tokens": "longest response",
    "training_problems": "training problems", "checkpoint": "checkpoint",
    "evaluation_prompt": "prompt of the evaluation",
}  # fmt: skip
"""The settings that have to be the same for a comparison, with names for people; null where a paper is silent."""
_CSV = [
    "model", "method", "paper", "arxiv", "table", "row", "published_model", "benchmark", "metric", "certainty",
    "published", "ours", *interval_columns(None), "verdict", "differing", "unknown",
    "their_difference", "our_difference",
]  # fmt: skip


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
    value: float = Field(ge=0, le=100, strict=False)  # per cent
    certainty: Literal["published", "column inferred", "third-party text"]


def read_reference(directory: Path) -> tuple[list[Published], dict[str, Row]]:
    """Read every published number, and the settings of every paper that has one."""
    path, settings, names = directory / "published.csv", directory / "settings.yaml", list(Published.model_fields)
    with reading(path), open(path, encoding="utf-8", newline="") as handle:
        reader = csv.DictReader(handle)
        if reader.fieldnames != names:
            raise InvalidInput(str(path), "", f"columns are {reader.fieldnames}", ", ".join(names))
        published = [Published.parse(row, f"{path}: line {number}") for number, row in enumerate(reader, start=2)]
    known = read_yaml(settings) or {}
    papers = {row.arxiv: known.get(row.arxiv, {}) for row in published}
    for arxiv, paper in papers.items():
        if lacking := [key for key in ("citation", "note", *COMPARED) if key not in paper]:
            raise InvalidInput(f"{settings}: {arxiv}", "", f"lacks {', '.join(lacking)}")
    return published, papers


def compare_with_papers(results: Results, published: Sequence[Published], papers: Row, own: Row) -> Sequence[Row]:
    """Put ours beside every published number of a method of the study: the cells of the tables, a row for each."""
    rows, reference = [], results.reference_method
    for condition in results.conditions:
        gain = getattr(results.comparison(condition, reference), "difference", None)
        entry = own.get("methods", {}).get(condition.model, {}).get(condition.method, condition.method)
        for row in (row for row in published if row.method == entry):
            paper, of_problem = papers[row.arxiv], results.by_problem(row.metric)
            theirs = _benchmarks(row, published, paper)
            names = tuple(paper.get("stand_ins", {}).get(name, name) for name in theirs)
            names = names if {*names} <= {*results.benchmarks} else ()
            benchmark = row.benchmark if names and names == theirs else ", ".join(names) or "mean of ours"
            is_ours = of_problem or _AVERAGE_METRIC.fullmatch(row.metric)
            pairs: list[tuple[str, Any, Any]] = [
                ("model", row.model, own["models"][condition.model] or "not named: published_as"),
                ("benchmark", row.benchmark, benchmark),
                ("metric", row.metric, row.metric if is_ours else f"avg@{results.samples_per_problem}"),
                *((words, paper[name], own[name]) for name, words in COMPARED.items()),
            ]
            differing = [f"{words} ({their}, {mine})" for words, their, mine in pairs if their not in (None, mine)]
            unknown = [f"{words} (not given, {mine})" for words, their, mine in pairs if their is None]
            ours_of = names or results.benchmarks
            weights = [results.problems[name] for name in ours_of] if row.benchmark == AVERAGES[0] else None
            ours = results.average_over(condition, ours_of, of_problem, weights)
            low, high = ours.confidence_interval or (float("nan"), float("nan"))
            outside = max(100 * low - row.value, row.value - 100 * high)
            verdict = "inside" if outside <= 0 else f"outside by {outside:.1f}" if outside > 0 else "no interval"
            verdict = "not comparable" if differing else verdict + ", as far as published" * bool(unknown)
            doubt = "" if row.certainty == "published" else f", {row.certainty}"
            source = f"{row.paper} (arXiv {row.arxiv}), {row.table}{doubt}, row {row.row}"
            cells = row.to_json() | {"published_model": row.model, "published": row.value / 100, "ours": ours.value}
            cells |= {"model": condition.model, "method": condition.method, "title": condition.title}
            cells |= {"interval": average_text(ours), **interval_columns(ours.confidence_interval), "verdict": verdict}
            cells |= {"differing": "; ".join(differing), "unknown": "; ".join(unknown), "our_difference": gain}
            cells |= {"differs": "; ".join([*differing, *unknown]) or "nothing", "source": source}
            rows.append(cells | {"their_difference": _their_difference(row, published, reference)})
    return rows


def _benchmarks(row: Published, published: Sequence[Published], paper: Row) -> tuple[str, ...]:
    """The benchmarks that a published number is of: of an average those that the paper names, or those of its row."""
    key = (row.arxiv, row.table, row.model, row.row)
    of_row = [one.benchmark for one in published if (one.arxiv, one.table, one.model, one.row) == key]
    parts = [name for name in of_row if name not in AVERAGES] if row.benchmark in AVERAGES else [row.benchmark]
    return tuple(paper.get("averages", {}).get(row.benchmark, dict.fromkeys(parts)))


def _their_difference(row: Published, published: Sequence[Published], reference: str) -> float | None:
    """The difference to the reference method in the same paper, of the same table if it is there; of several, None."""
    key = (reference, row.arxiv, row.model, row.benchmark, row.metric)
    same = [one for one in published if (one.method, one.arxiv, one.model, one.benchmark, one.metric) == key]
    values = [one.value for one in same if one.table == row.table][:1] or [*{one.value for one in same}]
    return (row.value - values[0]) / 100 if len(values) == 1 and row.method != reference else None


def write_paper_vs_ours_table(results: Results, reference: Path, own: Row, out: Path) -> None:
    """Write published numbers, ours, and whether they compare; one line where none is of our models and tasks."""
    published, papers = read_reference(reference)
    rows = compared = compare_with_papers(results, published, papers, own)
    known = [bool(row["unknown"]) for row in rows if not row["differing"]]
    notes = [
        f"{known.count(False)} of {len(rows)} published numbers were made under the settings of this study, and "
        f"{known.count(True)} as far as their papers give them. No difference of the others means anything. Differences"
        " to a reference method are of single runs there unless a paper says otherwise, and have no intervals."
    ]
    if all(re.search(r"(^|; )(model|benchmark) \(", row["differing"]) for row in rows):
        notes, rows = [f"None of {len(rows)} published numbers is of a model and a benchmark of this study."], []
    for arxiv in sorted({row["arxiv"] for row in rows}):
        notes.append(f"arXiv {arxiv}: {papers[arxiv]['citation']}. {papers[arxiv]['note'] or ''}".strip())
    columns: list[Column[Row]] = [
        Column("Method", itemgetter("title")),
        Column("Published (%)", lambda row: f"{100 * row['published']:g} {row['metric']}, {row['benchmark']}"),
        Column("Ours (%)", itemgetter("interval")),
        Column("Verdict", itemgetter("verdict")),
        Column("Versus their reference (pp)", itemgetter("their_difference"), numbers.points),
        Column("Ours, versus our reference (pp)", itemgetter("our_difference"), numbers.points),
        Column("What differs (theirs, ours)", itemgetter("differs")),
        Column("Source", itemgetter("source")),
    ]
    table = make_table("paper_vs_ours", "Published numbers and ours", columns, rows, [*notes, results.extraction_note])
    read = [*results.sources, reference / "published.csv", reference / "settings.yaml"]
    write_table(out, [table], pd.DataFrame(compared, columns=_CSV), read, {"own": dict(own)})
