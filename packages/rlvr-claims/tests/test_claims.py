"""The claims end to end on a run of a second: measured, drawn, put into the table; nothing about their outcome."""

import os
import re
import sys
from pathlib import Path

import pandas as pd
import pytest

from evals.core.errors import InvalidInput
from evals.core.files import read_jsonl, write_jsonl
from evals.core.run_spec import LocalRun
from rlvr_claims.claims.base import (
    Declaration,
    Need,
    all_claims,
    claim_names,
    claims_left_out,
    find_claim,
    measurable_claims,
)
from rlvr_claims.claims.claim import Claim, load_claim
from rlvr_claims.claims.findings import CONTRADICTED, NOT_MEASURED, SUPPORTED, UNDECIDED, Findings, Summary, write_table
from rlvr_claims.claims.inputs import Inputs
from rlvr_claims.probes import write_probes
from tests.commands import ended, rlvr_bench
from tests.printed import printed_faults

main = rlvr_bench("claims")
_OFTEN_NOT_MEASURED: set[str] = set()


def unknown_names(declaration: Declaration, series: Path) -> set[str]:
    """The names of declared numbers that the claim's class does not have, or not of this series."""
    claim = load_claim(declaration)
    names = {claim.say(name) for each in declaration.measured for name in (each.of, each.less) if name}
    return names - set(claim.values(pd.read_parquet(series))) if names else set()


def test_claims_become_findings_figures_and_a_table(trained_run: Path, token_table: Path, tmp_path: Path) -> None:
    write_probes(token_table, None)
    problems = read_jsonl(LocalRun.read(trained_run).problems / "problems.jsonl")
    write_jsonl(trained_run.parents[2] / "problems" / "small" / "problems.jsonl", problems[:3])
    cut: dict[str, list[str]] = {}
    for claim in claim_names():
        arguments = ["--tables", str(token_table), "--weighting-tables", str(token_table)]
        arguments += ["--results", str(trained_run.parents[2]), "--runs", "tiny-dapo-s1", "--benchmarks", "small"]
        arguments += ["--benchmark-problems", "2"]
        arguments += ["--out", str(tmp_path / claim), "--figure", str(tmp_path / "figures" / claim)]
        with printed_faults() as faults:
            assert main(["measure", claim, *arguments]) == 0
        cut |= {claim: faults} if faults else {}
        assert (tmp_path / "figures" / f"{claim}.png").stat().st_size > 10_000
    assert cut == {}
    out = tmp_path / "tables" / "claims"
    write_table([tmp_path / f"{claim}.json" for claim in claim_names()], "../figures", out, ["N."], ["Claim: needs it"])
    table = pd.read_csv(f"{out}.csv", keep_default_na=False)
    text = Path(f"{out}.md").read_text()
    counts = [int((table["verdict"] == verdict).sum()) for verdict in (SUPPORTED, CONTRADICTED, UNDECIDED)]
    assert re.search(rf"^\| All +\| +{counts[0]} \| +{counts[1]} \| +{counts[2]} \|$", text, re.MULTILINE)
    assert "\nNot measured: Claim: needs it.\n" in text
    assert (
        "\nNot measured: Training on the tokens of highest coefficient alone beats training on the lowest: needs"
        in text
    )
    for claim in claim_names():
        found = Summary.read(tmp_path / f"{claim}.json")
        assert unknown_names(find_claim(claim), tmp_path / f"{claim}.parquet") <= _OFTEN_NOT_MEASURED
        assert found.title in text and found.method in text and f"../figures/{claim}.png" in text
        rows = table[table["claim"] == claim]
        assert rows["quantity"].tolist() == [each.quantity for each in found.measurements]
        if find_claim(claim).name in ("sampling_settings", "update_direction"):
            assert {each.units for each in found.measurements if each.unit == "problems"} == {2}
        # A claim has a verdict, and what has none claims nothing.
        claimed = rows["statement"] != ""
        assert rows[claimed]["verdict"].isin([SUPPORTED, CONTRADICTED, UNDECIDED, NOT_MEASURED]).all()
        assert (rows[~claimed]["verdict"] == "").all()


