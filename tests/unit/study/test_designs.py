"""`snakemake rates`: which trainings it adds, what they share with the study, and where no rate could be chosen."""

from typing import Any

import pytest

from evals.core.errors import InvalidInput, UserError
from rlvr.study.designs import RATES, describe, sheet_of
from rlvr.study.source_files import REPOSITORY
from rlvr.study.studies import Studies
from rlvr.study.study import Study
from rlvr.study.study_file import read_study_file
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


# A study's doses of difference between sampler and trainer: the trainings that they add, and what shows them.

METHODS = {"dapo": {}, "dapo_tis": {"training": {"gradient_clip": 0.5}}, "delta": {}, "gspo": {}}
DOSES = {"stale": [1, 2], "top_p": [0.95]}


def with_doses(**changes: Any) -> dict[str, Any]:
    controls = {"positive": "delta", "negative": "gspo"}
    sections = {"methods": METHODS, "doses": DOSES, "controls": controls}
    return study_with("smoke.yaml", **{**sections, **changes})


def test_every_method_but_controls_has_each_dose() -> None:
    study = Study.resolve(with_doses(), "smoke.yaml")
    sheet = sheet_of(study.config, {name: entry["title"] for name, entry in study.methods.items()})
    assert [(way.name, way.method, way.kind, way.dose) for way in sheet] == [
        *((name, name, "", "") for name in METHODS),
        *((f"{name}_stale_{dose}", name, "stale", dose) for dose in "12" for name in ("dapo", "dapo_tis")),
        *((f"{name}_top_p_0_95", name, "top_p", "0.95") for name in ("dapo", "dapo_tis")),
    ]
    plain, dosed = (study.resolved_run(f"tiny-{name}-s2") for name in ("dapo_tis", "dapo_tis_top_p_0_95"))
    assert dosed["training"] == {**plain["training"], "sampler": {"top_p": 0.95}} and dosed["method"] == plain["method"]
    assert study.methods["dapo_stale_2"]["title"] == "DAPO, stale 2"
    targets = jobs_of(with_doses())["all"].inputs
    assert "results/figures/doses.png" in targets and "results/tables/main.md" not in targets
    assert "results/runs/tiny-gspo-s1/manifest.json" in targets and not any("gspo_stale" in path for path in targets)


def test_a_study_that_is_read_from_its_results_has_the_same_methods() -> None:
    study = Study.resolve(with_doses())
    again = Study.resolve(study.config.to_json())
    assert list(again.methods) == list(study.methods) and len(study.methods) == 4 + 2 * 3
    assert again.training == study.training


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seeds": {"at_most": 4, "looks": [2, 4], "margin": 2.0}}, "doses: are given with looks; accepted: a list of"),
        (
            {"training": {**with_doses()["training"], "sampler": {"stale": 1}}},
            "doses: are given beside training.sampler",
        ),
    ],
)
def test_doses_that_could_not_be_compared_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput) as error:
        Study.resolve(with_doses(**changes), "mine.yaml")
    assert said in str(error.value) and "\n" not in str(error.value)


# A study's factorial: the methods that are its cells, what is refused, and what a plan says.

RATIO = {"name": "ratio", "levels": [{"level": "token"}, {"level": "sequence", "loss": {"name": "gspo"}}]}
NONE = {"level": "none", "loss": {"epsilon_low": 1.0, "epsilon_high": 1e6}}
CLIP = {"name": "clip", "levels": [{"level": "ratio"}, {"level": "probability", "loss": {"name": "dppo_tv"}}, NONE]}
RATE = {"name": "rate", "levels": [{"level": "once"}, {"level": "twice", "learning_rate_factor": 2.0}]}
MISSPELT = {"level": "x", "los": {}}
EXCLUDED = [{"ratio": "sequence", "clip": "probability"}]
PLAIN = {"extends": "dapo", "title": "Plain", "loss": {"dual_clip": None}}


