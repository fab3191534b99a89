"""The plan of a study that stops when it is certain: what is trained up to which look."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from evals.core.comparisons import Look, Looks, Verdict
from evals.core.files import write_json
from rlvr.study.looks import announce_look, next_look
from rlvr.study.studies import Studies
from rlvr.study.study_file import read_study_file
from tests.unit.study.planned import Job, changed, jobs_of, replaced

REPOSITORY = Path(__file__).resolve().parents[3]
SEEDS = {"at_most": 6, "looks": [2, 4, 6], "margin": 2.0}


@pytest.fixture
def content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.chdir(tmp_path)
    return read_study_file(REPOSITORY / "config/smoke.yaml")


def said_of(studies: Studies) -> str | None:
    said = next_look(studies.left(""), studies.looks(""))
    return said and said[0]


def runs_of(studies: Studies, folder: str) -> set[tuple[str, int]]:
    return {(row.method, row.seed) for row in studies.compared(folder) if row.seed is not None}


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
    def said() -> str | None:
        return said_of(changed(content, "seeds", SEEDS))

    words = (
        "Stops when certain: {} training runs up to the look after {} seeds, where {} comparisons are open; at most "
    )
    assert said() == words.format(6, 2, 2) + "18 training runs in all"
    first = decide(2, {DELTA: Verdict.WORSE, BALANCED: None})
    assert said() == words.format(10, 4, 1) + "14 training runs in all"
    decide(4, {BALANCED: Verdict.EQUIVALENT}, first)
    assert said() == "All looks are taken: 10 training runs in all"
    assert said_of(changed(content, "seeds", [1, 2])) is None


def test_the_display_is_told_the_jobs_of_looks(content: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    studies = changed(content, "seeds", SEEDS)
    with caplog.at_level("INFO", "told"):
        announce_look(studies.left(""), studies.looks(""), logging.getLogger("told"))
    (record,) = caplog.records
    assert record.__dict__["look"] == {
        "seeds": 2,
        "planned": {"train": 6, "sample": 6, "grade": 6},  # 3 methods, 2 seeds
        "possible": {"train": 18, "sample": 18, "grade": 18},
    }


DELTA, BALANCED = "delta", "dapo_query_preserved_reward_balanced"


def test_every_look_has_its_seeds_of_what_is_left_and_of_the_reference(content: dict[str, Any]) -> None:
    studies = changed(content, "seeds", SEEDS)
    first = decide(2, {DELTA: Verdict.WORSE, BALANCED: None})
    assert len(runs_of(studies, "looks/2/")) == 6
    four = {(method, seed) for method in ("dapo", BALANCED) for seed in (1, 2, 3, 4)}
    assert runs_of(studies, "looks/4/") == four
    looks = studies.looks("")
    assert looks["looks/4/"].earlier == "looks/2/"
    assert 0.05 > looks["looks/2/"].level > looks["looks/4/"].level > 0
    assert [name for name, look in looks.items() if look.is_due][-1] == "looks/6/"
    decide(4, {BALANCED: Verdict.EQUIVALENT}, first)
    assert [name for name, look in studies.looks("").items() if look.is_due][-1] == "looks/4/"
    assert runs_of(studies, "") == {(DELTA, 1), (DELTA, 2), *four}


@pytest.mark.parametrize("target", ["all", "results/tables/main.md", "results/report.html", "tables"])
def test_a_file_as_target_plans_the_runs_that_its_name_plans(content: dict[str, Any], target: str) -> None:
    """A file that is asked for by its path took all seeds before: it went around the looks."""
    jobs = jobs_of(replaced(content, "seeds", SEEDS), target)
    assert {name for name in jobs if name.startswith("train ")} == {
        f"train tiny-{method}-s{seed}" for method in ("dapo", DELTA, BALANCED) for seed in (1, 2)
    }
    assert "look looks/2/" in jobs and "look looks/4/" not in jobs


def test_another_margin_makes_decisions_again_and_another_level_the_comparisons(content: dict[str, Any]) -> None:
    def planned(seeds: dict[str, Any]) -> dict[str, Job]:
        return jobs_of(replaced(content, "seeds", seeds))

    before, wide = planned(SEEDS), planned({**SEEDS, "margin": 3.0})
    assert before["look looks/2/"].settings != wide["look looks/2/"].settings
    assert before["compare looks/2/"].settings == wide["compare looks/2/"].settings
    fewer = planned({**SEEDS, "at_most": 8, "looks": [2, 8]})
    assert before["compare looks/2/"].settings != fewer["compare looks/2/"].settings
