"""The page of the papers' claims."""

from __future__ import annotations

import os.path
from collections.abc import Sequence
from pathlib import Path

from evals.tables.manifests import write_output_manifest
from rlvr.diagnostics.phenomena.findings import read_findings
from rlvr.diagnostics.phenomena.table import EXPLANATION, TITLE, claim_table, summary_table
from rlvr.report.embedded_figure import EmbeddedFigure
from rlvr.result_pages.page import Section, write_page


def write_phenomena_page(
    findings: Sequence[Path], figures: Path, rollouts: Sequence[Path], notes: Sequence[str], out: Path
) -> None:
    """Write the page of the claims with its manifest.

    Args:
        findings: ``{claim}.json``, in order.
        figures: directory of ``{claim}.svg``.
        rollouts: pages of ``rlvr-bench tokens show``, linked to.
        notes: sentences on what the numbers are evidence of.
        out: the HTML file.

    Raises:
        UserError: a file is missing or malformed.
    """
    found = {path.stem: read_findings(path) for path in findings}
    sections = [Section("Verdicts", [summary_table({title: each for title, _, each in found.values()})])]
    for number, (name, (title, method, measurements)) in enumerate(found.items(), start=1):
        heading = f"{number}. {title}"
        figure = EmbeddedFigure.read(figures / f"{name}.svg", title, method.replace("`", ""))
        sections.append(Section(heading, [claim_table(heading, measurements)], [figure]))
    links = {
        f"{path.parent.name}, {path.stem.replace('-', ' ')}": os.path.relpath(path, out.parent) for path in rollouts
    }
    if links:
        sections.append(Section("Rollouts, token by token", links=links))
    write_page(TITLE, [*notes, EXPLANATION.replace("`", "")], sections, out)
    files = [*findings, *(figures / f"{path.stem}.svg" for path in findings), *rollouts]
    write_output_manifest("report", out.with_suffix(""), [out.suffix], files, {"notes": list(notes)})
