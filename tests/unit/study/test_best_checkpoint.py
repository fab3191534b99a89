"""`checkpoint: {best: ...}`: which policies are evaluated, under which names; nothing else of a study changes."""

import copy
from pathlib import Path
from typing import Any

import pytest

from evals.core.errors import InvalidInput
from rlvr.study.source_files import REPOSITORY
from rlvr.study.studies import Studies
from rlvr.study.study import Study
from rlvr.study.study_file import read_study_file
from tests.unit.study.planned import Job, jobs_of, remade

BEST = {"best": {"benchmark": "chain_3", "k": 2, "every": 2}}


def smoke(**changes: Any) -> dict[str, Any]:
    return copy.deepcopy(read_study_file(REPOSITORY / "config/smoke.yaml")) | changes


@pytest.fixture(scope="module")
def studies() -> Studies:
    return Studies(smoke(checkpoint=BEST), "mine.yaml")


@pytest.fixture(scope="module")
def jobs() -> dict[str, Job]:
    return jobs_of(smoke(checkpoint=BEST))


def test_the_best_policies_stand_in_a_folder_of_their_own(studies: Studies, jobs: dict[str, Job]) -> None:
    rows = studies.compared("best/")
    assert [row.run for row in rows[:3]] == ["tiny-base", "tiny-dapo_best-s1", "tiny-dapo_best-s2"]
    assert [row.method for row in rows[:3]] == ["base", "dapo", "dapo"]
    assert 'reference_method: "dapo"' in jobs["compare best/"].settings
    assert "results/runs/tiny-dapo_best-s1/manifest.json" in jobs["sample tiny-dapo_best-s1"].inputs
    assert jobs["best_policy tiny-dapo_best-s1"].params["trained"] == Path("results/runs/tiny-dapo-s1")
    assert "tiny-dapo_best-s1" not in {row.run for row in studies.compared("")}
    assert "tiny-dapo_best-s2" in {row.run for row in studies.compared("studies/aggregation/best/")}


def test_a_best_policy_is_chosen_by_samples_of_their_own(studies: Studies, jobs: dict[str, Job]) -> None:
    choices = {str(step): f"results/grades/tiny-dapo_choice{step}-s1/chain_3" for step in (2, 4)}
    assert jobs["best_policy tiny-dapo_best-s1"].params["candidates"] == choices
    chosen, last = (studies.policy(f"tiny-dapo_choice{step}-s1") for step in (2, 4))
    assert chosen.directory == "results/runs/tiny-dapo-s1/checkpoints/step-2"
    assert last.directory == "results/runs/tiny-dapo-s1"
    assert chosen.file == "results/runs/tiny-dapo-s1/candidates.kept"
    assert studies.kept_steps("tiny-dapo-s1") == studies.candidate_steps("tiny-dapo-s1") == [2]
    settings, scored = jobs["sample tiny-dapo_choice2-s1"].settings, jobs["sample tiny-dapo-s1"].settings
    assert {text for text in settings if text.startswith("of.chain_3.samples")} == {"of.chain_3.samples_per_problem: 2"}
    assert not any(text.startswith("of.variables_4") for text in settings)
    assert "seed: 2" in settings and "seed: 1" in scored


def test_nothing_of_the_study_itself_changes(jobs: dict[str, Job]) -> None:
    before = jobs_of(smoke())
    assert before.keys() == jobs_of(smoke(checkpoint="last")).keys()
    shown = {"all", "report_html", "track", "table_paper_vs_ours", "study_file"}  # papers that choose report the choice
    assert {name.split()[0] for name in remade(before, jobs)} == shown
    added = {name for name in jobs.keys() - before.keys() if name.endswith(("checkpoints", "curves"))}
    assert added == {"table_checkpoints", "figure_validation_curves"}


def test_a_best_policy_is_no_run_that_snakemake_tries_to_train(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    jobs_of(smoke(checkpoint=BEST))
    assert "KeyError" not in caplog.text + "".join(capfd.readouterr())


def test_the_scores_that_decided_are_drawn_and_projected(studies: Studies, jobs: dict[str, Job]) -> None:
    names = [f"tiny-{method}_best-s{seed}" for method in studies.main.methods for seed in (1, 2)]
    choices = {f"results/runs/{name}/chosen.json" for name in names}
    assert choices <= set(jobs["figure_validation_curves"].inputs) and choices <= set(jobs["track"].inputs)


def test_published_numbers_stand_beside_what_was_chosen_alike(jobs: dict[str, Job]) -> None:
    table = jobs["table_paper_vs_ours"]
    assert table.params["own"]["checkpoint"] == "best chain_3 avg@2"
    assert "results/best/comparisons.json" in table.inputs


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
        Studies(content, "mine.yaml")
    assert error.value.key == key and accepted in error.value.accepted


def test_verl_keeps_the_states_that_it_saves() -> None:
    content = read_study_file(REPOSITORY / "config/papers/delta.yaml")
    content["checkpoint"]["best"]["every"] = 6
    with pytest.raises(InvalidInput, match=r"multiple of execution\.checkpoint_interval, 4"):
        Study.resolve(content, "delta.yaml")
