"""Pages beside the report: what stands in them, and that they need nothing else."""

import re
from pathlib import Path

import pytest

from evals.core.files import write_json
from evals.core.manifest import verify_outputs
from rlvr_claims.claims.findings import Measurement, Summary, measure, summary_table
from rlvr_claims.pages import write_claims
from tests.stages import status

SVG = "<svg xmlns='http://www.w3.org/2000/svg'></svg>"
MEASURED = [
    measure("Up & up", "change", [1.0, 1.1, 0.9], "runs"),
    measure("It <falls>", "change", [1.0, 1.1, 0.9], "runs", direction="below"),
    measure("Perhaps", "change", [1.0, -1.0], "runs"),
    measure("", "beside", [1.0, 2.0], "runs", direction=None),
]


def summary(title: str, measured: list[Measurement], method: str = "") -> Summary:
    return Summary(title=title, method=method, measurements=tuple(measured))


@pytest.fixture
def findings(tmp_path: Path) -> list[Path]:
    """Two claims with their figures."""
    for name, title in (("one", "First claim"), ("two", "Second claim")):
        write_json(tmp_path / f"{name}.json", summary(title, MEASURED, f"What was done for `{name}`.").to_json())
        (tmp_path / f"{name}.svg").write_text(SVG)
    return [tmp_path / "one.json", tmp_path / "two.json"]


def test_the_page_of_the_claims_has_tables_figures_paragraphs_and_links(findings: list[Path], tmp_path: Path) -> None:
    rollouts = tmp_path / "tokens" / "tiny-dapo-s1" / "step-10.html"
    rollouts.parent.mkdir(parents=True)
    rollouts.write_text("<html></html>")
    out = tmp_path / "claims.html"
    left_out = ["Third claim: needs <this>", "Fourth claim: needs that"]
    write_claims(findings, tmp_path, ["N & M."], out, "mine", [rollouts], left_out)
    page = out.read_text()
    assert "on the model of the study mine" in page and 'href="report.html"' in page
    assert "Not measured: Third claim: needs &lt;this&gt;." in page and "Not measured: Fourth claim" in page
    for words in ("1. First claim", "2. Second claim", "Up &amp; up", "It &lt;falls&gt;", "N &amp; M."):
        assert words in page
    assert "What was done for one." in page
    assert page.count("data:image/svg+xml;base64,") == 2
    # Both claims have one statement of each verdict; what has no statement has no verdict.
    assert re.search(r">All</th><td>2</td><td>2</td><td>2</td>", page)
    assert 'href="tokens/tiny-dapo-s1/step-10.html"' in page
    assert not re.search(r"<script|(?:src|href)=\"(?:https?:)?//", page)
    assert set(verify_outputs(out.with_name("claims.manifest.json"), "report").inputs) == {
        *map(str, findings), *(str(tmp_path / f"{name}.svg") for name in ("one", "two")), str(rollouts),
    }  # fmt: skip


def test_verdicts_are_counted_by_claim_and_contradictions_named() -> None:
    table = summary_table([summary("A", MEASURED), summary("B", MEASURED[2:])])
    assert [row[1:] for row in table.rows] == [("1", "1", "1"), ("0", "0", "1"), ("1", "1", "2")]
    assert table.notes == ("Contradicted here: It <falls>.",)


def test_a_figure_that_is_not_there_is_one_line(
    findings: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "two.svg").unlink()
    assert status(write_claims, findings, tmp_path, ["N."], tmp_path / "p.html", "s") == 2
    assert capsys.readouterr().err == f"error: {tmp_path / 'two.svg'}: no such file\n"
