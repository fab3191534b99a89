"""The jobs of ``snakemake decoding``: what they choose on, what they report, and what is refused before any work."""

from pathlib import Path
from typing import Any

import pytest

from evals.core.errors import InvalidInput
from evals.core.yaml_file import read_yaml
from rlvr.stages.decode import Sweep
from rlvr.study.decoding import DecodingJobs
from rlvr.study.plan import Plan
from rlvr.study.studies import resolve_studies
from tests.unit.study.planned import study_with

CONFIG = Path(__file__).resolve().parents[3] / "config"
ALONE = {"benchmark_sources": None, "diagnostics": None}
"""Sections that would name benchmarks which a test leaves out."""


def jobs(name: str = "smollm2.yaml", **changes: Any) -> DecodingJobs:
    """The jobs of a shipped study with other sections, or without those that are None; its files need not be there."""
    return DecodingJobs(Plan(resolve_studies(study_with(name, **changes), name)))


def decoding(**changes: Any) -> dict[str, Any]:
    return {**read_yaml(CONFIG / "decoding.yaml"), **changes}


def test_a_named_benchmark_chooses_and_only_others_are_reported() -> None:
    found = jobs(decoding=decoding(problems={"benchmark": "svamp"}))
    found.check()
    assert found.benchmarks == ["mawps_asdiv_a_test", "gsm8k"]
    stages: dict[str, Any] = {stage.kind: stage for stage in found.stages("")}
    scores = tuple(Path(f"results/decoding/scores/{name}.json") for name in found.benchmarks)
    assert stages["compare"].scores == stages["table_decoding"].scores == scores
    reported = {f"results/problems/{name}/problems.jsonl" for name in found.benchmarks}
    assert reported < set(found.trained_on_or_reported)
    assert "results/problems/svamp/problems.jsonl" not in found.trained_on_or_reported
    assert list(stages["decoding_sample"].own) == found.benchmarks
    assert "svamp, which is not reported" in found.note


def test_a_sweep_samples_as_the_benchmark_is_sampled() -> None:
    """The model's precision, and the benchmark's prompt and form of answers, which are not those of the training."""
    evaluation = {**read_yaml(CONFIG / "smollm2.yaml")["evaluation"], "prompt": "benchmark"}
    found = jobs(decoding=decoding(problems={"benchmark": "svamp", "count": 60}), evaluation=evaluation)
    sweep = next(stage for stage in found.stages("") if isinstance(stage, Sweep))
    assert sweep.sampling.dtype == "bfloat16" and sweep.own.prompt.startswith("Problem:")
    assert sweep.grading == "completion"


def test_worked_examples_reach_the_sweep() -> None:
    shown = [{"problem": "1 + 1", "solution": "2"}]
    model = {**read_yaml(CONFIG / "smoke.yaml")["models"]["tiny"]}
    evaluation = {**read_yaml(CONFIG / "smoke.yaml")["evaluation"], "few_shot": shown}
    found = jobs("smoke.yaml", evaluation=evaluation, models={"tiny": model})
    sweep = next(stage for stage in found.stages("") if isinstance(stage, Sweep))
    assert [example.to_json() for example in sweep.sampling.few_shot] == shown


def test_the_shipped_study_of_a_pretrained_model_can_be_decoded() -> None:
    found = jobs()
    found.check()
    assert found.taken is not None
    assert found.taken.benchmark not in found.benchmarks


@pytest.mark.parametrize(
    ("changes", "key", "accepted"),
    [
        ({"problems": {"benchmark": "aime"}}, "decoding.problems.benchmark", "mawps_asdiv_a_test, svamp, gsm8k"),
        ({"problems": {"benchmark": "svamp"}, "benchmarks": ["svamp"]}, "decoding.benchmarks", "mawps_asdiv_a_test"),
        ({"problems": {"benchmark": "svamp"}, "benchmarks": ["aime"]}, "decoding.benchmarks", "gsm8k"),
    ],
)
def test_benchmarks_that_do_not_fit_are_refused(changes: dict[str, Any], key: str, accepted: str) -> None:
    with pytest.raises(InvalidInput) as error:
        jobs(decoding=decoding(**changes)).check()
    assert error.value.key == key and accepted in str(error.value)


def test_the_only_benchmark_cannot_choose() -> None:
    with pytest.raises(InvalidInput) as error:
        jobs(decoding=decoding(problems={"benchmark": "svamp"}), benchmarks=["svamp"], **ALONE).check()
    assert error.value.key == "decoding.problems.benchmark"


@pytest.mark.parametrize("name", ["gpqa_diamond", "humaneval_plus"])
def test_gated_problems_and_programs_cannot_choose(name: str) -> None:
    both = ["svamp", name]
    with pytest.raises(InvalidInput) as error:
        jobs(decoding=decoding(problems={"benchmark": name}), benchmarks=both, **ALONE).check()
    assert error.value.key == "decoding.problems.benchmark" and str(error.value).endswith("accepted: svamp")
    reporting = jobs(decoding=decoding(problems={"benchmark": "svamp"}), benchmarks=both, **ALONE)
    reporting.check()
    assert reporting.benchmarks == [name]


@pytest.mark.parametrize(
    ("changes", "key"), [({"backend": "vllm"}, "evaluation.backend"), ({"stop": ["Problem:"]}, "evaluation.stop")]
)
def test_what_two_models_cannot_do_is_refused_before_the_trainings(changes: dict[str, Any], key: str) -> None:
    evaluation = {**read_yaml(CONFIG / "smoke.yaml")["evaluation"], **changes}
    with pytest.raises(InvalidInput) as error:
        jobs("smoke.yaml", evaluation=evaluation).check()
    assert error.value.key == key


def test_a_study_in_a_folder_has_no_decoding_of_its_own() -> None:
    with pytest.raises(InvalidInput, match="folder: is studies/mine in snakemake decoding"):
        jobs("smoke.yaml", folder="studies/mine").check()
