"""Studies that verl trains: what their configuration has to say, what a run becomes, and what it would cost."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from evals.core.errors import InvalidInput
from evals.core.files import canonical_json
from evals.core.manifest import Manifest
from evals.core.run_spec import Cluster, VerlRun
from evals.core.yaml_file import read_yaml
from evals.grading import VERSION as GRADER_VERSION
from rlvr.cli import main
from rlvr.engines.verl import PINNED, VERSION
from rlvr.engines.verl.checks import check
from rlvr.methods.method import compose
from rlvr.study.catalogue import CATALOGUE
from rlvr.study.cost import plan_lines, run_cost
from rlvr.study.plan import Plan
from rlvr.study.status import study_status
from rlvr.study.study import Study

PAPERS = sorted((CATALOGUE.parent / "papers").glob("*.yaml"))


def delta() -> dict[str, Any]:
    content: dict[str, Any] = copy.deepcopy(read_yaml(CATALOGUE.parent / "papers" / "delta.yaml"))
    return content


@pytest.mark.parametrize("path", PAPERS, ids=lambda path: path.stem)
def test_every_run_of_the_papers_passes_our_checks(path: Path) -> None:
    study = Plan.read(read_yaml(path), path.name).study
    assert study.engine == "verl" and len(study.trained_runs) >= 4
    assert "GPU-hours" in plan_lines(study)[-2]
    for run in study.trained_runs:
        check(
            VerlRun.parse(study.resolved_run(run.run), "run.json"),
            Cluster.parse(study.cluster(run.run), "cluster"),
            None,
        )


@pytest.mark.parametrize("path", PAPERS, ids=lambda path: path.stem)
def test_the_papers_settings_are_published_or_marked(path: Path) -> None:
    """The numbers of the setup tables that the papers' authors published."""
    training = {name: Study.resolve(read_yaml(path), path.name).resolved_run(name)["training"] for name in ids(path)}
    for settings in training.values():
        assert settings["learning_rate"] == 1e-6 and settings["temperature"] == 1.0
    studies: dict[str, dict[str, tuple[int | None, ...]]] = {
        "delta": {
            "qwen3_8b_base-delta-s1": (128, 16, 4, 2048, 20480, 220),
            "qwen3_14b_base-delta-s1": (128, 16, 4, 2048, 20480, 300),
        },
        "dapo": {"qwen2_5_32b-dapo_full-s1": (512, 16, 16, 2048, 20480, None)},
        "fipo": {
            "qwen2_5_32b-fipo-s1": (512, 16, 8, 2048, 20480, None),
            "qwen2_5_math_7b-fipo-s1": (512, 32, 8, 2048, 10240, None),
        },
        "cancellation": {"qwen3_4b_base-dapo-s1": (128, 8, 4, 1024, 8192, None)},
        "directions": {
            "qwen2_5_math_7b-ppl-s1": (512, 16, 16, 2048, 8192, None),
            "qwen3_8b_base-ppl-s1": (512, 16, 16, 2048, 20480, None),
        },
        "cancellation_conditions": {},
    }
    keys = (
        "prompts_per_step",
        "samples_per_prompt",
        "updates_per_step",
        "max_prompt_tokens",
        "max_new_tokens",
        "steps",
    )
    for name, values in studies[path.stem].items():
        found = tuple(training[name][key] for key in keys)
        assert found[:5] == values[:5] and values[5] in (None, found[5])


