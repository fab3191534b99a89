"""The pages of responses, and the way to them from the report: in a browser, as a reader goes it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from evals.core.files import read_jsonl, write_jsonl
from evals.core.manifest import verify_outputs
from rlvr.report import viewer
from rlvr.report.responses import write_responses_page
from rlvr.tokens.table import COMPARISON_COLUMNS
from tests.browser import Page
from tests.stages import status
from tests.unit.report.test_report import make_report, with_figures
from tests.unit.synthetic_results import Study

HOSTILE = "<img src=x onerror=alert(1)> \\boxed{7}"


def make_page(study: Study, benchmark: str = "chain_3", tokens: Sequence[Path] = ()) -> int:
    arguments = benchmark, study.runs_file, study.results, out(study, benchmark), ["chain_3", "nested_sums"]
    return status(write_responses_page, *arguments, tokens, "../../report.html")


def out(study: Study, benchmark: str = "chain_3") -> Path:
    return study.root / "responses" / benchmark / "index.html"


def rows_of(study: Study, kind: str, run: str, benchmark: str = "chain_3") -> list[dict[str, Any]]:
    return read_jsonl(study.results / kind / run / benchmark / f"{kind}.jsonl.bz2")


@pytest.fixture
def study(editable_study: Study) -> Study:
    """A study whose DelTA has hostile text in one response."""
    path = editable_study.results / "samples/tiny-delta-s1/chain_3/samples.jsonl.bz2"
    rows = rows_of(editable_study, "samples", "tiny-delta-s1")
    rows[1]["text"] = HOSTILE
    write_jsonl(path, rows)
    return with_figures(editable_study)


def test_responses_may_be_empty(editable_study: Study) -> None:
    path = editable_study.results / "samples/tiny-delta-s1/chain_3/samples.jsonl.bz2"
    rows = [{**row, "text": ""} for row in rows_of(editable_study, "samples", "tiny-delta-s1")]
    write_jsonl(path, rows)
    assert make_page(editable_study) == 0


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)], ids=["desktop light", "phone dark"])
def test_a_reader_goes_from_a_score_to_a_response_and_back(study: Study, page: Page, width: int, dark: bool) -> None:
    assert make_page(study) == 0 and make_page(study, "nested_sums") == 0
    assert make_report(study) == 0
    page.open((study.root / "report.html").as_uri(), width, 800, dark)
    assert page.value("document.documentElement.scrollWidth") == width, "nothing is wider than the window"
    delta = rows_of(study, "grades", "tiny-delta-s1")
    shown = "[...document.querySelectorAll('#main ~ .folded thead th')].filter((each) => each.offsetWidth).length"
    assert page.value(shown) == 10
    page.click("#main ~ .folded input")
    assert page.value(shown) == 18
    page.click("#main ~ .folded input")
    assert page.value("document.querySelector('#main ~ .folded .table td a').getAttribute('href')") == "#benchmarks"
    page.click('#benchmarks ~ .table a[href*="column=tiny-delta"]')
    page.wait("document.body.dataset.ready && document.querySelector('#cell article')")
    assert page.text("#cell h2") == "DelTA on chain_3-000"

    page.click('#heat button[data-problem="2"][data-column="3"]')
    page.wait("document.querySelector('#cell h2').innerText.endsWith('chain_3-002')")
    problem = [row for row in delta if row["problem_id"] == "chain_3-002"]
    assert "Is 1 < 2?" in page.text("#cell pre")
    assert page.value("document.querySelectorAll('#cell article').length") == len(problem)
    first = page.text("#cell article")
    verdict = "correct" if problem[0]["correct"] else "wrong"
    assert first.startswith(f"Sample 0 {verdict}: answer {problem[0]['answer']}, {problem[0]['reason']}")
    assert rows_of(study, "samples", "tiny-delta-s1")[2 * len(problem)]["text"] in first
    right = sum(row["correct"] for row in problem)
    assert f"seed {1}: {right}/{len(problem)}" in page.text("#cell .choices")
    page.click("#cell p:nth-of-type(3) button:nth-of-type(3)")  # wrong ones
    page.wait("document.querySelector('#cell p:nth-of-type(3) [aria-pressed=true]').innerText.startsWith('wrong')")
    page.wait(f"document.querySelectorAll('#cell article').length === {len(problem) - right}")
    assert "show=wrong" in page.value("location.hash") and "run=tiny-delta-s1" in page.value("location.hash")

    assert page.value("document.documentElement.scrollWidth") == width, "nothing is wider than the window"
    background = page.value("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(21, 23, 26)" if dark else "rgb(255, 255, 255)")
    page.click("nav a")
    page.wait("document.querySelector('#summary') && location.pathname.endsWith('/report.html')")
    assert {address.partition(":")[0] for address in page.requests()} <= {"file", "data"}
    assert page.complaints() == []


def test_keys_filters_and_search_choose_what_is_shown(study: Study, page: Page) -> None:
    assert make_page(study) == 0
    page.open(f"{out(study).as_uri()}#run=tiny-delta-s1&problem=chain_3-000")
    page.wait("document.querySelector('#cell article')")
    assert page.value("document.querySelectorAll('#cell article')[1].querySelector('pre').innerText") == HOSTILE
    assert page.value("document.querySelectorAll('#cell img').length") == 0
    page.press("n")
    page.wait("document.querySelector('#cell h2').innerText === 'DelTA on chain_3-001'")
    page.press("Escape")
    page.press("ArrowDown")
    page.press("ArrowLeft")
    page.press("Enter")
    page.wait("document.querySelector('#cell h2').innerText.endsWith('on chain_3-002')")
    assert not page.text("#cell h2").startswith("DelTA")
    page.press("j")
    page.press("j")
    assert page.value("document.activeElement.innerText").startswith("Sample 1 ")
    page.press("/")
    for letter in "n_3-004":
        page.press(letter)
    page.wait("document.querySelectorAll('#heat tbody tr').length === 1")
    counts = {}
    for kind in ("correct", "wrong", "truncated"):
        choose(page, "search", "")
        choose(page, "kind", kind)
        choose(page, "rows", "some")
        counts[kind] = page.value("document.querySelectorAll('#heat tbody tr').length")
    flags = [row for run in study.runs() for row in rows_of(study, "grades", run["run"])]
    for kind, is_one in (("correct", True), ("wrong", False)):
        assert counts[kind] == len({row["problem_id"] for row in flags if row["correct"] is is_one})
    choose(page, "kind", "correct")
    choose(page, "rows", "all")
    choose(page, "order", "mean")
    means = page.value(
        "[...document.querySelectorAll('#heat tbody tr')].map((row) =>"
        " [...row.querySelectorAll('button')].reduce((sum, each) => sum + Number(each.innerText), 0))"
    )
    assert means[0] == max(means) and means[-1] == min(means) and means[0] > means[-1]
    assert page.complaints() == []


def choose(page: Page, name: str, value: str) -> None:
    """Give a field of the controls a value, as its own keys would."""
    field = f"document.getElementById('{name}')"
    page.value(f"{field}.value = '{value}', {field}.dispatchEvent(new Event('input')), 0")
    page.value(f"{field}.dispatchEvent(new Event('change')), 0")


def test_tokens_are_coloured_where_two_checkpoints_were_compared(study: Study, page: Page) -> None:
    directory = study.root / "tokens/tiny-delta-s1/chain_3"
    directory.mkdir(parents=True)
    texts, change = ["a", " b", " c"], [0.0, 2.0, -2.0]
    frame = pd.DataFrame({name: [0.0] * 3 for name in COMPARISON_COLUMNS})
    frame["problem"], frame["text"], frame["trained_log_prob"] = "chain_3-000", texts, change
    frame["sample"] = 0
    frame.to_parquet(directory / "tokens.parquet")
    assert make_page(study, tokens=[directory]) == 0
    page.open(f"{out(study).as_uri()}#run=tiny-delta-s1&problem=chain_3-000")
    page.wait("document.querySelector('#cell article')")
    shown = page.value(
        "[...document.querySelectorAll('#cell article:first-of-type span[class^=token]')].map((e) => e.className)"
    )
    assert shown == ["token-0", "token-4", "token--4"]
    assert page.text("#cell article pre") == "a b c"


def test_texts_are_divided_into_files_that_the_manifest_names(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewer, "CHUNK_BYTES", 1000)
    assert make_page(study) == 0
    files = {path.name for path in out(study).with_name("texts").glob("*.js")}
    assert len(files) > 2 * len(study.runs())
    manifest = verify_outputs(out(study).with_name("manifest.json"), "responses")
    assert set(manifest.outputs) == {"index.html", *(f"texts/{name}" for name in files)}
    monkeypatch.undo()
    assert make_page(study) == 0  # with fewer files, and none is left over
    assert len(list(out(study).with_name("texts").glob("*.js"))) == len(study.runs())


def test_grades_of_other_samples_are_one_line(study: Study, capsys: pytest.CaptureFixture[str]) -> None:
    path = study.results / "grades/tiny-base/chain_3/grades.jsonl.bz2"
    write_jsonl(path, reversed(read_jsonl(path)))
    assert make_page(study) == 2
    error = capsys.readouterr().err
    assert "grades.jsonl.bz2: has not the samples in their order" in error and error.count("\n") == 1


def test_tables_of_the_report_are_sorted_by_a_click(study: Study, page: Page) -> None:
    assert make_report(study) == 0
    page.open((study.root / "report.html").as_uri())
    body = "document.querySelector('#main ~ .folded .table tbody')"
    column = f"[...{body}.rows].map((row) => parseFloat(row.cells[1].innerText))"
    written = page.value(column)
    page.click("#main ~ .folded .table thead th:nth-child(2) button")
    assert page.value(column) == sorted(written, reverse=True) != written
    assert page.value("document.querySelector('#main ~ .folded .table thead th:nth-child(2)').ariaSort") == "descending"
    page.click("#main ~ .folded .table thead th:nth-child(2) button")
    assert page.value(column) == sorted(written)
    page.click("#main ~ .folded .table thead th:nth-child(2) button")
    assert page.value(column) == written
    page.click("#main ~ .folded .table thead th:nth-child(5) button")  # the base model has no such difference
    assert page.value(f"{body}.lastElementChild.cells[4].innerText") == "–"
