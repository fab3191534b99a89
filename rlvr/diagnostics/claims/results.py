"""Measure one claim and write its files, and write the table of all claims."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from evals.core.files import replacing, write_text
from evals.core.manifest import write_output_manifest
from evals.tables.layout import Table, markdown, markdown_lines
from rlvr.diagnostics.claims.base import find_claim
from rlvr.diagnostics.claims.findings import CONTRADICTED, SUPPORTED, UNDECIDED, Measurement, Summary, write_findings

if TYPE_CHECKING:
    from rlvr.diagnostics.claims.inputs import Inputs

TITLE = "The papers' claims on this study's model"
EXPLANATION = (
    f'Verdicts are of the interval: `{SUPPORTED}` if it lies on the claim\'s side of "no effect", `{CONTRADICTED}` '
    f"if on the other, `{UNDECIDED}` if it holds it. Each is one comparison, not corrected for their number. "
    "Measurements without a verdict are beside the claims."
)
_HEADER = ("Claim", "Measured", "Estimate", "95 % interval", "No effect", "n", "Verdict")
_VERDICTS = (SUPPORTED, CONTRADICTED, UNDECIDED)


def measure_claim(name: str, inputs: Inputs, out: Path, figure: Path) -> None:
    """Measure a claim and write ``{out}.json``, ``{out}.parquet``, ``{figure}.png`` and ``.svg``, and both manifests.

    Raises:
        UserError: an input is missing, or does not fit the claim.
    """
    from evals.figures.style import ENDINGS, figure_style, save  # matplotlib, which the tables do without

    declaration = find_claim(name, of_checkpoints=inputs.comparison is not None)
    inputs.check(declaration)
    claim = declaration.load()
    findings = claim.measure(inputs)
    write_findings(declaration.title, claim.method, findings, out)
    with figure_style():
        save(claim.draw(findings), figure)
    write_output_manifest("findings", out, (".json", ".parquet"), inputs.files(), {"claim": name})
    write_output_manifest("figure", figure, ENDINGS, [out.with_name(f"{out.name}.parquet")], {"figure": name})


def write_table(findings: Mapping[str, Path], figures: str, notes: Sequence[str], out: Path) -> None:
    """Write ``{out}.md``, ``{out}.csv`` and a manifest.

    Args:
        findings: claim's name -> its ``{claim}.json``.
        figures: directory of the figures, as the table links to it.
        notes: sentences on what the numbers are evidence of.
        out: path without its ending.

    Raises:
        UserError: a file is missing, malformed, or cannot be written.
    """
    found = {name: Summary.read(path) for name, path in findings.items()}
    summary = summary_table({each.title: each.measurements for each in found.values()})
    parts = [f"# {TITLE}", "", *notes, "", EXPLANATION, "", markdown([summary])]
    rows = []
    for number, (name, each) in enumerate(found.items(), start=1):
        table = claim_table(f"{number}. {each.title}", each.measurements)
        parts += [f"## {table.title}", "", *markdown_lines(table)]
        parts += ["", f"![{each.title}]({figures}/{name}.png)", "", each.method, ""]
        rows += [{"claim": name, **measurement.to_json()} for measurement in each.measurements]
    write_text(out.with_name(f"{out.name}.md"), "\n".join(parts))
    with replacing(out.with_name(f"{out.name}.csv")) as temporary:
        pd.DataFrame(rows).to_csv(temporary, index=False)
    write_output_manifest("table", out, (".md", ".csv"), list(findings.values()), {"table": "phenomena"})


def summary_table(claims: Mapping[str, Sequence[Measurement]]) -> Table:
    """Count each claim's statements by verdict, and name those that were contradicted."""
    verdicts = {title: [each.verdict for each in measurements] for title, measurements in claims.items()}
    counts = [[own.count(verdict) for verdict in _VERDICTS] for own in verdicts.values()]
    titles = [*(f"{number}. {title}" for number, title in enumerate(claims, start=1)), "All"]
    totals = [sum(column) for column in zip(*counts, strict=True)]
    rows = tuple((title, *map(str, own)) for title, own in zip(titles, [*counts, totals], strict=True))
    against = [each.statement for own in claims.values() for each in own if each.verdict == CONTRADICTED]
    note = f"Contradicted here: {'; '.join(against) if against else 'none'}."
    return Table("verdicts", "Statements by verdict", ("Claim", *_VERDICTS), rows, (note,))


def claim_table(title: str, measurements: Sequence[Measurement]) -> Table:
    """Lay out every measurement of a claim."""
    rows = []
    for each in measurements:
        interval = f"[{_number(each.low)}, {_number(each.high)}]" if not math.isnan(each.low) else "–"
        null = _number(each.null) if each.direction else "–"
        numbers = (_number(each.estimate), interval, null, f"{each.units} {each.unit}")
        rows.append((each.statement or "–", each.quantity, *numbers, each.verdict or "–"))
    return Table("claim", title, _HEADER, tuple(rows))


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3g}"
