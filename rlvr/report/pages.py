"""Pages beside the report, in its look: the claims of the papers, and decoding with two models."""

import os.path
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from evals.decoding.table import decoding_tables
from evals.results import Results
from evals.tables.layout import Table
from rlvr.diagnostics.claims.findings import EXPLANATION, TITLE, Summary, claim_table, summary_table
from rlvr.report.html import EmbeddedFigure, write_page


@dataclass(frozen=True)
class Section:
    """A section of a page: its tables, the figures below them, and ``links``, words -> address of pages beside it."""

    heading: str
    tables: Sequence[Table] = ()
    figures: Sequence[EmbeddedFigure] = ()
    links: Mapping[str, str] | None = None


def write_phenomena_page(
    findings: Sequence[Path], figures: Path, rollouts: Sequence[Path], notes: Sequence[str], out: Path
) -> None:
    """Write the page of the papers' claims with its manifest.

    ``findings`` are ``{claim}.json`` in order, ``figures`` has ``{claim}.svg``; the pages ``rollouts`` are linked to.
    """
    found = {path.stem: Summary.read(path) for path in findings}
    sections = [Section("Verdicts", [summary_table({each.title: each.measurements for each in found.values()})])]
    for number, (name, each) in enumerate(found.items(), start=1):
        heading = f"{number}. {each.title}"
        figure = EmbeddedFigure.read(figures / f"{name}.svg", each.title, each.method.replace("`", ""))
        sections.append(Section(heading, [claim_table(heading, each.measurements)], [figure]))
    links = {
        f"{path.parent.name}, {path.stem.replace('-', ' ')}": os.path.relpath(path, out.parent) for path in rollouts
    }
    if links:
        sections.append(Section("Rollouts, token by token", links=links))
    inputs = [*findings, *(figures / f"{path.stem}.svg" for path in findings), *rollouts]
    explanation = EXPLANATION.replace("`", "")
    write_page("sections.html.jinja", out, inputs, notes, title=TITLE, explanation=explanation, sections=sections)


def write_decoding_page(
    results: Results, chosen: Path, samples: Path, figure: Path, notes: Sequence[str], out: Path
) -> None:
    """Write the page of decoding with two models with its manifest.

    ``results`` are decoding's own, ``chosen`` the thresholds, ``samples`` the directory of its samples; the SVG file
    ``figure`` is embedded.
    """
    caption = (
        "On problems that are not scored: the base model drives, and a token that the criterion picks is drawn again "
        "from the trained model."
    )
    drawn = EmbeddedFigure.read(figure, "Accuracy against the fraction of tokens replaced", caption)
    sections = [Section(table.title, [table]) for table in decoding_tables(results, chosen, samples, [])[0]]
    sections.append(Section("Accuracy against tokens replaced", figures=[drawn]))
    inputs, title = [*results.sources, chosen, figure], "Decoding with two models"
    write_page("sections.html.jinja", out, inputs, notes, title=title, explanation=None, sections=sections)
