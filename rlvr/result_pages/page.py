"""A page of sections: tables, figures, links; one self-contained file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path

from evals.core.files import write_text
from evals.tables.layout import Table
from rlvr.page_template import page_template
from rlvr.report.embedded_figure import EmbeddedFigure


@dataclass(frozen=True)
class Section:
    """A part of a page.

    Attributes:
        heading: of the section, if it is not its table's.
        tables: shown first.
        figures: shown below them; a caption is the paragraph on what was done.
        links: words -> address of pages beside this one.
    """

    heading: str
    tables: Sequence[Table] = ()
    figures: Sequence[EmbeddedFigure] = ()
    links: Mapping[str, str] | None = None


def write_page(title: str, notes: Sequence[str], sections: Sequence[Section], out: Path) -> None:
    """Write the page; ``notes`` say what its numbers are evidence of."""
    page = page_template("result_page.html.jinja", "rlvr.result_pages", "rlvr.report").render(
        title=title,
        style=resources.files("rlvr.report").joinpath("templates/report.css").read_text(encoding="utf-8"),
        created=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        notes=notes,
        sections=sections,
    )
    write_text(out, page)
