"""Rollouts as coloured text: what is shown, in which colour, and that nothing of it is code."""

import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.core.files import read_jsonl, sha256_file, write_jsonl, write_parquet, write_text
from evals.core.manifest import read_manifest
from rlvr.tokens.table import COMPARISON_COLUMNS, DISPLACEMENT, REPLAY_COLUMNS, read_comparison, read_token_table
from rlvr.tokens.view import LEVELS, ComparisonView, StepView, class_of, levels, scale_of
from tests.claims.checkpoint_pair import make_pair
from tests.commands import rlvr_bench

main = rlvr_bench("tokens")


class Page(HTMLParser):
    """Text and classes of the spans inside the responses, in order, and the names of all tags."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.spans: list[tuple[str, str, str]] = []
        self._open: tuple[str, str] | None = None
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        found = dict(attributes)
        if tag == "span" and "title" in found:
            self._open = (found["class"] or "", found["title"] or "")

    def handle_data(self, data: str) -> None:
        if self._open is not None:
            self.spans.append((data, *self._open))
            self._open = None


def show(table: Path, out: Path, *options: str) -> Page:
    assert main(["show", str(table), "--step", "1", "--out", str(out), *options]) == 0
    return Page(out)


def test_quantities_are_worked_out_from_columns_that_tables_have() -> None:
    """A column that a table lacks is NaN, so a wrong name would hide its quantity."""
    for view, known in ((StepView, [*REPLAY_COLUMNS, DISPLACEMENT]), (ComparisonView, COMPARISON_COLUMNS)):
        for quantity in view.quantities:
            assert set(re.findall(r"\w+", f"{quantity.formula} {quantity.in_float32}")) <= set(known)


def test_every_token_of_a_problem_is_there_with_its_numbers_and_colours(token_table: Path, tmp_path: Path) -> None:
    rows = read_token_table(token_table)
    rows = rows[rows["step"] == 1]
    problem = str(rows["problem"].iloc[-1])
    rows = rows[rows["problem"] == problem]
    write_jsonl(tmp_path / "problems.jsonl", [{"id": problem, "problem": "What is <b>this</b>?"}])
    options = ["--problem", problem, "--problem-texts", str(tmp_path / "problems.jsonl")]
    page = show(token_table, tmp_path / "page.html", *options)
    assert "What is &lt;b&gt;this" in (tmp_path / "page.html").read_text()
    assert [text for text, _, _ in page.spans] == [text.replace("\n", "↵") for text in rows["text"]]
    for index, (_, classes, words) in enumerate(page.spans):
        row = rows.iloc[index]
        assert f"weight {row['weight']:.3f}" in words
        assert f"({row['new_log_prob'] - row['old_log_prob']:+.4f})" in words
        for quantity in StepView.quantities:
            column = quantity.values(rows)
            strength = levels(column, quantity.middle, scale_of(column, quantity.middle))[index]
            assert class_of(quantity.key, strength) in classes.split()
        assert ("stopped" in classes.split()) == (row["gate"] == 0)


def test_the_change_of_a_run_in_bfloat16_is_that_of_passes_in_float32(token_table: Path, tmp_path: Path) -> None:
    show(token_table, tmp_path / "page.html")
    assert "float32" not in (tmp_path / "page.html").read_text()
    copy = tmp_path / "table"
    shutil.copytree(token_table, copy)
    table = pd.read_parquet(copy / "tokens.parquet")
    table["displacement"] = np.where(table["position"] % 2, 0.25, -0.125).astype(np.float32)
    table.to_parquet(copy / "tokens.parquet")
    page = show(copy, tmp_path / "page.html")
    content = (tmp_path / "page.html").read_text()
    legend = re.search(r'<p class="legend legend-change">([^<]*)', content)
    assert legend is not None and legend[1].startswith("log-prob change over the step, by passes in float32, nats:")
    assert "two passes in float32" in content
    assert {words.split("(")[1].split(")")[0] for _, _, words in page.spans} == {"+0.2500", "-0.1250"}
    colours = {next(name for name in classes.split() if name.startswith("change-")) for _, classes, _ in page.spans}
    assert colours == {"change-up-4", "change-down-3"}


def test_groups_with_right_and_wrong_answers_come_first(token_table: Path, tmp_path: Path) -> None:
    rows = read_token_table(token_table)
    rows = rows[rows["step"] == 1]
    mixed = [name for name, part in rows.groupby("problem", sort=False) if part["reward"].nunique() > 1]
    show(token_table, tmp_path / "page.html", "--groups", "2")
    headings = re.findall(r"<h2>(.*)</h2>", (tmp_path / "page.html").read_text())
    assert headings == mixed[:2]


def test_a_page_names_what_it_was_made_from(token_table: Path, tmp_path: Path) -> None:
    show(token_table, tmp_path / "page.html")
    manifest = read_manifest(tmp_path / "page.manifest.json", "page")
    assert list(manifest.outputs) == ["page.html"]
    assert manifest.inputs == {str(token_table / "manifest.json"): sha256_file(token_table / "manifest.json")}


def test_the_page_loads_nothing_and_model_text_is_text(token_table: Path, tmp_path: Path) -> None:
    copy = tmp_path / "table"
    shutil.copytree(token_table, copy)
    table = pd.read_parquet(copy / "tokens.parquet")
    table["text"] = "<script>alert('\"')</script>"
    table.to_parquet(copy / "tokens.parquet")
    page = show(copy, tmp_path / "page.html")
    assert "script" not in page.tags
    assert {text for text, _, _ in page.spans} == {"<script>alert('\"')</script>"}
    content = (tmp_path / "page.html").read_text()
    for forbidden in ("http", "<script", "src=", "@import", "url("):
        assert forbidden not in content


def test_every_colour_class_that_a_token_has_is_styled(token_table: Path, tmp_path: Path) -> None:
    page = show(token_table, tmp_path / "page.html")
    styled = set(re.findall(r" \.([a-z]+-(?:up|down)-\d) ", (tmp_path / "page.html").read_text()))
    used = {name for _, classes, _ in page.spans for name in classes.split() if re.search(r"-(up|down)-", name)}
    assert used
    assert used <= styled


def test_a_step_or_problem_that_is_not_there_is_refused(
    token_table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["show", str(token_table), "--out", str(tmp_path / "page.html")]
    assert main([*arguments, "--step", "2"]) == 2
    assert "--step: is 2; accepted: 1, 3" in capsys.readouterr().err
    assert main([*arguments, "--step", "1", "--problem", "none"]) == 2
    assert "--problem: is 'none', which the table does not have; accepted:" in capsys.readouterr().err
    assert main(arguments) == 2
    assert "--step: is missing; accepted: 1, 3" in capsys.readouterr().err
    assert main([*arguments, "--step", "1", "--responses", "2"]) == 2
    assert "--responses: is 2; accepted: with a comparison" in capsys.readouterr().err
    assert main([*arguments, "--step", "1", "--groups", "0"]) == 2
    assert "--groups: is 0; accepted: 1 or more" in capsys.readouterr().err


def test_two_checkpoints_are_shown_with_their_numbers_and_colours(tmp_path: Path) -> None:
    out = make_pair(tmp_path / "pair").compared(tmp_path / "compared")
    arguments = ["show", str(out), "--problem", "two", "--out", str(tmp_path / "page.html")]
    assert main([*arguments, "--problem-texts", str(tmp_path / "pair" / "problems.jsonl")]) == 0
    page, content = Page(tmp_path / "page.html"), (tmp_path / "page.html").read_text()
    rows = read_comparison(out, ["two"])
    assert [text for text, _, _ in page.spans] == [text.replace("\n", "↵") for text in rows["text"]]
    difference = rows["trained_log_prob"].to_numpy(float) - rows["base_log_prob"].to_numpy(float)
    expected = {
        "difference": difference,
        "before": rows["base_entropy"],
        "after": rows["trained_entropy"],
        "forward": rows["kl_trained_base"],
        "backward": rows["kl_base_trained"],
        "unlikely": -rows["base_log_prob"],
        "surprise": -rows["trained_log_prob"],
    }
    for quantity in ComparisonView.quantities:
        np.testing.assert_array_equal(quantity.values(rows), np.asarray(expected[quantity.key], dtype=np.float64))
    for index, (_, classes, words) in enumerate(page.spans):
        row = rows.iloc[index]
        assert f"{row['token_class']}, log-prob {row['base_log_prob']:.4f} → {row['trained_log_prob']:.4f}" in words
        assert f"({difference[index]:+.4f})" in words
        wanted = set()
        for key, column in expected.items():
            values = np.asarray(column, dtype=np.float64)
            wanted.add(class_of(key, levels(values, 0.0, scale_of(values, 0.0))[index]))
        assert set(classes.split()) == wanted
    assert "script" not in page.tags
    assert re.findall(r"<b>(Response \d)</b>, (.*)", content) == [
        ("Response 0", "reward 0"),
        ("Response 1", "reward 1"),
    ]
    assert "Compute 2*4 from left" in content
    assert main([*arguments, "--responses", "1"]) == 0
    assert re.findall(r"<b>(Response \d)</b>", (tmp_path / "page.html").read_text()) == ["Response 0"]


def test_problems_with_right_and_wrong_responses_come_first_of_a_comparison(tmp_path: Path) -> None:
    """All of problem one's responses are wrong now; without grades the first problems are shown."""
    pair = make_pair(tmp_path / "pair")
    wrong = {"correct": False, "reason": "mismatch"}
    rows = [row | (wrong if row["problem_id"] == "one" else {}) for row in read_jsonl(pair.grades)]
    write_jsonl(pair.grades, rows)

    def headings(graded: bool) -> list[str]:
        table = pair.compared(tmp_path / "compared", graded)
        assert main(["show", str(table), "--groups", "1", "--out", str(tmp_path / "page.html")]) == 0
        content = (tmp_path / "page.html").read_text()
        assert ("not graded" in content) != graded
        return re.findall(r"<h2>(.*)</h2>", content)

    assert headings(True) == ["two"]
    assert headings(False) == ["one"]


