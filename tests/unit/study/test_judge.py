"""Judging a component in a file: the study that it becomes, its budget, and what is said."""

from __future__ import annotations

import math
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from evals.core.comparisons import Comparison, Comparisons, Contrast, Verdict
from evals.core.errors import UserError
from evals.core.files import fingerprint
from evals.core.manifest import Manifest
from evals.core.records import ALL_BENCHMARKS
from rlvr.study import judge as module
from rlvr.study.judge import Judgement, contrast_words, find_component, read_base, verdict_line
from rlvr.study.study import Study
from tests.unit.methods.test_component_file import LOSS


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "my_loss.py"
    path.write_text(LOSS)
    return path


def judgement(file: Path, tmp_path: Path, against: Any = "dapo", name: str = "mine", **more: Any) -> Judgement:
    return Judgement(find_component(file, name), read_base(None, None, 0, tmp_path), against, tmp_path, **more)


@pytest.mark.parametrize("against", ["dapo", "gspo", "file"])
def test_the_controls_are_the_reference_but_for_one_change(file: Path, tmp_path: Path, against: str) -> None:
    other = file.with_name("other.py")
    other.write_text(LOSS.replace('"mine"', '"other"'))
    judged = judgement(file, tmp_path, find_component(other, "other") if against == "file" else against)
    judged.study()
    study = Study.resolve(judged.content([1]), "judge")
    of_reference = {"dapo": "DAPO", "gspo": "GSPO", "file": "Other"}[against]
    assert study.config.title == f"Mine against {of_reference}"
    assert study.methods[judged.harmful]["title"] == f"{of_reference}, half the steps"
    reference, mine, harmless, harmful = study.methods.values()
    described = ("title", "choices", "paper", "version")

    def differing(entry: dict[str, Any]) -> set[str]:
        return {key for key in entry if key not in described and entry[key] != reference[key]}

    assert [differing(each) for each in (mine, harmless, harmful)] == [{"loss"}, {"token_weights"}, set()]
    assert study.training[judged.harmful].steps * 2 == study.training[judged.reference].steps
    assert (judged.harmless == "delta_random_lambda") == (against == "dapo")  # the default study's, with its trainings


def test_an_aggregation_is_judged_with_the_references_loss(file: Path, tmp_path: Path) -> None:
    judged = judgement(file, tmp_path, name="by_length")
    judged.study()
    loss = Study.resolve(judged.content([1]), "judge").methods["by_length"]["loss"]
    assert loss["name"] == "clipped" and loss["aggregation"]["name"] == "by_length"


@pytest.mark.parametrize("name", ["sapo", "dapo_half_steps"])
def test_a_name_that_is_taken_is_refused(file: Path, tmp_path: Path, name: str) -> None:
    file.write_text(LOSS.replace('"mine"', f'"{name}"'))
    with pytest.raises(UserError, match=f"has the name {name} of another method; accepted: another name"):
        judgement(file, tmp_path, name=name).study()


def test_of_several_components_one_is_named(file: Path) -> None:
    with pytest.raises(UserError, match="has 3 components; accepted: --name with one of mine, centred, by_length"):
        find_component(file)
    with pytest.raises(UserError, match="has no component called x; accepted: --name with one of mine"):
        find_component(file, "x")


def test_each_pretrained_model_has_a_study_file_of_its_own(tmp_path: Path) -> None:
    bases = [read_base(None, model, gpus, tmp_path) for model, gpus in (("a/one", 1), ("a/two", 1), ("a/one", 4))]
    assert [base["models"] for base in bases[:2]] != [bases[2]["models"]] * 2 and len(list(tmp_path.iterdir())) == 3
    assert read_base(None, "a/one", 1, tmp_path) == bases[0]
    (tmp_path / "a_one_on_1_gpus.yaml").write_text((tmp_path / "a_two_on_1_gpus.yaml").read_text())
    with pytest.raises(UserError, match="has another model than a/one; accepted: another directory as --out"):
        read_base(None, "a/one", 1, tmp_path)


