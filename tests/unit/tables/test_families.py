"""The table by family: differences of the same methods on two models, and the order of the one beside the other's."""

from pathlib import Path

import pandas as pd
import pytest

from evals.core.errors import UserError
from evals.tables.families import candidates, signal_note, write_families_table
from tests.unit.synthetic_results import Study


def copied(study: Study, out: Path, model: str) -> Path:
    """The results of a study with its model called ``model``."""
    old = study.read().conditions[0].model
    for path in (study.runs_file, study.comparisons, *study.scores):
        target = out / ("scores" if path in study.scores else "") / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text(encoding="utf-8").replace(f'"model": "{old}"', f'"model": "{model}"')
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


def test_one_model_is_no_family(synthetic_study: Study, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="two models"):
        write_families_table([copied(synthetic_study, tmp_path / "one", "one")], tmp_path / "table")
