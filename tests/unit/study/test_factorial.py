"""A study's factorial: the methods that are its cells, what is refused, and what a plan says."""

from typing import Any

import pytest

from evals.core.errors import InvalidInput
from rlvr.study.designs import describe, sheet_of
from rlvr.study.source_files import REPOSITORY
from rlvr.study.study import Study
from rlvr.study.study_file import read_study_file
from tests.unit.study.planned import jobs_of, study_with

RATIO = {"name": "ratio", "levels": [{"level": "token"}, {"level": "sequence", "loss": {"name": "gspo"}}]}
NONE = {"level": "none", "loss": {"epsilon_low": 1.0, "epsilon_high": 1e6}}
CLIP = {"name": "clip", "levels": [{"level": "ratio"}, {"level": "probability", "loss": {"name": "dppo_tv"}}, NONE]}
RATE = {"name": "rate", "levels": [{"level": "once"}, {"level": "twice", "learning_rate_factor": 2.0}]}
EXCLUDED = [{"ratio": "sequence", "clip": "probability"}]
PLAIN = {"extends": "dapo", "title": "Plain", "loss": {"dual_clip": None}}


def smoke(factorial: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    declared = {"factors": [RATIO, CLIP, RATE], "excluded": EXCLUDED, **(factorial or {})}
    sections = {"methods": {"plain": PLAIN}, "reference_method": "plain", "factorial": declared}
    return study_with("smoke.yaml", **{**sections, **changes})


def test_cells_combine_the_changes_of_their_levels_and_have_their_own_table_and_figure() -> None:
    study = Study.resolve(smoke(), "smoke.yaml")
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
    targets = jobs_of(smoke())["all"].inputs
    assert "results/figures/factorial.png" in targets and "results/tables/main.md" not in targets
    again = Study.resolve(study.config.to_json())
    assert list(again.methods) == list(study.methods) and again.training == study.training


def test_the_planned_factorial_has_40_cells_on_two_sizes_and_says_what_it_cannot_tell_apart() -> None:
    study = Study.resolve(read_study_file(REPOSITORY / "config/factorial.yaml"), "factorial.yaml")
    assert len(study.trained_runs) == 2 * 2 * (40 + 2)
    assert study.config.factorial is not None
    said = " ".join(describe(study.config.factorial, 2))
    for part in (
        "40 of 96 cells",
        "ratio sequence with clip probability (16 cells)",
        "resolution 5",
        "main effects: 0.22",
    ):
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
        (
            {"factors": [RATIO, {**RATE, "levels": [*RATE["levels"], {"level": "x", "los": {}}]}], "excluded": []},
            {},
            "los",
        ),
    ],
)
def test_factorials_without_effects_are_refused(factorial: dict[str, Any], changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput) as error:
        Study.resolve(smoke(factorial, **changes), "mine.yaml")
    assert said in str(error.value) and "\n" not in str(error.value)
