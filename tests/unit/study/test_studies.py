"""Named studies: they share their runs with the main study, stand in its way in nothing."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from evals.core.comparisons import Controls
from evals.core.errors import InvalidInput, UserError
from evals.core.yaml_file import read_yaml
from rlvr.study.policies import earlier_policies, score_points
from rlvr.study.studies import Studies, named_study_files, resolve_named_study
from rlvr.study.study import Study
from rlvr.study.study_file import read_extended, read_study_file
from tests.unit.study.planned import jobs_of

CONFIG = Path(__file__).resolve().parents[3] / "config"


def write(directory: Path, name: str, **change: object) -> Path:
    (directory / "main.yml").touch()
    study = {"extends": "main.yml", "study": name, "folder": f"studies/{name}", "reference_method": "dapo"}
    path = directory / f"{name}.yaml"
    path.write_text(yaml.safe_dump({**study, "seeds": [1], "methods": {"dapo": {}, "grpo": {}}, **change}))
    return path


def refused(studies: Studies) -> dict[str, str]:
    """The studies of config/studies that do not go with the main one, but for the rates, with the complaints."""
    complaints = {}
    for name in named_study_files():
        try:
            studies.folder_of(name)
        except UserError as error:
            complaints[name] = str(error)
    return complaints


def resolved(path: Path, content: dict[str, Any]) -> Study:
    return resolve_named_study(path, Study.resolve(content), content)


@pytest.mark.parametrize("name", ["config.yaml", "smoke.yaml"])
def test_every_named_study_can_be_run_beside_the_shipped_studies(name: str) -> None:
    studies = Studies(read_yaml(CONFIG / name), name)
    assert refused(studies) == {}
    named = {folder for folder in studies.by_folder if folder} - {"studies/rates/"}
    assert named == {f"studies/{path.stem}/" for path in (CONFIG / "studies").glob("*.yaml")}
    for study in studies.by_folder.values():
        assert len(study.config.training_seeds) <= len(studies.main.config.training_seeds)
        for run in study.trained_runs:
            policy = studies.policy(run.run)
            assert policy.directory == f"results/runs/{run.run}"
            same = policy.study.resolved_run(run.run) | {"contrast": None}
            assert study.resolved_run(run.run) | {"contrast": None} == same


@pytest.mark.parametrize(
    "change",
    [
        {"token_weights": {"lambda_max": 1.5}},
        {"extends": "dapo", "token_weights": {"name": "delta"}},
        {"training": {"steps": 7}},
    ],
)
def test_another_meaning_of_a_name_blocks_the_studies_that_use_it(change: dict[str, Any]) -> None:
    config = copy.deepcopy(read_study_file(CONFIG / "sharpening.yaml"))
    config["methods"]["delta"] = change
    studies = Studies(config, "mine.yaml")
    assert list(refused(studies)) == ["ablations"]
    message = refused(studies)["ablations"]
    assert message.startswith("config/studies/ablations.yaml: methods.delta: ") and "mine.yaml" in message
    assert "\n" not in message
    assert studies.policy("tiny-delta-s1").study is studies.main
    assert not any(run.startswith("tiny-delta_refinements_2") for run in studies.policies)


def test_studies_side_by_side_have_a_method_for_each_other_and_a_reference_at_the_same_place() -> None:
    for path in named_study_files().values():
        study = read_yaml(path)
        if "beside" not in study:
            continue
        other = read_yaml(named_study_files()[study["beside"]])
        place = list(study["methods"]).index(study["reference_method"])
        assert list(other["methods"]).index(other["reference_method"]) == place
        assert [changes.get("extends", name) for name, changes in other["methods"].items()] == list(study["methods"])


def test_methods_of_a_named_study_have_one_learning_rate() -> None:
    """A method at one learning rate against DAPO at another would show the learning rate."""
    config = read_study_file(CONFIG / "sharpening.yaml")
    for name, path in named_study_files().items():
        study = resolved(path, config)
        assert len({settings.learning_rate for settings in study.training.values()}) == 1, name


def test_studies_with_the_reference_method_of_the_main_study_have_its_controls_too(tmp_path: Path) -> None:
    config = read_yaml(CONFIG / "smoke.yaml")
    harmful = {"extends": "dapo", "loss": {"epsilon_low": 0.5}}
    config["methods"] |= {"harmful": harmful, "neutral": {"extends": "dapo"}}
    config["controls"] = {"positive": "harmful", "negative": "neutral", "random_rewards": "delta"}
    assert refused(Studies(config, "mine.yaml")) == {}
    study = resolved(write(tmp_path, "plain"), config)
    assert list(study.methods) == ["dapo", "grpo", "harmful", "neutral"]
    assert study.config.controls == Controls(positive="harmful", negative="neutral")  # chance is the main study's
    assert study.methods["harmful"] == Study.resolve(config).methods["harmful"]
    other = resolved(write(tmp_path, "other", reference_method="grpo"), config)
    assert (list(other.methods), other.config.controls) == (["dapo", "grpo"], None)
    without = resolved(write(tmp_path, "without", controls=None), config)
    assert (list(without.methods), without.config.controls) == (["dapo", "grpo"], None)


def test_beside_names_a_study_that_corresponds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "a", beside="b")
    monkeypatch.setattr("rlvr.study.studies.named_study_files", lambda: named_study_files(tmp_path))

    def accepted() -> str:
        with pytest.raises(InvalidInput) as caught:
            Studies(read_yaml(CONFIG / "smoke.yaml"), "smoke.yaml").together("studies/a/")
        assert (caught.value.source, caught.value.key) == ("config/studies/a.yaml", "beside")
        return caught.value.accepted

    assert accepted() == ""
    write(tmp_path, "b", methods={"dapo": {}, "grpo": {}, "sapo": {}})
    assert "as many methods, 2" in accepted()
    write(tmp_path, "b", beside="a")
    assert "no `beside`" in accepted()
    write(tmp_path, "b")
    studies = Studies(read_yaml(CONFIG / "smoke.yaml"), "smoke.yaml")
    assert studies.together("studies/a/") == ["studies/a/", "studies/b/"]


def test_a_study_that_is_asked_for_by_its_file_is_the_one_of_its_name() -> None:
    """`snakemake --configfile config/studies/ablations.yaml` makes what `snakemake ablations` makes."""
    file = CONFIG / "studies" / "ablations.yaml"
    by_name = jobs_of(read_yaml(CONFIG / "config.yaml"), "ablations")
    by_file = jobs_of(read_study_file(file))
    assert set(by_file["all"].inputs) == set(by_name["ablations"].inputs)
    assert "results/studies/ablations/report.html" in by_file["all"].inputs
    assert by_file.keys() - {"all"} == by_name.keys() - {"ablations"}


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"training": {"learning_rate": 0.001}}, "methods.dapo"),
        ({"evaluation": {"temperature": 0.5}}, "evaluation"),
        ({"methods": {"fast": {"extends": "dapo", "training": {"steps": 2}}}, "reference_method": "fast"}, None),
    ],
)
def test_a_folder_changes_no_run_of_its_parent(tmp_path: Path, change: dict[str, Any], key: str | None) -> None:
    """Both lie in one directory, where a run of a name is one training."""
    file = write(tmp_path, "mine", **{"extends": str(CONFIG / "smoke.yaml"), **change})
    extended = read_extended([file], {})
    assert extended == read_yaml(CONFIG / "smoke.yaml")
    if key is None:
        assert Studies(read_study_file(file), "mine.yaml", extended).main.folder == "studies/mine/"
        return
    with pytest.raises(InvalidInput) as caught:
        Studies(read_study_file(file), "mine.yaml", extended)
    assert (caught.value.source, caught.value.key) == ("mine.yaml", key)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"folder": None}, "folder"),
        ({"evaluation": {"temperature": 0.5}}, "evaluation"),
        ({"benchmarks": ["chain_3"]}, "benchmarks"),
    ],
)
def test_studies_side_by_side_differ_in_their_methods_alone(tmp_path: Path, change: dict[str, Any], key: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        resolved(write(tmp_path, "mine", **change), read_yaml(CONFIG / "smoke.yaml"))
    assert (caught.value.source, caught.value.key) == ("config/studies/mine.yaml", key)


def test_what_belongs_to_methods_stays_with_them(tmp_path: Path) -> None:
    config = {**read_yaml(CONFIG / "smoke.yaml"), "title": "Mine", "question": "Q?", "score_at": [0.5]}
    study = resolved(write(tmp_path, "other"), config)
    assert (study.config.title, study.config.question, study.config.score_at) == (None, None, None)


def test_an_earlier_policy_is_kept_by_the_run_that_passes_through_it() -> None:
    config = read_study_file(CONFIG / "sharpening.yaml")
    study = Study.resolve({**read_study_file(CONFIG / "studies" / "selection.yaml"), "score_at": [0.5, 0.25]})
    policies = [policy for policy in earlier_policies(study) if policy.step == 12]
    assert [(each.run.run, each.directory) for each in policies[:2]] == [
        ("skips-dapo_step12-s1", "results/runs/skips-dapo-s1/checkpoints/step-12"),
        ("skips-dapo_step12-s2", "results/runs/skips-dapo-s2/checkpoints/step-12"),
    ]
    steps = config["training"]["steps"]
    assert score_points(study)["dapo"] == [
        (steps // 4, f"dapo_step{steps // 4}"),
        (steps // 2, f"dapo_step{steps // 2}"),
        (steps, "dapo"),
    ]


def test_a_method_named_like_a_policy_along_a_training_refuses_the_study_that_is_scored_there() -> None:
    """Both would have the same samples and grades under results/."""
    config = copy.deepcopy(read_study_file(CONFIG / "sharpening.yaml"))
    config["methods"]["dapo_step12"] = {"extends": "dapo", "loss": {"epsilon_high": 0.5}}
    studies = Studies(config, "mine.yaml")
    assert refused(studies) == {
        "selection": "config/studies/selection.yaml: score_at: gives dapo after 12 steps the name dapo_step12, which "
        "is a method of mine.yaml; accepted: another name of the method dapo_step12"
    }