def test_what_cannot_be_shown_is_refused_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = make_pair(tmp_path / "pair").compared(tmp_path / "compared")
    page = ["--out", str(tmp_path / "page.html")]
    capsys.readouterr()
    for directory, options, words in (
        (out, ["--step", "1"], f"--step: is 1; accepted: none, for {out} compares two checkpoints"),
        (out, ["--problem", "three"], "--problem: is 'three', which the table does not have; accepted: one, two"),
        (tmp_path, [], f"{tmp_path}/tokens.parquet: no such file; accepted: a directory made by `claims replay` or"),
        (tmp_path / "other", [], "is no token table; accepted: a directory made by `claims replay` or"),
        (tmp_path / "damaged", [], "is not a parquet file"),
    ):
        if directory.name == "other":
            write_parquet(directory / "tokens.parquet", pd.DataFrame({"token": [1]}))
        if directory.name == "damaged":
            write_text(directory / "tokens.parquet", "no table")
        assert main(["show", str(directory), *options, *page]) == 2
        assert words in capsys.readouterr().err


@given(st.floats(-10, 10), st.floats(-1, 1), st.floats(1e-3, 10))
def test_levels_are_odd_about_the_middle_and_double(value: float, middle: float, scale: float) -> None:
    (strength,) = levels(np.array([value]), middle, scale).tolist()
    assert -LEVELS <= strength <= LEVELS
    assert strength == 0 or (strength > 0) == (value > middle)
    assert abs(strength) == sum(abs(value - middle) >= scale / factor for factor in (1, 2, 4, 8))


def test_what_is_no_number_has_no_colour() -> None:
    assert levels(np.array([np.nan, np.inf, 3.0]), 1.0, 0.5).tolist() == [0, 0, 4]
    assert levels(np.array([3.0]), 1.0, 0.0).tolist() == [0]
    assert scale_of(np.array([np.nan, np.nan]), 0.0) == 0.0
    assert scale_of(np.array([1.0] * 100 + [3.0] * 100), 1.0) == 2.0
