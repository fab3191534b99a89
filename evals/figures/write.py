"""The figures of scores and differences as PNG and SVG, with a manifest beside them."""

from __future__ import annotations

from pathlib import Path

from evals.figures.differences import draw_differences
from evals.figures.scores import draw_scores
from evals.figures.style import ENDINGS, house_style, save
from evals.tables.manifests import write_output_manifest
from evals.tables.write import ResultFiles

FIGURES = {"scores": draw_scores, "differences": draw_differences}


def write_figure(figure: str, files: ResultFiles, out: Path) -> None:
    """Draw one of ``FIGURES``; ``out`` is its path without an ending.

    Raises:
        UserError: an input is missing or malformed, or the output cannot be written.
    """
    results = files.read()
    with house_style():
        save(FIGURES[figure](results), out)
    write_output_manifest("figure", out, ENDINGS, files.paths, {"figure": figure})
