"""`snakemake rates`: which trainings it adds, what they share with the study, and where no rate could be chosen."""

from typing import Any

import pytest

from evals.core.errors import UserError
from rlvr.study.designs import RATES, sheet_of
from rlvr.study.studies import Studies
from rlvr.study.study import Study
from tests.unit.study.planned import jobs_of, study_with

QWEN = {"source": "hugging_face", "path": "models/qwen", "prompt_form": "base", "dtype": "float32"}
CHANGING = {"qwen": {**QWEN, "methods": {"dapo": {"loss": {"epsilon_low": 0.1}}}}}
VALIDATION = {"seed": 9, "count": 20, "every": 2, "samples_per_problem": 4}


def smoke(**changes: Any) -> Studies:
    return Studies(study_with("smoke.yaml", **changes), "smoke.yaml")


def rates_of(studies: Studies) -> Study:
    return studies.study(studies.folder_of(RATES))


def titles(study: Study) -> dict[str, str]:
    return {name: entry["title"] for name, entry in study.methods.items()}


def test_every_method_but_controls_is_trained_at_half_and_twice_its_rate() -> None:
    methods = {"dapo": {}, "grpo_no_kl": {"training": {"learning_rate": 0.001}}, "delta": {}, "gspo": {}}
    controls = {"positive": "delta", "negative": "gspo"}
    content = study_with("smoke.yaml", validation=VALIDATION, methods=methods, controls=controls)
    studies = Studies(content, "smoke.yaml")
    study, common = rates_of(studies), studies.main.training["dapo"].learning_rate
    sheet = sheet_of(study.config, titles(study))
    assert [(way.name, way.method, way.rates) for way in sheet] == [
        (f"{method}{suffix}", method, {"tiny": rate * factor})
        for method, rate in (("dapo", common), ("grpo_no_kl", 0.001))
        for suffix, factor in (("", 1.0), ("_rate_half", 0.5), ("_rate_twice", 2.0))
    ]
    jobs = jobs_of(content, RATES)
    table = jobs["table_design studies/rates/ rates"]
    for way in sheet:
        training = jobs[f"train tiny-{way.name}-s2"].content["training"]
        assert training["learning_rate"] == way.rates["tiny"]
        assert f"results/runs/tiny-{way.name}-s2/manifest.json" in table.inputs
    half, whole = (jobs[f"train tiny-{name}-s1"].content for name in ("dapo_rate_half", "dapo"))
    assert half["training"] == {**whole["training"], "learning_rate": common / 2} and half["method"] == whole["method"]
    assert "results/studies/rates/tables/rates.md" in jobs["rates"].inputs and "train tiny-delta-s1" not in jobs


def test_a_model_s_own_rate_is_halved_and_doubled() -> None:
    """The rates of a study are those of each model: small models take larger ones."""
    tiny = study_with("smoke.yaml")["models"]["tiny"]
    models = {"tiny": tiny, "wide": {**tiny, "reinforcement": {"learning_rate": 0.001}}}
    half = {"extends": "grpo", "title": "Slow", "learning_rate_factor": 0.5}
    studies = smoke(validation=VALIDATION, models=models, methods={"dapo": {}, "slow": half})
    study = rates_of(studies)
    rates = {way.name: way.rates["wide"] for way in sheet_of(study.config, titles(study))}
    assert rates == {
        **{"dapo": 0.001, "dapo_rate_half": 0.0005, "dapo_rate_twice": 0.002},
        **{"slow": 0.0005, "slow_rate_half": 0.00025, "slow_rate_twice": 0.001},
    }
    run = studies.main.run_spec("wide-dapo-s1")
    assert run.training.learning_rate == 0.001 and run.contrast is not None
    assert studies.main.run_spec("wide-slow-s1").contrast is None


def test_a_study_that_stops_when_it_is_certain_has_eight_seeds_at_each_rate() -> None:
    seeds = {"at_most": 16, "looks": [4, 16], "margin": 2.0}
    studies = smoke(validation=VALIDATION, methods={"dapo": {}, "grpo": {}}, seeds=seeds)
    assert rates_of(studies).config.seeds == tuple(range(1, 9))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "smoke.yaml: validation: is not there; accepted: a study with it"),
        ({"validation": VALIDATION, "seeds": [1]}, "smoke.yaml: seeds: are [1]; accepted: 2 or more"),
        (
            {"validation": VALIDATION, "models": CHANGING},
            "smoke.yaml: models.qwen.methods: is given; accepted: changes",
        ),
    ],
)
def test_a_study_that_cannot_choose_is_told_so_where_rates_are_asked_for(changes: dict[str, Any], said: str) -> None:
    studies = smoke(**changes)
    with pytest.raises(UserError) as error:
        studies.folder_of(RATES)
    assert str(error.value).startswith(said)
