"""The table by family: differences of the same methods on two models, and the order of the one beside the other's."""

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from evals.core.errors import InvalidInput, UserError
from evals.core.files import read_json, write_json
from evals.tables.families import candidates, means_of, signal_note, write_families_table
from tests.unit.synthetic_results import Study


def copied(study: Study, out: Path, model: str, reference: str | None = None) -> Path:
    """The results of a study with its model called ``model``, and another reference method."""
    old = study.read().conditions[0].model
    for path in (study.runs_file, study.comparisons, *study.scores):
        target = out / ("scores" if path in study.scores else "") / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text(encoding="utf-8").replace(f'"model": "{old}"', f'"model": "{model}"')
        if reference and path == study.comparisons:
            content = json.loads(text)
            rows = [row | {"against": reference} for row in content["comparisons"] if row["against"] != "base"]
            bases = [row for row in content["comparisons"] if row["against"] == "base"]
            methods = {row["method"] for row in bases}
            swapped = [row | {"method": method} for row in rows for method in methods if method != reference]
            text = json.dumps(content | {"reference_method": reference, "comparisons": bases + swapped})
        target.write_text(text, encoding="utf-8")
    return out


def test_a_study_orders_methods_as_its_own_copy_does(synthetic_study: Study, tmp_path: Path) -> None:
    results = synthetic_study.read()
    model = results.conditions[0].model
    first, other = (copied(synthetic_study, tmp_path / name, name) for name in (model, "other"))
    write_families_table([first, other], tmp_path / "table")
    table = pd.read_csv(tmp_path / "table.csv")
    methods = [*candidates(results, model)]
    assert not set(methods) & {"base", *dict(results.controls or {}).values()}
    assert [*table["family"]] == [model] * len(methods) + ["other"] * len(methods)
    of_other = table[table["family"] == "other"]
    assert set(of_other["decision_accuracy"]) == {1.0} and table["decision_accuracy"][: len(methods)].isna().all()
    assert (of_other["decision_accuracy_confidence_low"] < 1).all()
    compared = results.comparison(candidates(results, model)[methods[-1]], results.reference_method)
    assert compared is not None and table["difference"][len(methods) - 1] == pytest.approx(compared.difference)
    assert f"{table['signal_to_noise'][0]:.1f} on {model}" in signal_note(results)
    assert set(table["shared_methods"]) == {len(methods)} and (table["signal_of_equal_methods"] > 0).all()


def test_runs_that_fell_are_no_seeds_of_a_candidate(synthetic_study: Study) -> None:
    results = synthetic_study.read()
    row = next(iter(candidates(results, results.conditions[0].model).values()))
    fallen = replace(results, fallen=frozenset(run.run for run in row.runs))
    assert fallen.held(row) == row.runs and row.method not in candidates(fallen, row.model)


def test_base_models_weigh_as_in_the_average(synthetic_study: Study) -> None:
    results = synthetic_study.read()
    row = next(row for row in results.conditions if row.method == "dapo")
    runs = tuple(run.model_copy(update={"base": base}) for base, run in zip((1, 1, 2), row.runs * 2, strict=False))
    uneven = replace(row, runs=runs)
    plain = sum(results.average(uneven).by_seed) / 3
    assert means_of(results, [uneven]).means[0] == pytest.approx(results.average(uneven).value) != pytest.approx(plain)


def test_a_size_that_two_studies_share_is_that_of_the_first(synthetic_study: Study, tmp_path: Path) -> None:
    first, ladder = (copied(synthetic_study, tmp_path / name, name) for name in ("first", "large"))
    for path in (ladder / "runs.json", ladder / "comparisons.json", *(ladder / "scores").glob("*.json")):
        content = read_json(path)
        rows = content if isinstance(content, list) else content.get("comparisons", content.get("scores", []))
        rows += [json.loads(json.dumps(row).replace('"large"', '"first"').replace("tiny-", "first-")) for row in rows]
        write_json(path, content)
    write_families_table([first, ladder], tmp_path / "table")
    counts = pd.read_csv(tmp_path / "table.csv")["family"].value_counts()
    assert [*counts.index] == ["first", "large"] and counts["first"] == counts["large"]
    with pytest.raises(InvalidInput, match=f"{first}: model: has first, as studies before it"):
        write_families_table([ladder, first], tmp_path / "table")


def test_a_model_of_two_studies_alone_is_refused(synthetic_study: Study, tmp_path: Path) -> None:
    directories = [copied(synthetic_study, tmp_path / name, "same") for name in ("first", "second")]
    with pytest.raises(InvalidInput) as caught:
        write_families_table(directories, tmp_path / "table")
    assert caught.value.key == "model" and "same" in caught.value.found
    assert caught.value.source == str(tmp_path / "second")


def test_other_reference_methods_are_told(synthetic_study: Study, tmp_path: Path) -> None:
    directories = [
        copied(synthetic_study, tmp_path / "a", "one"),
        copied(synthetic_study, tmp_path / "b", "two", "delta"),
    ]
    with pytest.raises(UserError, match=r"reference_method: found \w+ of one, delta of two"):
        write_families_table(directories, tmp_path / "table")


def test_one_model_is_no_family(synthetic_study: Study, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="two models"):
        write_families_table([copied(synthetic_study, tmp_path / "one", "one")], tmp_path / "table")
