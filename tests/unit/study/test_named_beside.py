"""A named study that is made and drawn beside another one."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from evals.core.errors import UserError
from rlvr.study.named import named_study_files, read_named_study
from rlvr.study.study import Study
from rlvr.study.validation import read_yaml

CONFIG = Path(__file__).resolve().parents[3] / "config"


def _write(directory: Path, name: str, **change: object) -> Path:
    study = {"title": "T", "paper": "2605.08666", "question": "Q?", "reference_method": "dapo", "seeds": [1]}
    path = directory / f"{name}.yaml"
    path.write_text(yaml.safe_dump({**study, "methods": {"dapo": {}, "grpo": {}}, **change}))
    return path


def test_studies_side_by_side_have_a_method_for_each_other_and_a_reference_at_the_same_place() -> None:
    for path in named_study_files().values():
        study = read_named_study(path)
        if "beside" not in study:
            continue
        other = read_named_study(named_study_files()[study["beside"]])
        place = list(study["methods"]).index(study["reference_method"])
        assert list(other["methods"]).index(other["reference_method"]) == place
        extended = [overrides.get("extends", name) for name, overrides in other["methods"].items()]
        assert extended == list(study["methods"])


def test_methods_at_the_unstable_learning_rate_differ_in_that_alone_and_are_compared_at_it() -> None:
    """A method at one learning rate against DAPO at another would show the learning rate."""
    config = read_yaml(CONFIG / "config.yaml")
    for name, file in named_study_files().items():
        content = read_named_study(file)
        own = {key: content[key] for key in ("seeds", "methods", "reference_method")}
        study = Study.resolve({**config, **own}, name)
        assert len({settings["learning_rate"] for settings in study.training.values()}) == 1, name


def test_beside_names_a_study_that_corresponds(tmp_path: Path) -> None:
    path = _write(tmp_path, "a", beside="b")
    with pytest.raises(UserError, match=r"^config/studies/a\.yaml: beside: is 'b'; accepted: $"):
        read_named_study(path)
    _write(tmp_path, "b", methods={"dapo": {}, "grpo": {}, "sapo": {}})
    with pytest.raises(UserError, match="accepted: a study with as many methods, 2,"):
        read_named_study(path)
    _write(tmp_path, "b", beside="a")
    with pytest.raises(UserError, match="no `beside` of its own"):
        read_named_study(path)
    _write(tmp_path, "b")
    assert read_named_study(path)["beside"] == "b"
