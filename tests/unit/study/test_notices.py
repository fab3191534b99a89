"""What a plan says of its hours: measured seconds a step, times steps, or that nothing was measured."""

from pathlib import Path

import pytest

from evals.core.manifest import Manifest
from evals.core.yaml_file import read_yaml
from rlvr.study.notices import hours, notices
from rlvr.study.source_files import REPOSITORY
from rlvr.study.study import Study


def test_hours_are_measured_steps_times_steps_or_are_said_to_be_unknown(tmp_path: Path) -> None:
    study = Study.resolve(read_yaml(REPOSITORY / "config/smoke.yaml"))
    (line,) = hours(study, tmp_path)
    assert line == "tiny: 6 training runs, hours not known: `rlvr-bench rehearse` measures a step"
    details = {"seconds_steps": 7200.0, "steps": 2}
    training = {"prompts_per_step": 4, "samples_per_prompt": 8}  # a rehearsal's: the study's steps are twice as large
    file = tmp_path / "runs/tiny-dapo-s1/manifest.json"
    Manifest("run", {}, {}, {"training": training}, "0" * 64, details).write(file)
    (line,) = hours(study, tmp_path)
    # 6 runs of 4 steps, two hours each: two methods have not been measured, and are taken to need as long.
    expected = "48 h one after another (1 methods measured, 2 others taken as their mean, 7.2e+03 s a step)"
    assert line == f"tiny: 6 training runs, {expected}"


@pytest.mark.parametrize(("key", "said"), [("secret", "the key of"), ("", "no key, for want of")])
def test_a_plan_says_which_address_a_key_goes_to(monkeypatch: pytest.MonkeyPatch, key: str, said: str) -> None:
    monkeypatch.setenv("OTHER_API_KEY", key)
    content = read_yaml(REPOSITORY / "config/smoke.yaml")
    for part in ("methods", "reference_method", "training", "problems", "seeds"):
        del content[part]
    served = {"source": "server", "base_url": "http://elsewhere/v1", "model": "m", "api_key_variable": "OTHER_API_KEY"}
    content["models"] = {"served": {**served, "prompt_form": "base"}}
    content["execution"] = {"device": "cpu", "sampling_threads": 1, "grading_workers": 1}
    (line,) = notices(Study.resolve(content))
    assert line == f"models.served: http://elsewhere/v1 is asked for m, with {said} OTHER_API_KEY"
