import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from evals.core.comparisons import Look
from evals.core.errors import UserError
from evals.core.manifest import verify_outputs
from evals.core.records import BASE
from evals.tables.audit import write_audit_table
from evals.tables.by_seed import write_by_seed_table
from evals.tables.layout import latex
from evals.tables.main import main_columns, main_tables, read_costs, short_table, write_main_table
from evals.tables.numbers import NOTHING
from evals.tables.robust import write_robust_table
from tests.artifacts import edit
from tests.stages import status
from tests.unit.synthetic_results import Study

_NOTE = "Generated problems, a tiny model."


def write(study: Study, table: str, out: Path) -> int:
    training = study.results / "runs"
    tables: dict[str, Callable[[], None]] = {
        "main": lambda: write_main_table(study.read(), study.results / "costs", training, [_NOTE], out),
        "robust": lambda: write_robust_table(study.read(), out),
        "by_seed": lambda: write_by_seed_table(study.read(), out),
    }
    return status(tables[table])


@pytest.fixture(scope="module")
def written(synthetic_study: Study, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tables")
    assert write(synthetic_study, "main", out / "main") == 0
    assert write(synthetic_study, "by_seed", out / "by_seed") == 0
    return out


def _rows(text: str) -> list[list[str]]:
    """Cells of the first table of a Markdown file."""
    lines = text.split("\n## ")[0].split("\n")
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]


def test_every_row_of_the_main_table_carries_its_cost(written: Path) -> None:
    header, _, base, *methods = _rows((written / "main.md").read_text())
    cost = [header.index(name) for name in ("Tokens", "Updates", "Train (s)", "CPU (s)", "Eval (s)", "Memory (MiB)")]
    assert [row[0] for row in (base, *methods)] == ["Base model", "GRPO", "DAPO", "DelTA"]
    assert all(row[place] not in ("–", "") for row in methods for place in cost)
    assert [base[place] == "–" for place in cost] == [True, True, True, True, False, False]


def test_a_seed_that_fell_is_counted_in_both_tables(editable_study: Study, tmp_path: Path) -> None:
    content = json.loads(editable_study.comparisons.read_text())
    editable_study.comparisons.write_text(json.dumps({**content, "fallen": ["tiny-delta-s2"]}))
    for table in ("main", "robust"):
        assert write(editable_study, table, tmp_path / table) == 0
        header, _, *rows = _rows((tmp_path / f"{table}.md").read_text())
        fell = {row[0]: row[header.index("Fell")] for row in rows}
        assert (fell["DelTA"], fell["DAPO"]) == ("1 of 2 [1, 99]", "0 of 2 [0, 84]")
    written = pd.read_csv(tmp_path / "robust.csv").set_index("method")
    assert written["fallen_runs"]["delta"] == "tiny-delta-s2"
    assert written["interquartile_mean_confidence_low"].between(0, written["interquartile_mean"]).all()
    main = pd.read_csv(tmp_path / "main.csv").set_index("method")
    results = editable_study.read()
    held = [results.scores["tiny-delta-s1", name].average_at_k for name in results.benchmarks]
    assert main["fell"]["delta"] == 1 and main["all_avg_at_32"]["delta"] == pytest.approx(np.mean(held))
    (row,) = [row for row in results.conditions if row.method == "delta"]
    assert len(results.average(row).by_seed) == 2  # the figure shows the seed that fell


def test_variance_by_level_and_the_interval_over_base_models(editable_study: Study, tmp_path: Path) -> None:
    content = json.loads(editable_study.comparisons.read_text())
    for row in content["comparisons"]:
        row |= {"bases": 3, "interval_over_bases": [-0.02, 0.31], "difference": 0.1}
        row["variance_shares"] = {"problems": 0.1, "samples": 0.2, "seeds": 0.3, "base_models": 0.4}
    editable_study.comparisons.write_text(json.dumps(content))
    assert write(editable_study, "robust", tmp_path / "robust") == 0
    header, _, *rows = _rows((tmp_path / "robust.md").read_text())
    shown = {row[0]: row[-2:] for row in rows}
    levels = "Variance by problems, samples, seeds, base models (%)"
    assert header[-2:] == [levels, "Versus DAPO, over base models (pp)"]
    assert shown["DelTA"] == ["10 / 20 / 30 / 40", "+10.0 [-2.0, +31.0]"] and shown["DAPO"] == ["–", "–"]
    written = pd.read_csv(tmp_path / "robust.csv").set_index("method").loc["delta"]
    assert (written["variance_base_models"], written["over_base_models_confidence_high"]) == (0.4, 0.31)


