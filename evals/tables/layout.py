"""Tables of text and how they are written: Markdown, LaTeX and CSV with a manifest; the report makes HTML of them."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

import pandas as pd

from evals.core.files import write_text
from evals.core.manifest import write_output_manifest
from evals.core.records import Condition, Estimate, Interval
from evals.tables.numbers import NOTHING

Row = TypeVar("Row")
Texts = dict[Any, dict[str, str]]  # row -> header -> text
Cells = dict[Any, dict[str, Any]]  # row -> column of the CSV file -> value
_LINE = 118  # characters of a table's row that fit into a line across both columns of a paper in nine points
_ROWS = 45  # of a page, below the caption

_LATEX_SPECIAL = str.maketrans({
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "±": r"$\pm$", "–": "--",
    **{character: "\\" + character for character in "&%$#_{}"},
})  # fmt: skip


@dataclass(frozen=True)
class Table:
    """A table as people see it; the first column names the row and is set flush left, the others flush right.

    ``links`` are addresses of cells, from the study's own folder: a row for each of ``rows``, "" for none. ``caption``
    is what a paper has room for of the ``notes``: a sentence or two.
    """

    name: str  # for links and LaTeX labels
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    links: tuple[tuple[str, ...], ...] = ()
    caption: str = ""


@dataclass(frozen=True)
class Column(Generic[Row]):
    """A column of a table: the value of a row, how people see it, and what the CSV file has of it.

    ``csv`` is the value's name in that file, in full precision, or a function from the value to its cells by name.
    """

    header: str  # empty: in the CSV file alone
    value: Callable[[Row], Any]
    text: Callable[[Any], str] = str
    csv: str | Callable[[Any], Mapping[str, Any]] = ""  # empty: not in the CSV file
    link: Callable[[Row], str] = lambda _: ""  # address of a row's cell, from the study's own folder


METHOD: list[Column[Condition]] = [
    Column("", lambda row: row.model, csv="model"),
    Column("", lambda row: row.method, csv="method"),
    Column("Method", lambda row: row.title, csv="title"),
]
"""The columns that say which method a row is of."""


def field_of(record: Callable[[Row], Any], name: str) -> Callable[[Row], Any]:
    """Make the function of a field of a row's record, such as its comparison; None where the row has no record."""
    return lambda row: getattr(record(row), name, None)


def make_table(
    name: str,
    title: str,
    columns: Sequence[Column[Row]],
    rows: Sequence[Row],
    notes: Sequence[Any] = (),
    caption: str = "",
) -> Table:
    """Lay out rows by the columns that have a header; ``notes`` that are empty or untrue are left out."""
    shown = [column for column in columns if column.header]
    cells = tuple(tuple(column.text(column.value(row)) for column in shown) for row in rows)
    links = tuple(tuple(column.link(row) for column in shown) for row in rows)
    header = tuple(column.header for column in shown)
    return Table(name, title, header, cells, tuple(filter(None, notes)), links, caption)


def table_of_texts(name: str, title: str, rows: Texts, notes: Sequence[Any] = (), caption: str = "") -> Table:
    """Lay out rows of texts, all with the same headers; without any row it is a table of its notes."""
    header, cells = tuple(next(iter(rows.values()), ("",))), tuple(tuple(row.values()) for row in rows.values())
    return Table(name, title, header, cells, tuple(filter(None, notes)), caption=caption)


def frame_of(rows: Cells) -> pd.DataFrame:
    """Lay out rows of a CSV file: numbers in full precision, empty where there is none."""
    return pd.DataFrame([*rows.values()], dtype=object)


def table_frame(columns: Sequence[Column[Row]], rows: Sequence[Row]) -> pd.DataFrame:
    """Lay out the CSV file of a table: numbers in full precision, empty where there is none."""

    def cells(column: Column[Row], row: Row) -> Mapping[str, Any]:
        value = column.value(row)
        return {column.csv: value} if isinstance(column.csv, str) else column.csv(value)

    written = [column for column in columns if column.csv]
    content = [{name: cell for column in written for name, cell in cells(column, row).items()} for row in rows]
    return pd.DataFrame(content, dtype=object)


def responses_page(benchmark: str, **chosen: str) -> str:
    """The address of the page with every response to a benchmark, opened at the ``column`` or ``run`` chosen."""
    return f"responses/{benchmark}/index.html#{urlencode(chosen)}"


def write_table(
    out: Path,
    tables: Sequence[Table],
    frame: pd.DataFrame | Cells,
    inputs: Sequence[Path],
    parameters: Mapping[str, Any] | None = None,
    for_papers: Table | None = None,
) -> None:
    """Write tables as ``{out}.md`` and ``{out}.tex``, their numbers as ``{out}.csv``, and a manifest.

    ``for_papers`` is a table of the columns that a paper needs, ``{out}_short.tex``.
    """
    written = frame_of(frame) if isinstance(frame, dict) else frame
    contents = {".md": markdown(tables), ".csv": csv_text(written), ".tex": latex(tables)}
    if for_papers:
        contents["_short.tex"] = latex([for_papers])
    for ending, content in contents.items():
        write_text(out.with_name(out.name + ending), content)
    write_output_manifest("table", out, [*contents], inputs, parameters or {})


