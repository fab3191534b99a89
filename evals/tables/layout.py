"""A table of words, and how it is written as Markdown and LaTeX; the report lays the same table out as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_LATEX_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{character: "\\" + character for character in "&%$#_{}"},
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "–": "--",
}


@dataclass(frozen=True)
class Table:
    """Cells as the reader sees them.

    Attributes:
        name: short identifier for links and LaTeX labels.
        title: one line: what the rows and numbers are.
        header: one label a column; the first column names the row and is set flush left, the others flush right.
        rows: cells, as many a row as the header has.
        notes: sentences that belong under the table.
    """

    name: str
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


def markdown(tables: Sequence[Table]) -> str:
    """GitHub Markdown whose columns also line up as plain text."""
    return "\n".join(_markdown_table(table) for table in tables)


def _markdown_table(table: Table) -> str:
    cells = [[cell.replace("|", r"\|") for cell in row] for row in (table.header, *table.rows)]
    widths = [max(3, *(len(row[column]) for row in cells)) for column in range(len(table.header))]

    def line(row: Sequence[str]) -> str:
        padded = [
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        return f"| {' | '.join(padded)} |"

    rule = [f":{'-' * (width - 1)}" if column == 0 else f"{'-' * (width - 1)}:" for column, width in enumerate(widths)]
    body = [line(cells[0]), line(rule), *(line(row) for row in cells[1:])]
    notes = [f"\n{note}" for note in table.notes]
    return "\n".join([f"## {table.title}", "", *body, *notes]) + "\n"


def latex(tables: Sequence[Table]) -> str:
    """Floats for the packages booktabs and graphicx; wide ones are shrunk to the line, none is ever enlarged."""
    floats = [_latex_table(table) for table in tables]
    return "\n".join(["% Needs \\usepackage{booktabs,graphicx}", *floats])


def _latex_table(table: Table) -> str:
    def line(row: Sequence[str]) -> str:
        return "    " + " & ".join(escape_latex(cell) for cell in row) + r" \\"

    caption = " ".join([f"{table.title}.", *table.notes])
    return "\n".join(
        [
            r"\begin{table*}[t]",
            r"  \centering\small\setlength{\tabcolsep}{4pt}",
            rf"  \caption{{{escape_latex(caption)}}}",
            rf"  \label{{tab:{table.name}}}",
            rf"  \sbox0{{\begin{{tabular}}{{l{'r' * (len(table.header) - 1)}}}",
            r"    \toprule",
            line(table.header),
            r"    \midrule",
            *(line(row) for row in table.rows),
            r"    \bottomrule",
            r"  \end{tabular}}",
            r"  \ifdim\wd0>\linewidth\resizebox{\linewidth}{!}{\usebox0}\else\usebox0\fi",
            r"\end{table*}",
            "",
        ]
    )


def escape_latex(text: str) -> str:
    """Text as LaTeX prints it literally."""
    return "".join(_LATEX_SPECIAL.get(character, character) for character in text)