@pytest.mark.parametrize("name", ["dapo", "fipo", "directions"])
def test_rewards_of_0_and_1_have_the_advantages_of_the_papers(name: str) -> None:
    """These papers reward by -1 and 1, and take at most 1 from the longest response."""
    path = next(path for path in PAPERS if path.stem == name)
    right = torch.tensor([1.0, 1.0, 0.0, 0.0])
    found = 0
    for run in ids(path):
        resolved = Study.resolve(read_yaml(path), path.name).resolved_run(run)
        method, longest = compose(resolved["method"]), resolved["training"]["max_new_tokens"]
        if method.reward_shaping is None:
            continue
        found += 1
        lengths = torch.tensor([longest, longest // 2, longest, longest - 100])
        buffer = {20480: 4096, 10240: 2048, 8192: 4096}[longest]
        theirs = 2 * right - 1 - ((lengths - (longest - buffer)).clamp(min=0) / buffer)
        groups = torch.zeros(4, dtype=torch.int64)
        ours = method.reward_shaping(right, lengths, longest)
        torch.testing.assert_close(
            method.advantage(ours, groups, lengths), method.advantage(theirs, groups, lengths), atol=1e-5, rtol=0.0
        )
    assert found >= 2


def ids(path: Path) -> list[str]:
    return [run.run for run in Study.resolve(read_yaml(path), path.name).trained_runs]


def test_a_model_changes_methods_and_training() -> None:
    study = Study.resolve(read_yaml(CATALOGUE.parent / "papers" / "directions.yaml"), "directions.yaml")
    small, large = (study.resolved_run(f"{model}-low_probability-s1") for model in ("qwen2_5_math_7b", "qwen3_8b_base"))
    assert small["method"]["token_weights"]["alpha"] == 0.2 and large["method"]["token_weights"]["alpha"] == 0.1
    # The penalty rises over 4,096 tokens in both.
    for run in (small, large):
        assert run["method"]["reward_shaping"]["buffer"] * run["training"]["max_new_tokens"] == 4096
    assert small["method"]["version"] == large["method"]["version"]
    assert study.cluster("qwen2_5_math_7b-ppl-s1")["nodes"] == 4 and study.cluster("qwen3_8b_base-ppl-s1")["nodes"] == 8


@pytest.mark.parametrize(("key", "value"), [("micro_batch_size", 4), ("max_prompt_tokens", None)])
def test_training_settings_are_those_of_the_engine(key: str, value: int | None) -> None:
    config = delta()
    config["training"][key] = value
    if value is None:
        del config["training"][key]
    with pytest.raises(InvalidInput) as caught:
        Study.resolve(config, "study.yaml")
    assert str(caught.value).startswith("study.yaml: training: ") and key in caught.value.found


def test_the_cost_follows_the_stated_model() -> None:
    study = Study.resolve(delta(), "delta.yaml")
    cost = run_cost(study, "qwen3_8b_base-dapo-s1")
    tokens = 220 * 128 * 16 * 20480 * 0.35
    assert cost.trained == pytest.approx(tokens)
    flop = 8.2e9 * tokens * (2 / 0.10 + 10 / 0.35)
    assert cost.training_hours == pytest.approx(flop / 989e12 / 3600)
    assert cost.evaluated == pytest.approx((6 * 30 + 33) * 16 * 30000 * 0.35)
    assert cost.disk == pytest.approx(8.2e9 * (12 * 2 + 2) + cost.evaluated * 4)
    base = run_cost(study, "qwen3_8b_base-base")
    assert base.trained == 0.0 and base.evaluated == cost.evaluated
    lines = plan_lines(study)
    assert "qwen3_14b_base (14.8 B parameters), 6 runs" in lines[2] and "GPU-hours" in lines[3]


def test_where_a_run_is_carried_out_is_no_part_of_it() -> None:
    config = delta()
    before = Study.resolve(config, "delta.yaml").resolved_run("qwen3_8b_base-delta-s1")
    config["execution"]["cluster"] |= {"nodes": 2, "tokens_per_device": 40960}
    after = Study.resolve(config, "delta.yaml")
    assert after.resolved_run("qwen3_8b_base-delta-s1") == before
    assert after.cluster("qwen3_8b_base-delta-s1")["nodes"] == 2


def test_a_finished_run_is_current_until_something_of_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = Study.resolve(delta(), "delta.yaml")
    name = "qwen3_8b_base-delta-s1"
    read = VerlRun.parse(study.resolved_run(name), "run.json")
    versions = {"engine": VERSION, "verl": PINNED, "grader": GRADER_VERSION}
    parameters = {**read.parameters(), "versions": versions}
    path = tmp_path / "results" / "runs" / name / "manifest.json"
    Manifest("run", {}, {}, parameters, "0" * 64).write(path)
    monkeypatch.chdir(tmp_path)

    def reasons() -> str:
        found = {status.result: status for status in study_status(study)}[f"run {name}"]
        return "; ".join(found.reasons)

    # Its model and problems are not there, and it follows them.
    assert "versions" not in reasons() and "training." not in reasons()
    Manifest("run", {}, {}, {**parameters, "versions": {**versions, "verl": "0.9.0"}}, "0" * 64).write(path)
    assert f"versions.verl: 0.9.0 -> {PINNED}" in reasons()


def test_the_files_of_runs_are_those_that_training_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = next(path for path in PAPERS if path.stem == "delta")
    arguments = ["plan", "--config", str(path), "--out", str(tmp_path)]
    assert main(arguments) == 0
    study = Study.resolve(read_yaml(path), path.name)
    files = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert [file.parent.name for file in files] == [run.run for run in study.trained_runs]
    for file in files:
        run, cluster = VerlRun.read(file), Cluster.read(file.with_name("cluster.json"))
        check(run, cluster, None)
        # The workflow writes the same bytes, so that they are no change to it.
        assert file.read_text(encoding="utf-8") == canonical_json(study.resolved_run(run.run))
    before = [file.stat().st_mtime_ns for file in files]
    assert main(arguments) == 0
    assert [file.stat().st_mtime_ns for file in files] == before
