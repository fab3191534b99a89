"""The tables as files: .md for people, .csv in full precision, .tex of the main one, a manifest beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from evals.core.files import write_text
from evals.core.records import read_runs
from evals.results import Results, read_results
from evals.tables.audit import audit_frame, audit_tables, read_audits
from evals.tables.by_seed import by_seed_frame, by_seed_tables
from evals.tables.costs import cost_files
from evals.tables.layout import Table, latex, markdown
from evals.tables.main import main_frame, main_tables, read_costs
from evals.tables.manifests import write_output_manifest
from evals.tables.paper import paper_frame, paper_tables
from evals.tables.paper_vs_ours import confront, paper_vs_ours_frame, paper_vs_ours_table, parse_own_settings
from evals.tables.published import read_published, read_settings


@dataclass(frozen=True)
class ResultFiles:
    """The files that most tables and figures are made from.

    Attributes:
        runs: the run sheet.
        scores: one file for each benchmark.
        comparisons: comparisons.json.
    """

    runs: Path
    scores: Sequence[Path]
    comparisons: Path

    def read(self) -> Results:
        """Read them.

        Raises:
            UserError: a file is missing or malformed, or they do not belong together.
        """
        return read_results(self.runs, self.scores, self.comparisons)

    @property
    def paths(self) -> list[Path]:
        """All of them."""
        return [self.runs, *self.scores, self.comparisons]


@dataclass(frozen=True)
class _Made:
    """A table as words and as numbers, and what went into it."""

    tables: Sequence[Table]
    frame: pd.DataFrame
    inputs: Sequence[Path]
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def write(self, out: Path, with_latex: bool = False) -> None:
        """Write the files; ``out`` is their path without an ending."""
        write_text(out.with_name(out.name + ".csv"), self.frame.to_csv(index=False, lineterminator="\n"))
        write_text(out.with_name(out.name + ".md"), markdown(self.tables))
        if with_latex:
            write_text(out.with_name(out.name + ".tex"), latex(self.tables))
        endings = (".md", ".csv", ".tex") if with_latex else (".md", ".csv")
        write_output_manifest("table", out, endings, self.inputs, self.parameters)


def write_main_table(files: ResultFiles, costs: Path, training: Path, notes: Sequence[str], out: Path) -> None:
    """Write the main table: a row per method with scores, comparisons and cost.

    Args:
        files: what it is made from.
        costs: directory of Snakemake's benchmark files.
        training: directory of the runs.
        notes: sentences on what the numbers are evidence of.
        out: path of the table without its ending, here and below.

    Raises:
        UserError: an input is missing or malformed, or the output cannot be written; also below.
    """
    results = files.read()
    measured = read_costs(results, costs, training)
    inputs = [*files.paths]
    for run in results.runs:
        inputs += cost_files(run, results.benchmarks, costs, training)
    made = _Made(main_tables(results, measured, notes), main_frame(results, measured), inputs, {"notes": notes})
    made.write(out, with_latex=True)


def write_by_seed_table(files: ResultFiles, out: Path) -> None:
    """Write the table with a row per run and benchmark."""
    results = files.read()
    _Made(by_seed_tables(results), by_seed_frame(results), files.paths).write(out)


def write_audit_table(audits: Sequence[Path], runs: Path, out: Path) -> None:
    """Write how much was not judged, and where a second grader differs."""
    read = read_audits(audits, read_runs(runs))
    _Made(audit_tables(read), audit_frame(read), [runs, *audits]).write(out)


def write_paper_table(files: ResultFiles, reference: Path, title: str, notes: Sequence[str], out: Path) -> None:
    """Write a named study's own table, with what papers report (``reference/published.csv``) beside it."""
    results, numbers = files.read(), reference / "published.csv"
    tables = paper_tables(results, read_published(numbers), title, notes)
    _Made(tables, paper_frame(results), [*files.paths, numbers], {"title": title, "notes": notes}).write(out)


def write_paper_vs_ours_table(files: ResultFiles, reference: Path, own: str, out: Path) -> None:
    """Write published numbers beside ours, and whether they can be compared; ``own`` is JSON of our settings."""
    results, numbers, made = files.read(), reference / "published.csv", reference / "settings.yaml"
    published = read_published(numbers)
    settings = read_settings(made, published)
    confrontations = confront(results, published, settings, parse_own_settings(own))
    tables, frame = [paper_vs_ours_table(confrontations, settings)], paper_vs_ours_frame(confrontations)
    _Made(tables, frame, [*files.paths, numbers, made], {"own": own}).write(out)