def test_the_reference_is_not_compared_with_itself(written: Path) -> None:
    header, _, *rows = _rows((written / "main.md").read_text())
    verdict, p = header.index("Verdict versus DAPO"), header.index("p")
    assert {row[0]: row[verdict] for row in rows}["DAPO"] == "reference"
    assert {row[0]: row[p] for row in rows}["DAPO"] == "–"
    assert {row[0]: row[verdict] for row in rows}["DelTA"] == "better"


def test_the_main_table_shows_p_alone_and_after_holm(written: Path, synthetic_study: Study) -> None:
    text = (written / "main.md").read_text()
    header, _, *rows = _rows(text)
    shown = {row[0]: (row[header.index("p")], row[header.index("p (Holm)")]) for row in rows}
    comparisons = json.loads(synthetic_study.comparisons.read_text())["comparisons"]
    row = next(r for r in comparisons if (r["method"], r["against"], r["benchmark"]) == ("grpo", "dapo", "all"))
    assert row["p_value_holm"] == 2 * row["p_value"]
    assert shown["GRPO"] == (f"{row['p_value']:.3f}", f"{row['p_value_holm']:.3f}")
    assert shown["DAPO"] == shown["Base model"] == ("–", "–")
    assert "corrected over the study's comparisons with DAPO (2)" in text


def test_the_scale_stands_under_the_table_in_every_format(written: Path) -> None:
    assert _NOTE in (written / "main.md").read_text()
    assert _NOTE in (written / "main.tex").read_text()


def test_what_says_nothing_is_left_out(synthetic_study: Study) -> None:
    results = synthetic_study.read()
    costs = read_costs(results, synthetic_study.results / "costs", synthetic_study.results / "runs")
    tables = {table.name: table for table in main_tables(results, costs, [])}
    assert list(tables) == ["main", "by_benchmark", "differences_to_dapo", "differences_to_base"]
    assert all(" [" in cell and "–" not in cell for row in tables["by_benchmark"].rows for cell in row[1:])

    base = replace(results, runs=tuple(run for run in results.runs if run.method == BASE))
    tables = {table.name: table for table in main_tables(base, costs, [])}
    assert list(tables) == ["main", "by_benchmark"]
    said = " ".join(note for table in tables.values() for note in table.notes)
    assert "over problems" in said and not any(word in said for word in ("seed", "Fell", "Holm", "MDE"))
    nothing = {
        key: score.model_copy(update={"correct_counts": (0,) * len(score.correct_counts)})
        for key, score in base.scores.items()
    }
    (row,) = main_tables(replace(base, scores=nothing), costs, [])[1].rows
    assert all(cell == "0.0 [–]" for cell in row[1:])


def test_csv_holds_full_precision_and_the_comparisons(written: Path, synthetic_study: Study) -> None:
    frame = pd.read_csv(written / "main.csv", dtype={"seeds": str}).set_index("method")
    chain = json.loads((synthetic_study.results / "scores/chain_3.json").read_text())
    values = [row["average_at_k"] for row in chain["scores"] if row["method"] == "delta"]
    assert frame.loc["delta", "chain_3_avg_at_32"] == pytest.approx(sum(values) / 2, abs=1e-15)
    assert frame.loc["delta", "seeds"] == "1 2" and pd.isna(frame.loc["base", "seeds"])
    comparisons = json.loads(synthetic_study.comparisons.read_text())["comparisons"]
    row = next(r for r in comparisons if (r["method"], r["against"], r["benchmark"]) == ("delta", "dapo", "all"))
    assert frame.loc["delta", "all_versus_dapo_difference"] == row["difference"]
    assert frame.loc["delta", "all_versus_dapo_confidence_low"] == row["confidence_interval"][0]
    assert pd.isna(frame.loc["dapo", "all_versus_dapo_difference"])