def test_a_missing_table_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--tables", str(tmp_path), "--out", str(tmp_path / "x"), "--figure", str(tmp_path / "y")]
    assert main(["measure", "token_flipping", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"error: {tmp_path}/manifest.json: no such file")


def test_every_declared_claim_has_its_class() -> None:
    assert len({(each.name, each.of_checkpoints) for each in all_claims()}) == len(all_claims())
    for declaration in all_claims():
        claim = load_claim(declaration)
        assert isinstance(claim, Claim) and claim.declared is declaration
        for statement in declaration.measured:
            for words in (declaration.method, statement.claim, statement.quantity, statement.of, statement.less):
                assert "{" not in claim.say(words)
        number = claim_names().index(declaration.name) + 1
        assert (sys.modules[type(claim).__module__].__doc__ or "").startswith(f"Claim {number}: ")
        assert declaration.title and declaration.paper and declaration.needs


def test_findings_count_lines_that_are_always_there() -> None:
    """A line that may drop out stands behind all that a finding counts."""
    counted = {
        claim.name: [claim.measured[int(number)].of for number in re.findall(r"\{(\d+)", claim.finding)]
        for claim in all_claims()
        if not claim.of_checkpoints
    }
    both, random = (f"rate, full parameters, {name}" for name in ("both", "random"))
    assert counted["masking_effect"] == [both, random]
    replaced = "replaced log_prob_difference"
    assert counted["update_direction"] == [replaced, "accuracy base", "accuracy trained"]
    for claim in all_claims():
        dropping = [each.otherwise == "" for each in claim.measured]
        assert dropping == sorted(dropping), claim.name
        assert all(not dropping[int(number)] for number in re.findall(r"\{(\d+)", claim.finding)), claim.name


def test_a_claim_without_rows_has_measurements_of_nothing() -> None:
    claim = load_claim(find_claim("tabular_extrapolation"))
    measurements = list(claim.measurements(pd.DataFrame(columns=list(claim.columns or ()))))
    assert measurements and all(row.units == 0 for row in measurements)
    assert claim.title(Findings(measurements, pd.DataFrame()))


def test_the_text_of_a_claim_is_its_own_and_the_same_in_every_process() -> None:
    code = "import rlvr_claims.claims.base as base; print(*[claim.text for claim in base.all_claims()], sep=chr(10))"
    for seed in ("1", "2"):
        said = ended([sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}).stdout
        assert said.splitlines() == [claim.text for claim in all_claims()]
    flipping = find_claim("token_flipping")
    changed = flipping.measured[0].model_copy(update={"quantity": "another"})
    assert flipping.model_copy(update={"measured": (changed, *flipping.measured[1:])}).text != flipping.text


def test_every_claim_has_a_row_in_the_documentation() -> None:
    text = (Path(__file__).resolve().parents[1] / "README.md").read_text()
    for declaration in all_claims():
        assert re.search(rf"^\| `{declaration.name}` .*{declaration.paper}", text, re.MULTILINE), declaration.name


def test_names_and_needs_are_read_without_torch() -> None:
    code = "import sys, rlvr_claims.claims.base as base; base.measurable_claims({}); print('torch' in sys.modules)"
    assert ended([sys.executable, "-c", code]).stdout == "False\n"


def test_a_claim_whose_needs_a_study_does_not_name_is_one_line() -> None:
    named = {"method": "dapo", "benchmark": "small", "steps": [1]}
    (delta, tax) = claims_left_out(named)
    assert delta == f"DelTA's coefficients: needs claims.weighting_method ({Need.WEIGHTING_TABLES.words})"
    assert tax.startswith("Learning tax, drift, entropy collapse: needs claims.compared (runs ")
    assert len(measurable_claims(named)) == len(claim_names()) - 2
    assert claims_left_out({**named, "weighting_method": "delta", "compared": ["dapo"]}) == []


def test_a_need_that_is_not_met_is_one_line(tmp_path: Path) -> None:
    for claim in claim_names():
        with pytest.raises(InvalidInput) as error:
            Inputs().check(find_claim(claim))
        assert (error.value.source, error.value.found.split()[0]) == (claim, "lacks")
    with pytest.raises(InvalidInput) as error:
        find_claim("no_claim")
    assert "token_flipping" in error.value.accepted
