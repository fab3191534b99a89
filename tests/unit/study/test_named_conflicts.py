"""Named studies share their runs with the study at hand, and stand in its way in nothing."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from rlvr.study.named import resolve_studies
from rlvr.study.validation import read_yaml

CONFIG = Path(__file__).resolve().parents[3] / "config"


@pytest.mark.parametrize("name", ["config.yaml", "smoke.yaml"])
def test_every_named_study_can_be_run_beside_the_shipped_studies(name: str) -> None:
    config = read_yaml(CONFIG / name)
    studies = resolve_studies(config, name)
    assert studies.refused == {}
    named = {scope for scope in studies.by_scope if scope.count("/") == 2}
    assert named == {f"studies/{path.stem}/" for path in (CONFIG / "studies").glob("*.yaml")}
    for study in studies.by_scope.values():
        assert [run.run for run in study.runs if run.run not in studies.runs] == []
        assert len(study.config["seeds"]) <= len(config["seeds"])
        for run in study.trained_runs:
            assert studies.runs[run.run][0].resolved_run(run.run) == study.resolved_run(run.run)


@pytest.mark.parametrize(
    "change",
    [
        {"token_weights": {"lambda_max": 1.5}},
        {"extends": "dapo", "token_weights": {"name": "delta"}},
        {"training": {"steps": 7}},
    ],
)
def test_a_study_that_means_something_else_by_a_name_blocks_the_named_studies_that_use_it_alone(
    change: dict[str, Any],
) -> None:
    config = copy.deepcopy(read_yaml(CONFIG / "config.yaml"))
    config["methods"]["delta"] = change
    studies = resolve_studies(config, "mine.yaml")
    assert list(studies.refused) == ["studies/ablations/"]
    message = studies.refused["studies/ablations/"]
    assert message.startswith("config/studies/ablations.yaml: methods.delta: is not what mine.yaml means by that name")
    assert "\n" not in message
    assert studies.runs["tiny-delta-s1"][0] is studies.by_scope[""]
    assert not any(run.startswith("tiny-delta_refinements_2") for run in studies.runs)
