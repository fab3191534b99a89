"""The claims end to end on a run of a second: measured, drawn, put into the table; nothing about their outcome."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest

from evals.core.files import read_jsonl, write_jsonl
from evals.core.run_spec import LocalRun
from rlvr.diagnostics.displacements import write_displacements
from rlvr.diagnostics.interval import CONTRADICTED, SUPPORTED, UNDECIDED
from rlvr.diagnostics.phenomena.catalogue import CLAIMS
from rlvr.diagnostics.phenomena.findings import read_findings
from tests.commands import rlvr_bench

main = rlvr_bench()


def test_claims_become_findings_figures_and_a_table(trained_run: Path, token_table: Path, tmp_path: Path) -> None:
    write_displacements(token_table, None)
    problems = read_jsonl(LocalRun.read(trained_run).problems / "problems.jsonl")
    write_jsonl(trained_run.parents[2] / "problems" / "small" / "problems.jsonl", problems[:3])
    for claim in CLAIMS:
        arguments = ["--tables", str(token_table), "--contrast-tables", str(token_table)]
        arguments += ["--results", str(trained_run.parents[2]), "--runs", "tiny-dapo-s1", "--benchmarks", "small"]
        arguments += ["--out", str(tmp_path / claim), "--figure", str(tmp_path / "figures" / claim)]
        assert main(["claim", claim, *arguments]) == 0
        assert (tmp_path / "figures" / f"{claim}.png").stat().st_size > 10_000
    findings = [str(tmp_path / f"{claim}.json") for claim in CLAIMS]
    out = tmp_path / "tables" / "phenomena"
    arguments = ["--findings", *findings, "--figures", "../figures"]
    assert main(["stage", "table", "phenomena", *arguments, "--note", "N.", "--out", str(out)]) == 0
    table = pd.read_csv(f"{out}.csv", keep_default_na=False)
    text = Path(f"{out}.md").read_text()
    counts = [int((table["verdict"] == verdict).sum()) for verdict in (SUPPORTED, CONTRADICTED, UNDECIDED)]
    assert re.search(rf"^\| All +\| +{counts[0]} \| +{counts[1]} \| +{counts[2]} \|$", text, re.MULTILINE)
    for claim in CLAIMS:
        title, method, measurements = read_findings(tmp_path / f"{claim}.json")
        assert title in text and method in text and f"../figures/{claim}.png" in text
        rows = table[table["claim"] == claim]
        assert rows["quantity"].tolist() == [each.quantity for each in measurements]
        # A claim has a verdict, and what has none claims nothing.
        claimed = rows["statement"] != ""
        assert rows[claimed]["verdict"].isin([SUPPORTED, CONTRADICTED, UNDECIDED]).all()
        assert (rows[~claimed]["verdict"] == "").all()


def test_a_missing_table_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--tables", str(tmp_path), "--out", str(tmp_path / "x"), "--figure", str(tmp_path / "y")]
    assert main(["claim", "token_flipping", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"error: {tmp_path}/manifest.json: no such file")
