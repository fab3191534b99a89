"""`snakemake rates`: which trainings it adds, what they share with the study, and where no rate could be chosen."""

from typing import Any

import pytest

from evals.core.errors import UserError
from rlvr.study.plan import Plan
from rlvr.study.targets import Targets
from tests.unit.study.planned import stages_of, study_with

QWEN = {"source": "hugging_face", "path": "models/qwen", "prompt_form": "base", "dtype": "float32"}
CHANGING = {"qwen": {**QWEN, "methods": {"dapo": {"loss": {"epsilon_low": 0.1}}}}}
VALIDATION = {"seed": 9, "count": 20, "every": 2, "samples_per_problem": 4}


def smoke(**changes: Any) -> Plan:
    return Plan.read(study_with("smoke.yaml", **changes), "smoke.yaml")


def test_every_method_but_controls_is_trained_at_half_and_twice_its_rate() -> None:
    methods = {"dapo": {}, "grpo_no_kl": {"training": {"learning_rate": 0.001}}, "delta": {}, "gspo": {}}
    controls = {"positive": "delta", "negative": "gspo"}
    plan = smoke(validation=VALIDATION, methods=methods, controls=controls, diagnostics=None)
    stages, common = stages_of(plan), plan.study.training["dapo"].learning_rate
    table = stages["table_rates studies/rates/"]
    assert [(way.name, way.method, way.rates) for way in table.sheet] == [
        (f"{method}{suffix}", method, {"tiny": rate * factor})
        for method, rate in (("dapo", common), ("grpo_no_kl", 0.001))
        for suffix, factor in (("", 1.0), ("_rate_half", 0.5), ("_rate_twice", 2.0))
    ]
    for way, run in ((way, f"tiny-{way.name}-s2") for way in table.sheet):
        training = stages[f"train {run}"].resolved["training"]
        assert training["learning_rate"] == way.rates["tiny"] and f"results/runs/{run}/manifest.json" in table.inputs()
    half, whole = (stages[f"train tiny-{name}-s1"].resolved for name in ("dapo_rate_half", "dapo"))
    assert half["training"] == {**whole["training"], "learning_rate": common / 2} and half["method"] == whole["method"]
    needed = Targets(plan).by_name["rates"]()
    assert (
        "results/studies/rates/tables/rates.md" in needed and "results/runs/tiny-delta-s1/manifest.json" not in needed
    )
    assert not any("rate_half" in path for path in Targets(plan).by_name["all"]())


def test_a_model_s_own_rate_is_halved_and_doubled() -> None:
    """The rates of a study are those of each model: small models take larger ones."""
    tiny = study_with("smoke.yaml")["models"]["tiny"]
    models = {"tiny": tiny, "wide": {**tiny, "reinforcement": {"learning_rate": 0.001}}}
    half = {"extends": "grpo", "title": "Slow", "learning_rate_factor": 0.5}
    plan = smoke(validation=VALIDATION, models=models, methods={"dapo": {}, "slow": half}, diagnostics=None)
    rates = {way.name: way.rates["wide"] for way in stages_of(plan)["table_rates studies/rates/"].sheet}
    assert rates == {
        **{"dapo": 0.001, "dapo_rate_half": 0.0005, "dapo_rate_twice": 0.002},
        **{"slow": 0.0005, "slow_rate_half": 0.00025, "slow_rate_twice": 0.001},
    }
    run = plan.study.run_spec("wide-dapo-s1")
    assert run.training.learning_rate == 0.001 and run.contrast is not None
    assert plan.study.run_spec("wide-slow-s1").contrast is None


def test_a_study_that_stops_when_it_is_certain_has_eight_seeds_at_each_rate() -> None:
    seeds = {"at_most": 16, "looks": [4, 16], "margin": 2.0}
    plan = smoke(validation=VALIDATION, methods={"dapo": {}, "grpo": {}}, seeds=seeds, diagnostics=None)
    assert plan.studies.by_folder["studies/rates/"].config.seeds == tuple(range(1, 9))


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
    targets = Targets(smoke(**changes))
    targets.by_name["all"]()
    with pytest.raises(UserError) as error:
        targets.by_name["rates"]()
    assert str(error.value).startswith(said)