def test_the_tables_of_differences_show_the_corrected_p_values(written: Path, synthetic_study: Study) -> None:
    text = next(
        part for part in (written / "main.md").read_text().split("\n## ") if part.startswith("Differences to DAPO")
    )
    header, _, *methods = _rows(text)
    comparisons = json.loads(synthetic_study.comparisons.read_text())["comparisons"]
    found = {(row[0], name): cell for row in methods for name, cell in zip(header[1:], row[1:], strict=True)}
    of_dapo = [row for row in comparisons if row["against"] == "dapo"]
    assert len(found) == len(of_dapo)
    assert any(row["p_value"] != row["p_value_holm"] for row in of_dapo)
    for row in of_dapo:
        title = {"grpo": "GRPO", "delta": "DelTA"}[row["method"]]
        value = row["p_value_holm"]
        shown = "<0.001" if value < 0.001 else f"{value:.3f}"
        mark = "*" if row["verdict"] in ("better", "worse") else ""
        assert found[title, row["benchmark"]] == f"{100 * row['difference']:+.1f}{mark} ({shown})"


def test_by_seed_lists_every_run_of_every_benchmark(written: Path, synthetic_study: Study) -> None:
    frame = pd.read_csv(written / "by_seed.csv")
    assert len(frame) == 7 * 2 and set(frame["benchmark"]) == {"chain_3", "nested_sums"}
    assert {"standard_error", "truncation_rate", "no_answer_rate", "pass_at_8", "g_pass_at_32_0.5"} <= set(
        frame.columns
    )
    header, _, *rows = _rows((written / "by_seed.md").read_text())
    assert [row[0] for row in rows] == [run["run"] for run in synthetic_study.runs()]
    assert "No answer" in header and "Truncated" in header


def test_the_audit_sums_over_runs_and_lists_each(editable_study: Study, tmp_path: Path) -> None:
    for path in editable_study.audits[7:]:
        content = json.loads(path.read_text())
        content["audit"] |= {"second": None, "no_second_because": "withheld"}
        path.write_text(json.dumps(content))
    study = editable_study
    write_audit_table(["chain_3", "nested_sums"], study.results, study.runs_file, tmp_path / "audit")
    header, _, shown, hidden = _rows((tmp_path / "audit.md").read_text())
    shown_cells, hidden_cells = dict(zip(header, shown, strict=True)), dict(zip(header, hidden, strict=True))
    assert shown_cells["Samples"] == str(7 * 12 * 32)
    assert shown_cells["No answer"] == f"{100 * 11 / (12 * 32):.1f}"
    assert shown_cells["Disagree"] == f"{100 * 3 / (12 * 32):.1f}"
    assert (shown_cells["Only ours (count)"], shown_cells["Only second (count)"]) == ("7", "14")
    assert [hidden_cells[name] for name in ("Compared", "Disagree", "Second failed (count)")] == ["withheld", "–", "–"]
    frame = pd.read_csv(tmp_path / "audit.csv")
    assert list(frame["run"]) == 2 * [run["run"] for run in editable_study.runs()]
    assert frame["disagreement"][0] == 3 / (12 * 32) and frame["compared"].isna().sum() == 7
    outputs = set(verify_outputs(tmp_path / "audit.manifest.json", "table").outputs)
    assert outputs == {"audit.md", "audit.csv", "audit.tex"}


