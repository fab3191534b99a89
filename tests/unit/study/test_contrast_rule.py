"""Which trainings measure their contrast, against what, and that it makes no two studies disagree about a run."""

from pathlib import Path
from typing import Any

import pytest

from evals.core.errors import InvalidInput
from evals.core.run_spec import LocalRun, VerlRun
from rlvr.study.studies import Studies
from rlvr.study.study import Study, spread
from rlvr.study.study_file import read_study_file

REPOSITORY = Path(__file__).resolve().parents[3]
CONFIG = {
    key: value for key, value in read_study_file(REPOSITORY / "config" / "sharpening.yaml").items() if key != "controls"
}


def run_of(study: Study, method: str) -> LocalRun:
    run = study.run_spec(f"tiny-{method}-s1")
    assert isinstance(run, LocalRun)
    return run


def with_methods(**methods: Any) -> Study:
    return Study.resolve({**CONFIG, "methods": {"dapo": {}, **methods}})


def test_a_run_says_what_it_is_measured_against() -> None:
    study = with_methods(delta={}, dapo_forking_tokens={})
    contrast = run_of(study, "delta").contrast
    assert contrast is not None
    assert (contrast.reference_method, contrast.steps) == ("dapo", spread(CONFIG["training"]["steps"], 4))
    assert contrast.method == run_of(study, "dapo").method
    assert run_of(study, "dapo").contrast == contrast


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("dapo_query_preserved", {}),
        ("dapo_dynamic_sampling", {}),
        ("dapo_query_preserved_reward_balanced", {"extends": "dapo_query_preserved_reward_balanced"}),
        ("delta_balanced", {"extends": "delta", "batching": {"assignment": {"name": "query_preserved"}}}),
        ("slow", {"extends": "dapo", "training": {"learning_rate": 0.0001}}),
        ("wide", {"extends": "delta", "training": {"samples_per_prompt": 16}}),
    ],
)
def test_an_angle_applies_only_where_the_loss_is_all_that_differs(name: str, changes: dict[str, Any]) -> None:
    assert run_of(with_methods(**{name: changes}), name).contrast is None


def test_an_early_stop_changes_no_angle() -> None:
    stop = {"training": {"early_stop": {"window": 2, "patience": 4}}}
    for methods in ({"delta": stop}, {"dapo": stop, "delta": {}}):
        assert run_of(with_methods(**methods), "delta").contrast == run_of(with_methods(delta={}), "delta").contrast


def test_without_the_measurement_a_run_is_what_it_was() -> None:
    without = Study.resolve({**CONFIG, "contrast_steps": 0})
    for run in without.trained_runs:
        content = without.resolved_run(run.run)
        assert "contrast" not in content
        measured = Study.resolve(CONFIG).run_spec(run.run)
        assert isinstance(measured, LocalRun)
        assert measured.model_copy(update={"contrast": None}).to_json() == content


def test_the_steps_are_spread_over_the_training() -> None:
    assert (spread(24, 4), spread(40, 2), spread(4, 4), spread(1, 4)) == ((3, 9, 15, 21), (10, 30), (1, 2, 3, 4), (1,))


def test_verl_measures_none() -> None:
    config = read_study_file(REPOSITORY / "config" / "verl_smoke.yaml")
    study = Study.resolve(config)
    assert all(isinstance(study.run_spec(run.run), VerlRun) for run in study.trained_runs)
    with pytest.raises(InvalidInput) as caught:
        Study.resolve({**config, "contrast_steps": 2})
    assert caught.value.key == "contrast_steps"


def test_studies_with_other_references_share_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "extends: main.yaml\nstudy: {0}\nfolder: studies/{0}\nseeds: [1]\nreference_method: {1}\nmethods: {{{2}}}\n"
    (tmp_path / "main.yaml").touch()
    (tmp_path / "a.yaml").write_text(text.format("a", "grpo", "grpo: {}, sapo: {}, rloo: {}"))
    (tmp_path / "b.yaml").write_text(text.format("b", "rloo", "grpo: {}, rloo: {}"))
    files = {name: tmp_path / f"{name}.yaml" for name in "ab"}
    monkeypatch.setattr("rlvr.study.studies.named_study_files", lambda: files)
    config = {**CONFIG, "methods": {"dapo": {}, "grpo": {}}}
    studies = Studies(config, "main")
    assert [studies.folder_of(name) for name in "ab"] == ["studies/a/", "studies/b/"]
    found = {
        method: study.run_spec(f"tiny-{method}-s1").to_json()["contrast"]["reference_method"]
        for method in ("dapo", "grpo", "sapo", "rloo")
        for study in [studies.policy(f"tiny-{method}-s1").study]
    }
    # Runs of the main study are measured against its reference method, others against that of the first that has them.
    assert found == {"dapo": "dapo", "grpo": "dapo", "sapo": "grpo", "rloo": "grpo"}
