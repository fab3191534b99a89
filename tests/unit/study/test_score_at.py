"""A named study that is scored along its training: the studies of its methods at earlier steps."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from evals.core.errors import UserError
from rlvr.study.named import read_named_study, resolve_earlier, resolve_named_study, resolve_studies, score_points
from rlvr.study.validation import read_yaml

CONFIG = Path(__file__).resolve().parents[3] / "config"
METHODS = {"dapo": {}, "wide": {"extends": "delta", "token_weights": {"lambda_max": 1.5}, "training": {"steps": 10}}}


@pytest.fixture
def study_file(tmp_path: Path) -> Path:
    study = {"title": "T", "paper": "2605.21467", "question": "Q?", "reference_method": "dapo", "seeds": [1]}
    path = tmp_path / "along.yaml"
    path.write_text(yaml.safe_dump({**study, "score_at": [0.5, 0.25], "methods": METHODS}))
    return path


def test_an_earlier_method_differs_in_its_steps_alone(study_file: Path) -> None:
    config = read_yaml(CONFIG / "config.yaml")
    steps = config["training"]["steps"]
    study = resolve_named_study("along", study_file, config)
    earlier = resolve_earlier(study_file, study)
    assert earlier is not None
    assert score_points(study, earlier, [0.5, 0.25]) == {
        "dapo": [(steps // 4, f"dapo_step{steps // 4}"), (steps // 2, f"dapo_step{steps // 2}"), (steps, "dapo")],
        "wide": [(2, "wide_step2"), (5, "wide_step5"), (10, "wide")],
    }
    assert earlier.methods["wide_step5"]["token_weights"] == study.methods["wide"]["token_weights"]
    assert earlier.training["wide_step5"] == {**study.training["wide"], "steps": 5}
    assert [run.seed for run in earlier.trained_runs] == [1] * 4


def test_the_selection_study_is_scored_along_its_training() -> None:
    studies = resolve_studies(read_yaml(CONFIG / "config.yaml"), "config.yaml")
    assert "studies/selection/steps/" in studies.by_scope
    assert "tiny-delta_top_lambda_step10-s1" in studies.runs
    assert not studies.refused


def test_a_part_outside_the_training_is_refused(study_file: Path) -> None:
    content = yaml.safe_load(study_file.read_text())
    study_file.write_text(yaml.safe_dump({**content, "score_at": [1.0]}))
    with pytest.raises(UserError, match=r"config/studies/along\.yaml: score_at"):
        read_named_study(study_file)
