"""The page of decoding with two models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from evals.decoding.table import decoding_tables
from evals.tables.manifests import write_output_manifest
from rlvr.report.embedded_figure import EmbeddedFigure
from rlvr.result_pages.page import Section, write_page


def write_decoding_page(
    runs: Path,
    scores: Sequence[Path],
    comparisons: Path,
    chosen: Path,
    samples: Path,
    figure: Path,
    notes: Sequence[str],
    out: Path,
) -> None:
    """Write the page of decoding with two models with its manifest; arguments as of its table, and its SVG figure.

    Raises:
        UserError: a file is missing or malformed.
    """
    summary, *others = decoding_tables(runs, scores, comparisons, chosen, samples, [])[0]
    drawn = EmbeddedFigure.read(
        figure,
        "Accuracy against the fraction of tokens replaced",
        "On problems that are not scored: the base model drives, and a token that the criterion picks is drawn again "
        "from the trained model.",
    )
    sections = [Section(summary.title, [summary]), *(Section(each.title, [each]) for each in others)]
    sections.append(Section("Accuracy against tokens replaced", figures=[drawn]))
    write_page("Decoding with two models", notes, sections, out)
    files = [runs, *scores, comparisons, chosen, figure]
    write_output_manifest("report", out.with_suffix(""), [out.suffix], files, {"notes": list(notes)})
