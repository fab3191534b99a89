"""`checkpoint: {best: ...}`: which policies are evaluated, under which names; nothing else of a study changes."""

import copy
from pathlib import Path
from typing import Any

import pytest

from evals.core.errors import InvalidInput
from rlvr.study.plan import Plan
from rlvr.study.source_files import REPOSITORY
from rlvr.study.study import Study
from rlvr.study.study_file import read_study_file
from tests.unit.study.planned import remade, stages_of

BEST = {"best": {"benchmark": "chain_3", "k": 2, "every": 2}}


def smoke(**changes: Any) -> dict[str, Any]:
    return copy.deepcopy(read_study_file(REPOSITORY / "config/smoke.yaml")) | changes


@pytest.fixture(scope="module")
def plan() -> Plan:
    return Plan.read(smoke(checkpoint=BEST), "mine.yaml")


def test_the_best_policies_stand_in_a_folder_of_their_own_under_their_methods_names(plan: Plan) -> None:
    rows = plan.evaluated_runs("best/")
    assert [row.run for row in rows[:3]] == ["tiny-base", "tiny-dapo_best-s1", "tiny-dapo_best-s2"]
    assert [row.method for row in rows[:3]] == ["base", "dapo", "dapo"]
    stages = stages_of(plan)
    assert stages["compare best/"].reference_method == "dapo"
    assert str(stages["sample tiny-dapo_best-s1"].checkpoint) == "results/runs/tiny-dapo_best-s1/manifest.json"
    assert stages["best_policy tiny-dapo_best-s1"].trained == "results/runs/tiny-dapo-s1"
    assert "tiny-dapo_best-s1" not in {row.run for row in plan.evaluated_runs("")}
    assert "tiny-dapo_best-s2" in {row.run for row in plan.evaluated_runs("studies/aggregation/best/")}


def test_a_best_policy_is_chosen_among_those_of_its_training_by_samples_of_their_own(plan: Plan) -> None:
    stages = stages_of(plan)
    choices = {str(step): Path(f"results/grades/tiny-dapo_choice{step}-s1/chain_3") for step in (2, 4)}
    choice = stages["best_policy tiny-dapo_best-s1"]
    assert choice.candidates == {step: path / "manifest.json" for step, path in choices.items()}
    chosen, last = (stages[f"sample_candidate tiny-dapo_choice{step}-s1"] for step in (2, 4))
    assert chosen.source == "results/runs/tiny-dapo-s1/checkpoints/step-2"
    assert last.source == "results/runs/tiny-dapo-s1"
    assert str(chosen.checkpoint) == "results/runs/tiny-dapo-s1/candidates.kept"
    assert stages["train tiny-dapo-s1"].kept_steps == stages["candidates tiny-dapo-s1"].steps == (2,)
    scored = stages["sample tiny-dapo-s1"]
    assert list(chosen.own) == ["chain_3"] and chosen.own["chain_3"].samples_per_problem == 2
    assert chosen.sampling == scored.sampling.model_copy(update={"seed": scored.sampling.seed + 1})


def test_nothing_of_the_study_itself_changes(plan: Plan) -> None:
    before = Plan.read(smoke(), "smoke.yaml")
    assert before.best == {} and Plan.read(smoke(checkpoint="last"), "last.yaml").best == {}
    shown = {"report_html", "track", "table_paper_vs_ours", "study_file"}  # papers that choose report what they chose
    assert {name.split()[0] for name in remade(before, plan)} == shown
    added = {
        name for name in stages_of(plan).keys() - stages_of(before).keys() if name.endswith(("checkpoints", "curves"))
    }
    assert added == {"table_checkpoints", "figure_validation_curves"}


def test_the_scores_that_decided_are_drawn_and_projected(plan: Plan) -> None:
    names = [f"tiny-{method}_best-s{seed}" for method in plan.study.methods for seed in (1, 2)]
    choices = tuple(Path(f"results/runs/{name}/chosen.json") for name in names)
    stages = stages_of(plan)
    assert stages["figure_validation_curves"].choices == stages["track"].choices == choices
    assert stages_of(Plan.read(smoke(), "smoke.yaml"))["track"].choices == ()


def test_published_numbers_stand_beside_what_was_chosen_alike(plan: Plan) -> None:
    table = stages_of(plan)["table_paper_vs_ours"]
    assert table.own["checkpoint"] == "best chain_3 avg@2"
    assert str(table.comparisons) == "results/best/comparisons.json"


@pytest.mark.parametrize(
    ("changes", "key", "accepted"),
    [
        ({"checkpoint": {"best": {**BEST["best"], "benchmark": "aime_2024"}}}, "checkpoint.best.benchmark", "chain_3"),
        ({"checkpoint": {"best": {**BEST["best"], "every": 4}}}, "checkpoint.best.every", "4 of dapo"),
        ({"checkpoint": BEST, "methods": {}, "reference_method": "base"}, "checkpoint.best", "none"),
        (
            {"checkpoint": BEST, "methods": {"dapo": {}, "dapo_best": {"extends": "delta"}}},
            "methods.dapo_best",
            "another",
        ),
        (
            {"checkpoint": BEST, "methods": {"dapo": {}, "dapo_choice2": {"extends": "delta"}}},
            "methods.dapo_choice2",
            "another",
        ),
    ],
)
def test_what_cannot_be_chosen_is_refused_before_work(changes: dict[str, Any], key: str, accepted: str) -> None:
    content = smoke(**changes)
    with pytest.raises(InvalidInput) as error:
        Plan.read(content, "mine.yaml")
    assert error.value.key == key and accepted in error.value.accepted


def test_verl_keeps_the_states_that_it_saves() -> None:
    content = read_study_file(REPOSITORY / "config/papers/delta.yaml")
    content["checkpoint"]["best"]["every"] = 6
    with pytest.raises(InvalidInput, match=r"multiple of execution\.checkpoint_interval, 4"):
        Study.resolve(content, "delta.yaml")
