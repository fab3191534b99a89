"""A study's doses of difference between sampler and trainer: the trainings that they add, and what shows them."""

from typing import Any

import pytest

from evals.core.errors import InvalidInput
from rlvr.study.designs import sheet_of
from rlvr.study.study import Study
from tests.unit.study.planned import jobs_of, study_with

METHODS = {"dapo": {}, "dapo_tis": {"training": {"gradient_clip": 0.5}}, "delta": {}, "gspo": {}}
DOSES = {"stale": [1, 2], "top_p": [0.95]}


def smoke(**changes: Any) -> dict[str, Any]:
    controls = {"positive": "delta", "negative": "gspo"}
    sections = {"methods": METHODS, "doses": DOSES, "controls": controls}
    return study_with("smoke.yaml", **{**sections, **changes})


def test_every_method_but_controls_has_each_dose() -> None:
    study = Study.resolve(smoke(), "smoke.yaml")
    sheet = sheet_of(study.config, {name: entry["title"] for name, entry in study.methods.items()})
    assert [(way.name, way.method, way.kind, way.dose) for way in sheet] == [
        *((name, name, "", "") for name in METHODS),
        *((f"{name}_stale_{dose}", name, "stale", dose) for dose in "12" for name in ("dapo", "dapo_tis")),
        *((f"{name}_top_p_0_95", name, "top_p", "0.95") for name in ("dapo", "dapo_tis")),
    ]
    plain, dosed = (study.resolved_run(f"tiny-{name}-s2") for name in ("dapo_tis", "dapo_tis_top_p_0_95"))
    assert dosed["training"] == {**plain["training"], "sampler": {"top_p": 0.95}} and dosed["method"] == plain["method"]
    assert study.methods["dapo_stale_2"]["title"] == "DAPO, stale 2"
    targets = jobs_of(smoke())["all"].inputs
    assert "results/figures/doses.png" in targets and "results/tables/main.md" not in targets
    assert "results/runs/tiny-gspo-s1/manifest.json" in targets and not any("gspo_stale" in path for path in targets)


def test_a_study_that_is_read_from_its_results_has_the_same_methods() -> None:
    study = Study.resolve(smoke())
    again = Study.resolve(study.config.to_json())
    assert list(again.methods) == list(study.methods) and len(study.methods) == 4 + 2 * 3
    assert again.training == study.training


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seeds": {"at_most": 4, "looks": [2, 4], "margin": 2.0}}, "doses: are given with looks; accepted: a list of"),
        ({"training": {**smoke()["training"], "sampler": {"stale": 1}}}, "doses: are given beside training.sampler"),
    ],
)
def test_doses_that_could_not_be_compared_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput) as error:
        Study.resolve(smoke(**changes), "mine.yaml")
    assert said in str(error.value) and "\n" not in str(error.value)