def csv_text(frame: pd.DataFrame) -> str:
    """A table as CSV, the one way in which it is written: no cell of text is a formula to a spreadsheet."""
    rows = [list(map(_no_formula, row)) for row in frame.astype(object).itertuples(index=False, name=None)]
    return pd.DataFrame(rows, columns=list(map(_no_formula, frame.columns)), dtype=object).to_csv(
        index=False, lineterminator="\n"
    )


def _no_formula(cell: Any) -> Any:
    text = cell.replace("\r", " ") if isinstance(cell, str) else ""  # which spreadsheets take for the end of a row
    return f"'{text}" if re.match(r"\s*[=+@\t\uff1d\uff0b\uff20\uff0d]|\s*-(?![\d.]+$)", text) else text or cell


def interval_columns(interval: Interval | None, prefix: str = "") -> dict[str, float | None]:
    """Both ends of an interval, as columns of a CSV file."""
    low, high = interval or (None, None)
    return {f"{prefix}confidence_low": low, f"{prefix}confidence_high": high}


def estimate_columns(name: str, estimate: Estimate | None, prefix: str | None = None) -> dict[str, float | None]:
    """An estimate and the ends of its interval, as columns of a CSV file."""
    value, interval = estimate or (None, None)
    return {name: value, **interval_columns(interval, f"{name}_" if prefix is None else prefix)}


def markdown(tables: Sequence[Table]) -> str:
    """GitHub Markdown whose columns also line up as plain text."""
    return "\n".join(_markdown_table(table) for table in tables)


def _markdown_table(table: Table) -> str:
    cells = [[cell.replace("|", r"\|").replace("\n", " ") for cell in row] for row in (table.header, *table.rows)]
    widths = [max(3, *map(len, column)) for column in zip(*cells, strict=True)]

    def line(row: Sequence[str]) -> str:
        return _line([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])])

    rule = [f":{'-' * (widths[0] - 1)}", *(f"{'-' * (width - 1)}:" for width in widths[1:])]
    body = [line(cells[0]), _line(rule), *map(line, cells[1:])]
    pages = dict.fromkeys(filter(None, (link.partition("#")[0] for row in table.links for link in row)))
    listed = ", ".join(f"[{Path(page).parent.name}](../{page})" for page in pages)
    notes = [*table.notes, *([f"Responses: {listed}"] if pages else [])]
    return "\n".join([f"## {table.title}", "", *body, *(f"\n{note}" for note in notes)]) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def latex(tables: Sequence[Table]) -> str:
    """Floats ``table*`` for booktabs and graphicx, to be ``\\input``; a wide or long table is cut into several."""
    floats = [_latex_float(table, *part) for table in tables for part in _parts(table)]
    return "\n".join(["% Needs \\usepackage{booktabs,graphicx}. Each table* spans both columns of a page.", *floats])


def _parts(table: Table) -> list[tuple[str, list[int], Sequence[Sequence[str]]]]:
    """Cut a table into parts that a page has room for: what follows the label of each, its columns' numbers, its rows.

    Each begins with the first column. A column without any value is left out.
    """
    columns = [*zip(table.header, *table.rows, strict=True)]
    parts: list[list[int]] = []
    used = _LINE
    for number, cells in enumerate(columns[1:], start=1):
        if table.rows and set(cells[1:]) <= {NOTHING, ""}:
            continue
        width = 2 + max(map(len, cells))
        if used + width > _LINE:
            parts.append([0])
            used = max(map(len, columns[0]))
        parts[-1].append(number)
        used += width
    cut = enumerate(product(range(0, max(len(table.rows), 1), _ROWS), parts or [[0]]))
    return [("" if number == 0 else f"_{number + 1}", part, table.rows[at : at + _ROWS]) for number, (at, part) in cut]


def _latex_float(table: Table, suffix: str, columns: Sequence[int], rows: Sequence[Sequence[str]]) -> str:
    chosen = [[row[column].replace("\n", " ") for column in columns] for row in (table.header, *rows)]
    cells = [[re.sub(r"(?<![\w)])-(?=\d)", "$-$", escape_latex(text)) for text in row] for row in chosen]
    header, *lines = [f"    {' & '.join(row)} \\\\\n" for row in cells]
    caption = escape_latex(f"{table.title}{', continued' if suffix else ''}. {'' if suffix else table.caption}".strip())
    notes = "" if suffix else "".join(f"% {note.replace(chr(10), ' ')}\n" for note in table.notes)
    return rf"""{notes}\begin{{table*}}[t]
  \centering\small\setlength{{\tabcolsep}}{{4pt}}
  \caption{{{caption}}}
  \label{{tab:{table.name}{suffix}}}
  \sbox0{{\begin{{tabular}}{{l{"r" * (len(columns) - 1)}}}
    \toprule
{header}    \midrule
{"".join(lines)}    \bottomrule
  \end{{tabular}}}}
  \ifdim\wd0>\linewidth\resizebox{{\linewidth}}{{!}}{{\usebox0}}\else\usebox0\fi
\end{{table*}}
"""


def escape_latex(text: str) -> str:
    """Text as LaTeX prints it literally."""
    return text.translate(_LATEX_SPECIAL)
