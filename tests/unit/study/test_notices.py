"""What a plan says of its hours: measured seconds a step, times steps, or that nothing was measured."""

from pathlib import Path

from evals.core.manifest import Manifest
from evals.core.yaml_file import read_yaml
from rlvr.study.notices import hours
from rlvr.study.source_files import REPOSITORY
from rlvr.study.study import Study


def test_hours_are_measured_steps_times_steps_or_are_said_to_be_unknown(tmp_path: Path) -> None:
    study = Study.resolve(read_yaml(REPOSITORY / "config/smoke.yaml"))
    (line,) = hours(study, tmp_path)
    assert line == "tiny: 6 trainings, hours not known: `rlvr-bench rehearse` measures a step"
    details = {"seconds_steps": 7200.0, "steps": 2}
    training = {"prompts_per_step": 4, "samples_per_prompt": 8}  # a rehearsal's: the study's steps are twice as large
    file = tmp_path / "runs/tiny-dapo-s1/manifest.json"
    Manifest("run", {}, {}, {"training": training}, "0" * 64, details).write(file)
    (line,) = hours(study, tmp_path)
    # 6 runs of 4 steps, two hours each: two methods have not been measured, and are taken to need as long.
    expected = "48 h one after another (1 methods measured, 2 others taken as their mean, 7.2e+03 s a step)"
    assert line == f"tiny: 6 trainings, {expected}"