def test_an_audit_without_a_run(editable_study: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, others = (editable_study.results / f"grades/tiny-{run}/chain_3/audit.json" for run in ("grpo-s1", "base"))
    arguments = ["chain_3"], editable_study.results, editable_study.runs_file, tmp_path / "audit"
    path.write_bytes(others.read_bytes())
    assert status(write_audit_table, *arguments) == 2
    assert f"{path}: is of tiny-base on chain_3; accepted: tiny-grpo-s1, chain_3" in capsys.readouterr().err
    path.unlink()
    assert status(write_audit_table, *arguments) == 2
    assert str(path) in capsys.readouterr().err


def test_manifests_name_every_byte_read_and_written(written: Path, synthetic_study: Study) -> None:
    manifest = verify_outputs(written / "main.manifest.json", "table")
    assert set(manifest.outputs) == {"main.md", "main.csv", "main.tex", "main_short.tex"}
    names = {Path(name).name for name in manifest.inputs}
    assert {"runs.json", "chain_3.json", "comparisons.json", "metrics.parquet", "tiny-delta-s1.tsv"} <= names
    outputs = set(verify_outputs(written / "by_seed.manifest.json", "table").outputs)
    assert outputs == {"by_seed.md", "by_seed.csv", "by_seed.tex"}


def test_the_short_table_has_what_a_paper_needs_in_one_float(synthetic_study: Study) -> None:
    results = synthetic_study.read()
    costs = read_costs(results, synthetic_study.results / "costs", synthetic_study.results / "runs")
    look = Look(
        model="tiny", method="delta", seeds=2, level=0.05, level_alone=0.05, difference=0, interval=None, verdict=None
    )
    for given, decided in (
        (results, "verdicts follow p (Holm)"),
        (replace(results, looks=(look,)), "until its verdict is certain"),
    ):
        table = short_table(given, main_columns(given, costs))
        names = ("Method", "Seeds", "avg@32 (%)", "Versus DAPO (pp)", "MDE (pp)", "Verdict versus DAPO")
        assert table.header == names and decided in table.caption
        assert len(f"{table.title}. {table.caption}") < 3 * 110, "three lines across both columns"
        assert latex([table]).count(r"\begin{table*}") == 1
    base = replace(results, runs=tuple(run for run in results.runs if run.method == BASE))
    (float_,) = latex([short_table(base, main_columns(base, costs))]).split(r"\begin{table*}")[1:]
    assert r"Method & avg@32 (\%) \\" in float_ and "MDE" not in float_, "one model is compared with nothing"
    whole = main_tables(base, costs, [])[0]
    assert whole.header[:2] == ("Method", "avg@32 (%)") and "Eval (s)" in whole.header and len(whole.header) < 6
    assert not any(set(cells) == {NOTHING} for cells in zip(*whole.rows, strict=True)), "no column of dashes"


def test_the_same_inputs_give_the_same_bytes(written: Path, synthetic_study: Study, tmp_path: Path) -> None:
    write(synthetic_study, "main", tmp_path / "main")
    for ending in ("md", "csv", "tex"):
        assert (tmp_path / f"main.{ending}").read_bytes() == (written / f"main.{ending}").read_bytes()


def test_bad_input_writes_nothing(editable_study: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    editable_study.comparisons.write_text("{")
    assert write(editable_study, "main", tmp_path / "out" / "main") == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1 and "comparisons.json" in error
    assert not (tmp_path / "out").exists()


def test_conditions_are_methods_in_study_order_with_the_base_model_first(editable_study: Study) -> None:
    edit(editable_study.runs_file, lambda runs: runs.append(runs.pop(0)))  # the base model now stands last
    conditions = editable_study.read().conditions
    assert [condition.method for condition in conditions] == [BASE, "grpo", "dapo", "delta"]
    assert [condition.seeds for condition in conditions] == [(), (1, 2), (1, 2), (1, 2)]


def test_unknown_keys_are_passed_over(editable_study: Study) -> None:
    edit(editable_study.scores[0], lambda content: content["scores"][0].update(future=1))
    edit(editable_study.comparisons, lambda content: content.update(future=1))
    editable_study.read()


@pytest.mark.parametrize(
    ("file", "change", "said"),
    [
        ("scores/chain_3", lambda content: content["scores"][2].pop("average_at_k"), "scores.2: lacks average_at_k"),
        ("scores/chain_3", lambda content: content["scores"][2].pop("correct_counts"), "scores.2: lacks correct_co"),
        ("scores/chain_3", lambda content: content["scores"][2].update(correct_counts=[1] * 11), "accepted: 12"),
        ("scores/chain_3", lambda content: content["scores"][2].update(correct_counts=[33] * 12), "accepted: 0..32"),
        ("scores/chain_3", lambda content: content["scores"][2].update(correct_counts=[-1] * 12), "accepted: 0..32"),
        ("scores/chain_3", lambda content: content.update(samples_per_problem=64), "64 of chain_3, 32 of nested_sums"),
        ("scores/nested_sums", lambda content: content["scores"].pop(1), "scores: no score for tiny-grpo-s1"),
        ("comparisons", lambda content: content["comparisons"][0].pop("verdict"), "comparisons.0: lacks verdict"),
        ("comparisons", lambda content: content["comparisons"].pop(0), "comparisons: none of tiny grpo against dapo"),
    ],
)
def test_partial_results_refused(editable_study: Study, file: str, change: Callable[[Any], object], said: str) -> None:
    edit(editable_study.results / f"{file}.json", change)
    with pytest.raises(UserError) as error:
        editable_study.read()
    assert said in str(error.value) and "\n" not in str(error.value)
