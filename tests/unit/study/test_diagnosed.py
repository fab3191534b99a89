"""Which runs are looked into, and what is refused."""

from pathlib import Path
from typing import Any

import pytest

from evals.core.errors import UserError
from evals.core.yaml_file import read_yaml
from rlvr.diagnostics.claims.base import Need
from rlvr.stages.diagnose import MeasureClaim
from rlvr.study.diagnosed import ClaimJobs
from rlvr.study.plan import Plan
from rlvr.study.study import Study

CONFIG = Path(__file__).resolve().parents[3] / "config"


def claims(jobs: ClaimJobs) -> dict[str, MeasureClaim]:
    """The stages that measure claims, by the claims' names."""
    return {stage.claim: stage for stage in jobs.stages(()) if isinstance(stage, MeasureClaim)}


@pytest.mark.parametrize("name", ["config.yaml", "smoke.yaml"])
def test_shipped_studies_name_runs_that_there_are(name: str) -> None:
    plan = Plan.read(read_yaml(CONFIG / name), name)
    named = [run for need, runs in ClaimJobs(plan).names.items() if need != Need.BENCHMARK for run in runs]
    assert named and set(named) <= set(plan.runs)
    assert all(plan.in_folder(folder).config.diagnostics is None for folder in plan.studies.by_folder if folder)


def test_without_runs_to_compare_their_claims_are_left_out() -> None:
    config = read_yaml(CONFIG / "smoke.yaml")
    del config["diagnostics"]["weighting_method"]
    names = claims(ClaimJobs(Plan.read(config, "smoke.yaml")))
    assert "delta_coefficients" not in names and "learning_tax" in names


def test_a_policy_along_a_training_is_compared_where_the_training_keeps_it() -> None:
    jobs = ClaimJobs(Plan.read(read_yaml(CONFIG / "config.yaml"), "config.yaml"))
    below = "tiny-grpo_long_unstable-s1/checkpoints/step-12"
    claim = claims(jobs)["learning_tax"]
    assert f"results/runs/{below}.kept" in claim.inputs() and below in claim.names["runs"]
    assert not any("_step12" in word for word in [*claim.names["runs"], *claim.inputs()])


def test_few_problems_of_the_benchmark_are_sampled_where_the_study_says_so() -> None:
    config = read_yaml(CONFIG / "config.yaml")
    config["diagnostics"]["benchmark_problems"] = 12
    limited = {
        name
        for name, claim in claims(ClaimJobs(Plan.read(config, "study.yaml"))).items()
        if claim.benchmark_problems == 12
    }
    assert limited == {"update_direction", "sampling_settings"}
    before = ClaimJobs(Plan.read(read_yaml(CONFIG / "config.yaml"), "config.yaml"))
    assert not any(claim.benchmark_problems for claim in claims(before).values())


def test_a_run_does_not_know_that_it_is_looked_into() -> None:
    config = read_yaml(CONFIG / "config.yaml")
    without = {key: value for key, value in config.items() if key != "diagnostics"}
    run = "tiny-dapo-s1"
    assert Study.resolve(config).resolved_run(run) == Study.resolve(without).resolved_run(run)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (None, "diagnostics: is not in this study"),
        ({"method": "ppo"}, "diagnostics.method: is 'ppo'; accepted: dapo, grpo"),
        ({"weighting_method": "ppo"}, "diagnostics.weighting_method: is 'ppo'; accepted: dapo, grpo"),
        ({"steps": [1, 41]}, "diagnostics.steps: are [1, 41]; accepted: 1 to 24"),
        ({"benchmark": "aime_2024"}, "diagnostics.benchmark: is 'aime_2024'; accepted: worded_3"),
        ({"compared": ["ppo"]}, "diagnostics.compared: no study has the run tiny-ppo-s1"),
        ({"selected": ["delta", "ppo"]}, "diagnostics.selected: no study has the run tiny-ppo-s1"),
    ],
)
def test_what_is_not_there_is_refused_in_one_line(change: dict[str, Any] | None, message: str) -> None:
    config = read_yaml(CONFIG / "config.yaml")
    if change is None:
        del config["diagnostics"]
    else:
        config["diagnostics"] |= change
    jobs = ClaimJobs(Plan.read(config, "study.yaml"))
    with pytest.raises(UserError) as error:
        _ = jobs.names
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_only_steps_that_every_training_has_are_looked_into() -> None:
    config = read_yaml(CONFIG / "config.yaml")
    last = max(config["diagnostics"]["steps"])
    for patience in (last - 2, last - 3):
        config["methods"]["delta"] = {"training": {"early_stop": {"window": 2, "patience": patience}}}
        jobs = ClaimJobs(Plan.read(config, "study.yaml"))
        if patience == last - 2:
            assert jobs.names
        else:
            with pytest.raises(UserError, match=rf"diagnostics.steps: are .* accepted: 1 to {last - 1}$"):
                _ = jobs.names
