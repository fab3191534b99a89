"""The plan of a study that stops when it is certain: what is trained up to which look."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evals.core.comparisons import Look, Looks, Verdict
from evals.core.files import write_json
from rlvr.study.looks import announce_look, next_look
from rlvr.study.plan import Plan
from rlvr.study.study_file import read_study_file
from rlvr.study.targets import Targets
from tests.unit.study.planned import changed, stages_of

REPOSITORY = Path(__file__).resolve().parents[3]
SEEDS = {"at_most": 6, "looks": [2, 4, 6], "margin": 2.0}


@pytest.fixture
def content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.chdir(tmp_path)
    return read_study_file(REPOSITORY / "config/smoke.yaml")


def decide(seeds: int, verdicts: dict[str, Verdict | None], earlier: tuple[Look, ...] = ()) -> tuple[Look, ...]:
    looks = tuple(
        Look(
            model="tiny", method=method, seeds=seeds, level=0.01, level_alone=0.02, difference=0.0, interval=None,
            verdict=verdict,
        )
        for method, verdict in verdicts.items()
    )  # fmt: skip
    write_json(Path(f"results/looks/{seeds}/decisions.json"), Looks(margin=0.02, looks=(*earlier, *looks)).to_json())
    return (*earlier, *looks)


def test_a_plan_says_what_is_trained_up_to_the_next_look_and_at_most(content: dict[str, Any]) -> None:
    def said() -> str:
        plan = changed(content, "seeds", SEEDS)
        return str(next_look(plan.in_folder(""), plan.studies.looks))

    words = (
        "Stops when certain: {} training runs up to the look after {} seeds, where {} comparisons are open; at most "
    )
    assert said() == words.format(6, 2, 2) + "18 training runs in all"
    first = decide(2, {DELTA: Verdict.WORSE, BALANCED: None})
    assert said() == words.format(10, 4, 1) + "14 training runs in all"
    decide(4, {BALANCED: Verdict.EQUIVALENT}, first)
    assert said() == "All looks are taken: 10 training runs in all"
    plan = changed(content, "seeds", [1, 2])
    assert next_look(plan.study, plan.studies.looks) is None


def test_the_display_is_told_the_jobs_up_to_the_next_look_and_those_that_are_possible(
    content: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    plan = changed(content, "seeds", SEEDS)
    with caplog.at_level("INFO", "told"):
        announce_look(plan.in_folder(""), plan.studies.looks, logging.getLogger("told"))
    (record,) = caplog.records
    assert record.__dict__["look"] == {
        "seeds": 2,
        "planned": {"train": 6, "sample": 6, "grade": 6},  # 3 methods, 2 seeds
        "possible": {"train": 18, "sample": 18, "grade": 18},
    }


DELTA, BALANCED = "delta", "dapo_query_preserved_reward_balanced"


def test_every_look_has_its_seeds_of_what_is_left_and_of_the_reference(content: dict[str, Any]) -> None:
    first = decide(2, {DELTA: Verdict.WORSE, BALANCED: None})
    stages = stages_of(changed(content, "seeds", SEEDS))
    assert len(stages["score looks/2/ chain_3"].grades) == 6
    assert {path.parts[2] for path in stages["score looks/4/ chain_3"].grades} == {
        f"tiny-{method}-s{seed}" for method in ("dapo", BALANCED) for seed in (1, 2, 3, 4)
    }
    assert stages["look looks/4/"].earlier == (Path("results/looks/2/decisions.json"),)
    assert stages["compare looks/4/"].confidence > stages["compare looks/2/"].confidence > 0.95
    assert stages["compare"].decisions == (Path("results/looks/6/decisions.json"),)
    decide(4, {BALANCED: Verdict.EQUIVALENT}, first)
    left = stages_of(changed(content, "seeds", SEEDS))
    assert left["compare"].decisions == (Path("results/looks/4/decisions.json"),)
    sheet = {(run["method"], run["seed"]) for run in left["run_sheet"].sheet if run["seed"]}
    assert sheet == {
        (DELTA, 1),
        (DELTA, 2),
        *((method, seed) for method in ("dapo", BALANCED) for seed in (1, 2, 3, 4)),
    }


def test_another_margin_makes_decisions_again_and_another_level_the_comparisons(content: dict[str, Any]) -> None:
    def settings(seeds: dict[str, Any], stage: str) -> dict[str, Any]:
        return dict(stages_of(changed(content, "seeds", seeds))[stage].settings())

    wide = {**SEEDS, "margin": 3.0}
    assert settings(SEEDS, "look looks/2/") != settings(wide, "look looks/2/")
    assert settings(SEEDS, "compare looks/2/") == settings(wide, "compare looks/2/")
    shorter = {**SEEDS, "looks": [2, 4]}  # with the same number at most
    assert settings(SEEDS, "compare looks/4/") == settings(shorter, "compare looks/4/")
    assert settings(SEEDS, "compare looks/4/") != settings({**SEEDS, "looks": [4]}, "compare looks/4/")


def test_what_was_planned_by_the_decisions_that_are_there_is_not_planned_again(content: dict[str, Any]) -> None:
    """Planning takes a second: for each of five looks of a finished study it would take longer than all the rest."""
    plans = list[int]()

    def files_after(targets: Targets) -> list[str]:
        return targets.after_looks("all", lambda folder: None, targets.by_name["runs"])()

    def plan_anew() -> Plan:
        plans.append(1)
        return changed(content, "seeds", SEEDS)

    first = decide(2, {DELTA: Verdict.WORSE, BALANCED: None})
    decide(4, {BALANCED: Verdict.EQUIVALENT}, first)
    targets = Targets(changed(content, "seeds", SEEDS), plan_anew)
    before = files_after(targets)
    assert not plans and "results/runs/tiny-delta-s3/manifest.json" not in before
    targets = Targets(changed(content, "seeds", SEEDS), plan_anew)
    decide(2, {DELTA: None, BALANCED: None})  # as where its comparisons were made again
    decide(4, {DELTA: Verdict.WORSE, BALANCED: Verdict.EQUIVALENT}, first)
    after = files_after(targets)
    assert plans and "results/runs/tiny-delta-s4/manifest.json" in after


def test_jobs_that_snakemake_plans_have_their_files_and_others_none(content: dict[str, Any]) -> None:
    jobs = Targets(changed(content, "seeds", SEEDS)).jobs
    (runs,) = (kind for kind in jobs.kinds if kind.name == "train")

    def ask(seed: int) -> Path:
        path: Path = runs.of(lambda stage: stage.job_file)(SimpleNamespace(run_id=f"tiny-delta-s{seed}"))
        return path

    before = ask(1)
    assert not before.exists(), "a plan alone writes nothing"
    jobs.start()
    assert before.exists() and len(list(Path("results/jobs").rglob("*.json"))) == 1
    assert ask(2).exists(), "planned after a look"
    was_there = runs.of(lambda stage: stage.job_file.exists())(SimpleNamespace(run_id="tiny-delta-s3"))
    assert was_there is False, "what is asked of a stage comes before its file, which would answer for lost notes"
    before.unlink()
    jobs.become(jobs.stages)
    assert before.exists() and len(list(Path("results/jobs").rglob("*.json"))) == 3
