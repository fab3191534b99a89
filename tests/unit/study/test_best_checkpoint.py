"""`checkpoint: {best: ...}`: which policies are evaluated, under which names; nothing else of a study changes."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from rlvr.study.cost import run_cost
from rlvr.study.model_size import ModelSize
from rlvr.study.sampled import SamplingJobs
from rlvr.study.trained import TrainingJobs

from evals.core.errors import InvalidInput
from rlvr.study.displayed import Displayed
from rlvr.study.plan import Plan
from rlvr.study.source_files import REPOSITORY
from rlvr.study.study import Study
from rlvr.study.study_file import read_study_file

BEST = {"best": {"benchmark": "chain_3", "k": 2, "every": 2}}


def smoke(**changes: Any) -> dict[str, Any]:
    return copy.deepcopy(read_study_file(REPOSITORY / "config/smoke.yaml")) | changes


@pytest.fixture(scope="module")
def plan() -> Plan:
    return Plan.read(smoke(checkpoint=BEST), "mine.yaml")


def test_the_best_policies_stand_in_a_folder_of_their_own_under_their_methods_names(plan: Plan) -> None:
    rows = json.loads(plan.run_sheet("best/"))
    assert [row["run"] for row in rows[:3]] == ["tiny-base", "tiny-dapo_best-s1", "tiny-dapo_best-s2"]
    assert [row["method"] for row in rows[:3]] == ["base", "dapo", "dapo"]
    assert plan.reference_method("best/") == "dapo"
    assert plan.checkpoint_manifest("tiny-dapo_best-s1") == "results/runs/tiny-dapo_best-s1/manifest.json"
    assert TrainingJobs(plan).trained_run("tiny-dapo_best-s1") == "results/runs/tiny-dapo-s1"
    assert "tiny-dapo_best-s1" not in plan.run_sheet("")
    assert "tiny-dapo_best-s2" in plan.run_sheet("studies/aggregation/best/")


def test_a_best_policy_is_chosen_among_those_of_its_training_by_samples_of_their_own(plan: Plan) -> None:
    choices = {step: f"results/grades/tiny-dapo_choice{step}-s1/chain_3" for step in (2, 4)}
    candidates = json.loads(TrainingJobs(plan).candidates("tiny-dapo_best-s1"))
    assert candidates == {str(step): path for step, path in choices.items()}
    assert plan.checkpoint("tiny-dapo_choice2-s1") == "results/runs/tiny-dapo-s1/checkpoints/step-2"
    assert plan.checkpoint("tiny-dapo_choice4-s1") == "results/runs/tiny-dapo-s1"  # the last one
    assert plan.checkpoint_manifest("tiny-dapo_choice2-s1") == "results/runs/tiny-dapo-s1/candidates.kept"
    assert TrainingJobs(plan).kept_steps("tiny-dapo-s1") == TrainingJobs(plan).candidate_steps("tiny-dapo-s1") == "2"
    chosen, scored = (SamplingJobs(plan).evaluation(f"tiny-dapo{kind}-s1", "chain_3") for kind in ("_choice2", ""))
    assert (chosen["samples_per_problem"], chosen["seed"]) == (2, scored["seed"] + 1)
    assert {key for key in scored if scored[key] != chosen[key]} == {"samples_per_problem", "seed"}
    assert json.loads(SamplingJobs(plan).other_benchmarks("tiny-dapo_choice2-s1", "chain_3")) == {}


def test_nothing_of_the_study_itself_changes(plan: Plan) -> None:
    before = Plan.read(smoke(), "smoke.yaml")
    assert before.best == {} and Plan.read(smoke(checkpoint="last"), "last.yaml").best == {}
    for run in before.trained:
        assert TrainingJobs(plan).run_spec(run) == TrainingJobs(before).run_spec(run)
        assert TrainingJobs(before).kept_steps(run) == "" or before.studies.runs[run][0] is not before.study
    assert plan.run_sheet("") == before.run_sheet("")
    scored, scored_before = (SamplingJobs(each).evaluation("tiny-dapo-s1", "chain_3") for each in (plan, before))
    assert scored == scored_before
    added = set(Displayed(plan).files("")) - set(Displayed(before).files(""))
    assert added == {"results/tables/checkpoints.md", "results/figures/validation_curves.png"}
    assert set(plan.intermediate("")) > set(before.intermediate(""))


def test_the_scores_that_decided_are_drawn_and_projected(plan: Plan) -> None:
    names = [f"tiny-{method}_best-s{seed}" for method in plan.study.methods for seed in (1, 2)]
    choices, shown = [f"results/runs/{name}/chosen.json" for name in names], Displayed(plan)
    assert shown.figure_inputs("", "validation_curves") == {"choices": choices, "runs": "results/runs.json"}


def test_published_numbers_stand_beside_what_was_chosen_alike() -> None:
    shown = Displayed(Plan.read(smoke(checkpoint=BEST), "mine.yaml"))
    assert json.loads(shown.own_settings())["checkpoint"] == "best chain_3 avg@2"
    assert shown.table_inputs("", "paper_vs_ours") == shown.results_inputs("best/")


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
    content.pop("diagnostics")
    with pytest.raises(InvalidInput) as error:
        Plan.read(content, "mine.yaml")
    assert error.value.key == key and accepted in error.value.accepted


def test_the_paper_that_chooses_its_checkpoints_is_planned_so_with_what_that_costs() -> None:
    content = read_study_file(REPOSITORY / "config/papers/delta.yaml")
    study = Study.resolve(content, "delta.yaml")
    assert study.config.best_checkpoint is not None
    last = Study.resolve({key: value for key, value in content.items() if key != "checkpoint"}, "last.yaml")
    ours, theirs = (run_cost(each, "qwen3_14b_base-delta-s1", ModelSize(14.8e9, 163840)) for each in (study, last))
    candidates, problems, mean = 300 // 4, 30, 30000 * 0.35
    assert ours.trained == theirs.trained
    scored = candidates * problems * 8 * mean + theirs.evaluated  # the chosen policy is scored like the last one
    assert ours.evaluated == pytest.approx(theirs.evaluated + scored)
    assert ours.disk - theirs.disk > candidates * 14.8e9 * 2


def test_verl_keeps_the_states_that_it_saves() -> None:
    content = read_study_file(REPOSITORY / "config/papers/delta.yaml")
    content["checkpoint"]["best"]["every"] = 6
    with pytest.raises(InvalidInput, match=r"multiple of execution\.checkpoint_interval, 4"):
        Study.resolve(content, "delta.yaml")
