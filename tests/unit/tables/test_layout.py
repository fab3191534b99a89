import csv
import io
import re

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.tables import numbers
from evals.tables.layout import Table, csv_text, escape_latex, latex, markdown

_TEXT = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=12)


@st.composite
def _tables(draw: st.DrawFn) -> Table:
    width = draw(st.integers(1, 5))
    row = st.tuples(*[_TEXT] * width)
    return Table("name", "title", draw(row), tuple(draw(st.lists(row, max_size=4))))


@given(_tables())
def test_markdown_lines_up_and_keeps_every_column(table: Table) -> None:
    lines = [line for line in markdown([table]).split("\n") if line.startswith("|")]
    assert len(lines) == len(table.rows) + 2
    assert len({len(line) for line in lines}) == 1
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {len(table.header) + 1}


@pytest.mark.parametrize("name", ["=1+1", "@SUM(1+1)", "+1", "-1+cmd|' C'!A0", "\t=1", " =1", "\r=1", "\uff1d1"])
def test_no_cell_of_text_is_a_formula(name: str) -> None:
    frame = pd.DataFrame({"run": [name, "plain-1", None], name: [-1.5, 2, None], "all": [-1, 2, 3]})
    written = f"'{name}".replace("\r", " ")
    rows = list(csv.reader(io.StringIO(csv_text(frame), newline="")))
    assert rows == [["run", written, "all"], [written, "-1.5", "-1"], ["plain-1", "2.0", "2"], ["", "", "3"]]


def test_a_frame_without_formulas_is_written_as_pandas_writes_it() -> None:
    frame = pd.DataFrame(
        {"a": [0.1 + 0.2, 1e-300], "b": [1, 2**60], "c": [True, None], "d": ['x,"y', "é"]}, dtype=object
    )
    for each in (frame, frame.infer_objects(), frame[[]], frame[:0]):
        assert csv_text(each) == each.to_csv(index=False, lineterminator="\n")


def test_a_line_feed_in_a_name_begins_no_line_of_a_table() -> None:
    assert "\nverified" not in markdown([Table("name", "title", ("run",), (("a\nverified: 700 files",),))])


@given(_TEXT)
def test_latex_leaves_no_special_character_bare(text: str) -> None:
    escaped = escape_latex(text)
    bare = re.sub(r"\\(?:[&%$#_{}]|text[a-z]+\{\})", "", escaped)
    assert not set(bare) & set("&%$#_{}~^\\<>|")


def test_latex_rows_have_one_cell_a_column() -> None:
    rows = (("DAPO & co", "-1.0 ± 0.2"), ("A-B_1", "–"))
    text = latex([Table("t", "A & B", ("Method", "a_1 (%)"), rows, ("A note\nof 9 %.",), caption="50 % of it.")])
    written = [line for line in text.split("\n") if line.endswith(r"\\")]
    assert [len(re.findall(r"(?<!\\)&", row)) for row in written] == [1, 1, 1]
    assert r"\caption{A \& B. 50 \% of it.}" in text and "% A note of 9 %.\n\\begin{table*}" in text
    assert r"$-$1.0 $\pm$ 0.2" in text and r"a\_1 (\%)" in text and r"A-B\_1 & --" in text
    assert text.count(r"\begin{") == text.count(r"\end{") and text.count(r"\toprule") == 1


def test_a_wide_table_is_cut_into_floats_that_each_name_the_rows() -> None:
    header = ("Method", *(f"column {number}" for number in range(12)), "empty")
    rows = tuple((name, *12 * ("12.3 [10.0, 15.0]",), "–") for name in ("DAPO", "DelTA"))
    floats = latex([Table("t", "A", header, rows, caption="Once.")]).split(r"\begin{table*}")[1:]
    assert len(floats) == 3 and all(part.count("DAPO &") == 1 for part in floats)
    shown = [re.findall(r"column \d+|empty", part) for part in floats]
    assert [name for names in shown for name in names] == [*header[1:-1]] and max(map(len, shown)) <= 5
    assert [r"\caption{A. Once.}" in part for part in floats] == [True, False, False]
    assert re.findall(r"\\label\{tab:(.*?)\}", "".join(floats)) == ["t", "t_2", "t_3"]


def test_a_long_table_is_cut_into_floats_that_a_page_has_room_for() -> None:
    rows = tuple((f"run {number}", "1.0") for number in range(100))
    floats = latex([Table("t", "A", ("Run", "a"), rows)]).split(r"\begin{table*}")[1:]
    assert [part.count("run ") for part in floats] == [45, 45, 10] and all("Run & a" in part for part in floats)
    assert re.findall(r"run \d+", "".join(floats)) == [name for name, _ in rows]


def test_linked_pages_are_named_below_a_markdown_table() -> None:
    links = (("", "responses/a/index.html#run=x"), ("", "responses/a/index.html#run=y"))
    table = Table("t", "A", ("Method", "a"), (("x", "1"), ("y", "2")), (), links)
    assert markdown([table]).endswith("\n\nResponses: [a](../responses/a/index.html)\n")
    on_the_page = Table("t", "A", ("Method", "a"), (("x", "1"),), (), (("", "#benchmarks"),))
    assert "Responses" not in markdown([on_the_page]), "a mean leads to another place of the report"


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (numbers.percent(0.4849), "48.5"),
        (numbers.percent(None), "–"),
        (numbers.points(0.0123), "+1.2"),
        (numbers.points(-0.0123), "-1.2"),
        (numbers.percent_with_interval(0.5, None), "50.0 [–]"),
        (numbers.points_with_interval(0.012, (-0.03, 0.05)), "+1.2 [-3.0, +5.0]"),
        (numbers.percent(-0.0004), "0.0"),
        (numbers.points(0.0004), "0.0"),
        (numbers.points_with_interval(-0.0004, (-0.0134, -0.00025)), "0.0 [-1.3, 0.0]"),
        (numbers.decimal(-0.04), "0.0"),
        (numbers.whole(-0.4), "0"),
        (numbers.rounded(-0.003, "+.0%"), "0%"),
        (numbers.rounded(-0.06, "+.1f"), "-0.1"),
        (numbers.rounded(float("-inf"), ".1f"), "-inf"),
        (numbers.p_value(0.00099), "<0.001"),
        (numbers.p_value(0.001), "0.001"),
        (numbers.count(329_412), "329 k"),
        (numbers.count(1_260_000), "1.3 M"),
        (numbers.count(999), "999"),
        (numbers.seconds(9.94), "9.9"),
        (numbers.seconds(75.2), "75"),
    ],
)
def test_numbers_in_words(written: str, expected: str) -> None:
    assert written == expected
