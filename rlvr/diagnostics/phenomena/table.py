"""The table of the claims: every measurement with its interval and verdict, then a paragraph for each claim."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from evals.core.files import replacing, write_text
from evals.tables.layout import Table, markdown
from evals.tables.manifests import write_output_manifest
from rlvr.diagnostics.interval import CONTRADICTED, SUPPORTED, UNDECIDED, Measurement
from rlvr.diagnostics.phenomena.findings import read_findings

TITLE = "The papers' claims on this study's model"
EXPLANATION = (
    f'Verdicts are of the interval: `{SUPPORTED}` if it lies on the claim\'s side of "no effect", `{CONTRADICTED}` '
    f"if on the other, `{UNDECIDED}` if it holds it. Each is one comparison, not corrected for their number. "
    "Measurements without a verdict are beside the claims."
)
_HEADER = ("Claim", "Measured", "Estimate", "95 % interval", "No effect", "n", "Verdict")
_VERDICTS = (SUPPORTED, CONTRADICTED, UNDECIDED)


def write_table(findings: Mapping[str, Path], figures: str, notes: Sequence[str], out: Path) -> None:
    """Write ``{out}.md``, ``{out}.csv`` and a manifest.

    Args:
        findings: claim's name -> its ``{claim}.json``.
        figures: directory of the figures, as the table links to it.
        notes: sentences on what the numbers are evidence of.
        out: path without its ending.

    Raises:
        UserError: a file is missing or cannot be written.
    """
    found = {name: read_findings(path) for name, path in findings.items()}
    summary = summary_table({title: measurements for title, _, measurements in found.values()})
    parts = [f"# {TITLE}", "", *notes, "", EXPLANATION, "", markdown([summary])]
    rows = []
    for number, (name, (title, method, measurements)) in enumerate(found.items(), start=1):
        table = claim_table(f"{number}. {title}", measurements)
        parts += [f"## {table.title}", "", _row(table.header), _row(["---"] * len(table.header))]
        parts += [_row(row) for row in table.rows]
        parts += ["", f"![{title}]({figures}/{name}.png)", "", method, ""]
        rows += [{"claim": name, **vars(each), "verdict": each.verdict} for each in measurements]
    write_text(out.with_name(f"{out.name}.md"), "\n".join(parts))
    with replacing(out.with_name(f"{out.name}.csv")) as temporary:
        pd.DataFrame(rows).to_csv(temporary, index=False)
    write_output_manifest("table", out, (".md", ".csv"), list(findings.values()), {"table": "phenomena"})


def summary_table(claims: Mapping[str, Sequence[Measurement]]) -> Table:
    """How many statements of each claim got which verdict, and which were contradicted."""
    counts = {
        title: [sum(each.verdict == verdict for each in measurements) for verdict in _VERDICTS]
        for title, measurements in claims.items()
    }
    rows = [(f"{number}. {title}", *map(str, own)) for number, (title, own) in enumerate(counts.items(), start=1)]
    rows.append(("All", *(str(sum(column)) for column in zip(*counts.values(), strict=True))))
    against = [
        each.statement for measurements in claims.values() for each in measurements if each.verdict == CONTRADICTED
    ]
    note = f"Contradicted here: {'; '.join(against) if against else 'none'}."
    return Table("verdicts", "Statements by verdict", ("Claim", *_VERDICTS), tuple(rows), (note,))


def claim_table(title: str, measurements: Sequence[Measurement]) -> Table:
    """Every measurement of a claim."""
    return Table("claim", title, _HEADER, tuple(_cells(each) for each in measurements))


def _cells(each: Measurement) -> tuple[str, ...]:
    return (
        each.statement or "–",
        each.quantity,
        _number(each.estimate),
        f"[{_number(each.low)}, {_number(each.high)}]" if not math.isnan(each.low) else "–",
        _number(each.null) if each.direction else "–",
        f"{each.units} {each.unit}",
        each.verdict or "–",
    )


def _number(value: float) -> str:
    """Three significant digits."""
    return "–" if math.isnan(value) else f"{value:.3g}"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