def with_factors(factorial: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    declared = {"factors": [RATIO, CLIP, RATE], "excluded": EXCLUDED, **(factorial or {})}
    sections = {"methods": {"plain": PLAIN}, "reference_method": "plain", "factorial": declared}
    return study_with("smoke.yaml", **{**sections, **changes})


def test_cells_combine_the_changes_of_their_levels_and_have_their_own_table_and_figure() -> None:
    study = Study.resolve(with_factors(), "smoke.yaml")
    sheet = sheet_of(study.config, {name: entry["title"] for name, entry in study.methods.items()})
    cells = [way.name for way in sheet]
    assert cells[:3] == ["plain", "plain_001", "plain_010"] and len(cells) == 10 == len(study.methods)
    assert sheet[2].levels == {"ratio": "token", "clip": "probability", "rate": "once"}
    of_method = {name: study.resolved_run(f"tiny-{name}-s1") for name in cells}
    assert of_method["plain_120"]["method"]["loss"]["name"] == "gspo"
    assert of_method["plain_120"]["method"]["loss"]["epsilon_high"] == 1e6
    assert of_method["plain_011"]["method"]["loss"]["name"] == "dppo_tv"
    assert of_method["plain_011"]["training"]["learning_rate"] == 0.0006
    assert study.methods["plain_120"]["title"] == "ratio sequence, clip none"
    targets = jobs_of(with_factors())["all"].inputs
    assert "results/figures/factorial.png" in targets and "results/tables/main.md" not in targets
    again = Study.resolve(study.config.to_json())
    assert list(again.methods) == list(study.methods) and again.training == study.training


def test_the_planned_factorial_has_40_cells_on_two_sizes_and_says_what_it_cannot_tell_apart() -> None:
    study = Study.resolve(read_study_file(REPOSITORY / "config/factorial.yaml"), "factorial.yaml")
    assert len(study.trained_runs) == 2 * 2 * (40 + 2)
    assert study.config.factorial is not None
    said = " ".join(describe(study.config.factorial, 2))
    for part in ("40 of 96 cells", "ratio sequence with clip probability (16", "resolution 5", "main effects: 0.22"):
        assert part in said


@pytest.mark.parametrize(
    ("factorial", "changes", "said"),
    [
        ({}, {"methods": {"plain": PLAIN, "delta": {}}}, "beside the methods plain, delta; accepted: one, and"),
        ({}, {"seeds": [1]}, "seeds [1]; accepted: 2 or more"),
        ({}, {"doses": {"stale": [1]}}, "is given beside doses"),
        (
            {"excluded": [{"ratio": "sequence", "clip": "off"}]},
            {},
            "excluded: has clip: off; accepted: ratio: token, seq",
        ),
        ({"excluded": [{"ratio": "token", "clip": "ratio"}]}, {}, "has the first level of every factor"),
        ({"generators": {"clip": ["ratio", "rate"]}}, {}, "generators.clip: is ratio, rate; accepted: a factor of two"),
        ({"parts": {"Both": EXCLUDED[0]}}, {}, "by a cell that is excluded: ratio sequence, clip probability"),
        ({"parts": {"None": {"ratio": "token"}}}, {}, "parts: has the first level of every factor that it names"),
        ({"factors": [RATIO, RATIO]}, {}, "factors.ratio: is given twice"),
        (
            {"excluded": [{"ratio": "sequence", "rate": level} for level in ("once", "twice")]},
            {},
            "effect of ratio seq",
        ),
        ({"factors": [RATIO, {**RATE, "levels": [*RATE["levels"], MISSPELT]}], "excluded": []}, {}, "unknown key los"),
    ],
)
def test_factorials_without_effects_are_refused(factorial: dict[str, Any], changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput) as error:
        Study.resolve(with_factors(factorial, **changes), "mine.yaml")
    assert said in str(error.value) and "\n" not in str(error.value)