def test_a_first_look_that_exceeds_the_budget_is_said(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock({6: Verdict.BETTER}, 0.0)
    monkeypatch.setattr(module, "run_study", clock.run)
    monkeypatch.setattr(Comparisons, "read", clock.read)
    judged = judgement(file, tmp_path, minutes=2.0, cores=2)
    for name, seconds in ((judged.method, 50.0), ("dapo", 20.0)):
        directory = tmp_path / f"results/runs/skips-{name}-s1"
        directory.mkdir(parents=True)
        Manifest("run", {}, {}, {}, fingerprint({}), {"seconds_steps": seconds}).write(directory / "manifest.json")
    assert judged.first_seconds(4) == (3 * 50 + 3 * 20 + 4 * 20 + 4 * 10) / 2
    judged.decide(time.monotonic())
    assert "needs about 4.4 minutes of training: it ends after --minutes 2" in capsys.readouterr().err
    judgement(file, tmp_path, minutes=5.0, cores=2).decide(time.monotonic())
    assert "minutes of training" not in capsys.readouterr().err


class Clock:
    """Seconds that pass where a study runs, and the verdicts that it comes to."""

    def __init__(self, verdicts: dict[int, Verdict], seconds_of_seed: float) -> None:
        self.now, self.verdicts, self.seconds, self.looks = 0.0, verdicts, seconds_of_seed, [0]

    def monotonic(self) -> float:
        return self.now

    def run(self, content: dict[str, Any], *_unused: object) -> None:
        self.now += self.seconds * (content["seeds"]["looks"][-1] - self.looks[-1])
        self.looks.append(content["seeds"]["looks"][-1])

    def read(self, _path: Path) -> Any:
        verdicts = {"mine": self.verdicts.get(self.looks[-1], Verdict.UNDECIDED), "dapo_half_steps": Verdict.WORSE}
        rows = [
            Comparison.model_construct(method=name, against="dapo", benchmark=ALL_BENCHMARKS, verdict=verdict)
            for name, verdict in verdicts.items()
        ]
        return Comparisons.model_construct(comparisons=tuple(rows))


@pytest.mark.parametrize(
    ("verdicts", "minutes", "looks"),
    [
        ({9: Verdict.BETTER}, math.inf, [6, 9]),
        ({}, math.inf, [6, 9, 12, 15]),
        ({}, 12.0, [6, 9, 12]),  # a minute a seed: the look at 15 would end after 15
        ({}, 0.5, [6]),  # what the first look takes nobody knows
    ],
)
def test_looks_end_with_certainty_or_the_budget(
    file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    verdicts: dict[int, Verdict],
    minutes: float,
    looks: list[int],
) -> None:
    clock = Clock(verdicts, 60.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock.monotonic))
    monkeypatch.setattr(module, "run_study", clock.run)
    monkeypatch.setattr(Comparisons, "read", clock.read)
    judged = judgement(file, tmp_path, minutes=minutes)
    assert judged.decide(0.0)["mine"].verdict is verdicts.get(looks[-1], Verdict.UNDECIDED)
    assert clock.looks == [0, *looks]
    if minutes < math.inf:
        with pytest.raises(UserError, match="are over before the first look"):
            judged.decide(clock.now - 60 * minutes - 1)


@pytest.mark.parametrize(
    ("interval", "above", "absent"),
    [((0.8, 1.3), False, True), (None, False, True), ((0.8, 3.0), False, False), ((1.1, 1.5), True, False)],
)
def test_only_an_angle_near_its_floor_cannot_be_told_apart(interval: Any, above: bool, absent: bool) -> None:
    contrast = Contrast(
        model="tiny", method="mine", against="dapo", degrees=5.0, floor_degrees=4.0, slope_degrees=None,
        ratio_interval=interval, is_above_floor=above, seeds=1,
    )  # fmt: skip
    words = contrast_words(contrast, "dapo")
    assert ("no study of this model can tell them apart" in words) == absent and "weights: 4.0" in words
    assert contrast_words(None, "dapo").startswith("contrast: not measured")


def test_the_last_line_has_the_numbers_of_the_page() -> None:
    comparison = Comparison(
        model="tiny",
        method="mine",
        against="dapo",
        benchmark=ALL_BENCHMARKS,
        method_average=0.5,
        against_average=0.548,
        difference=-0.048,
        standard_error=0.01,
        confidence_interval=(-0.076, -0.021),
        p_value=0.001,
        minimum_detectable_effect=0.045,
        seeds=4,
        against_seeds=4,
        problems=480,
        p_value_holm=None,
        verdict=Verdict.WORSE,
        fell=1,
        against_fell=0,
    )
    columns = {"tokens_generated": [100.0, 250.0], "contrast_degrees": [None, 47.9]}
    table = pd.DataFrame(columns, index=["dapo", "mine"])
    before = "mine: worse than dapo, -4.8 points [-7.6, -2.1]; 4 seeds; MDE 4.5; "
    after = "1 of 4 fell [1, 81], dapo 0 of 4: no difference shown; 2.5 times the tokens"
    assert verdict_line(comparison, table, 9.8) == f"{before}contrast 47.9 degrees; {after}; 9.8 minutes"
    unmeasured = table.drop(columns="contrast_degrees")
    assert verdict_line(comparison, unmeasured, 9.8) == f"{before}{after}; 9.8 minutes"


def test_the_nth_judgement_against_the_same_runs_has_an_nth_of_the_level(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[dict[str, Any]] = []

    def run(content: dict[str, Any], *_unused: object) -> None:
        asked.append(content)

    clock = Clock({4: Verdict.BETTER}, 1.0)
    clock.looks = [4]
    monkeypatch.setattr(module, "run_study", run)
    monkeypatch.setattr(Comparisons, "read", clock.read)
    judged = judgement(file, tmp_path)
    judged.decide(0.0)
    file.write_text(LOSS + "# changed\n")
    changed = judgement(file, tmp_path)
    changed.decide(0.0)
    changed.decide(0.0)  # the same command goes on with the same number
    of_gspo = judgement(file, tmp_path, "gspo")
    assert of_gspo.number() == 1
    assert [content["seeds"].get("level") for content in asked] == [None, 2.5, 2.5]
    assert [content["title"].partition(",")[2] for content in asked] == ["", " judgement 2", " judgement 2"]
    assert capsys.readouterr().out.count("judgement 2 here against the same runs of dapo: it may err in 2.5 %") == 2
