"""Pages beside the report, in its look: the claims of the papers, and decoding with two models."""

import os.path
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evals.results import Results
from evals.tables import layout
from rlvr.report.html import embedded, write_page
from rlvr_claims.claims.base import all_claims
from rlvr_claims.claims.findings import EXPLANATION, read_summaries, summary_table, write_table
from rlvr_claims.decoding.figure import write_figure
from rlvr_claims.decoding.table import decoding_tables


def write_claims(
    findings: Sequence[Path],
    figures: Path,
    notes: Sequence[str],
    out: Path,
    study: str,
    rollouts: Sequence[Path] = (),
    left_out: Sequence[str] = (),
) -> None:
    """Write the papers' claims: the page ``out``, and beside it tables/claims.

    Args:
        study: its name.
        rollouts: pages of rollouts that are linked to.
        left_out: claims that were not measured, each with what it needs.
    """
    write_table(findings, f"../{figures.name}", out.parent / "tables/claims", notes, left_out)
    summaries = read_summaries(findings)
    sections: list[dict[str, Any]] = [{"heading": "Verdicts", "tables": [summary_table(summaries.values(), left_out)]}]
    papers = {claim.name: [f"The claim is of arXiv {claim.paper}."] for claim in all_claims()}
    for number, (name, summary) in enumerate(summaries.items(), start=1):
        table = summary.table(number)
        caption = " ".join([summary.method.replace("`", ""), *papers.get(name, ())])
        figure = (name, embedded(figures / f"{name}.svg"), summary.title, caption)
        sections.append({"heading": table.title, "tables": [table], "figure": figure})
    if rollouts:
        words = [f"{path.parent.name}, {path.stem.replace('-', ' ')}" for path in rollouts]
        links = dict(zip(words, (os.path.relpath(path, out.parent) for path in rollouts), strict=True))
        sections.append({"heading": "Rollouts, token by token", "links": links})
    inputs = [*findings, *(figures / f"{name}.svg" for name in summaries), *rollouts]
    explanation = EXPLANATION.replace("`", "")
    title = f"The papers' claims on the model of the study {study}"
    write_page("sections.html.jinja", out, inputs, notes, title=title, explanation=explanation, sections=sections)


def write_decoding(
    results: Results, chosen: Path, sweeps: Sequence[Path], samples: Path, notes: Sequence[str], out: Path
) -> None:
    """Write decoding with two models: the page ``out``, and beside it tables/decoding and figures/replaced_tokens.

    ``results`` are decoding's own, ``samples`` has ``{run}/{benchmark}`` of runs.
    """
    figure = out.parent / "figures/replaced_tokens.svg"
    write_figure(sweeps, figure.with_suffix(""))
    tables, frame, files = decoding_tables(results, chosen, samples, notes)
    sources = [*results.sources, chosen]
    layout.write_table(out.parent / "tables/decoding", tables, frame, [*sources, *files], {"notes": list(notes)})
    caption = (
        "On problems that are not scored: the base model drives, and a token that the criterion picks is drawn again "
        "from the trained model."
    )
    drawn = (figure.stem, embedded(figure), "Accuracy against the fraction of tokens replaced", caption)
    tables, title = decoding_tables(results, chosen, samples, [])[0], "Decoding with two models"
    sections: list[dict[str, Any]] = [{"heading": table.title, "tables": [table]} for table in tables]
    sections.append({"heading": "Accuracy against tokens replaced", "figure": drawn})
    write_page("sections.html.jinja", out, [*sources, figure], notes, title=title, explanation=None, sections=sections)
