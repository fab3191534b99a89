"""Files of the package: which runs are looked into, what decodes together, and what is refused before any work."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from evals.core.errors import InvalidInput, UserError
from evals.core.yaml_file import read_yaml
from rlvr.study.studies import Studies
from rlvr.study.study_file import read_study_file
from rlvr_claims.claims.base import Need
from rlvr_claims.settings import ClaimsConfig, ClaimsFile, DecodingConfig
from rlvr_claims.study import DecodedModels, MeasuredRuns, read_file
from tests.unit.study.planned import study_with

FILES = Path(__file__).resolve().parents[1] / "config"
STUDIES = FILES.parents[2] / "config"


def measured(name: str = "sharpening.yaml", study: dict[str, Any] | None = None, **changes: Any) -> MeasuredRuns:
    """The runs that a shipped file measures claims on, with other settings, or without those that are None."""
    settings = {**read_yaml(FILES / name)["claims"], **changes}
    content = {key: value for key, value in settings.items() if value is not None}
    studies = Studies(study_with(name, **(study or {})), name)
    return MeasuredRuns(studies, ClaimsConfig.parse(content, "mine.yaml", "claims"))


def decoded(name: str = "smollm2.yaml", settings: dict[str, Any] | None = None, **changes: Any) -> DecodedModels:
    """The models of a shipped study with other sections, or without those that are None; its files need not be here."""
    content = settings if settings is not None else read_yaml(FILES / name).get("decoding", {})
    study = Studies(study_with(name, **changes), name).main
    return DecodedModels(study, DecodingConfig.parse(content, "mine.yaml", "decoding"))


@pytest.mark.parametrize("path", sorted(FILES.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_shipped_file_names_a_study_and_runs_that_there_are(path: Path) -> None:
    settings, study, studies = read_file(path)
    assert study == STUDIES / path.name and settings.claims is not None
    runs = MeasuredRuns(studies, settings.claims)
    named = [run for need, names in runs.names.items() if need != Need.BENCHMARK for run in names]
    assert named and set(runs.replayed) <= set(named)
    for claim in runs.claims:
        assert runs.files_of(claim) and runs.options_of(claim)
    DecodedModels(studies.main, settings.decoding).check()


@pytest.mark.parametrize(
    ("content", "key", "words"),
    [
        ({"extends": "no.yaml"}, "extends", "no such file"),
        ({"extends": str(STUDIES / "evaluate_model.yaml")}, "extends", "compares no methods"),
        ({"extends": str(STUDIES / "studies/ablations.yaml")}, "extends", "has the folder studies/ablations"),
        ({"extends": str(STUDIES / "smoke.yaml"), "claim": {}}, "", "unknown key claim"),
        ({"claims": {}}, "", "lacks"),
    ],
)
def test_a_file_that_names_no_study_is_refused(tmp_path: Path, content: Any, key: str, words: str) -> None:
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(InvalidInput) as error:
        read_file(tmp_path / "mine.yaml")
    assert error.value.source == str(tmp_path / "mine.yaml") and error.value.key.startswith(key)
    assert words in str(error.value)


def test_without_runs_to_compare_their_claims_are_left_out() -> None:
    runs = measured("smoke.yaml", weighting_method=None)
    assert "delta_coefficients" not in runs.claims and "learning_tax" in runs.claims
    assert [line.partition(":")[0] for line in runs.left_out] == ["DelTA's coefficients"]


def test_a_policy_along_a_run_is_compared_where_the_run_keeps_it() -> None:
    runs, below = measured(), "tiny-grpo_long_unstable-s1/checkpoints/step-12"
    files, options = runs.files_of("learning_tax"), runs.options_of("learning_tax")
    assert f"results/runs/{below}.kept" in files and below in options
    assert not any("_step12" in word for word in [*files, *options])


def test_few_problems_of_the_benchmark_are_sampled_where_the_file_says_so() -> None:
    limited = measured(benchmark_problems=12)
    with_option = {
        claim for claim in limited.claims if limited.options_of(claim)[-2:] == ["--benchmark-problems", "12"]
    }
    assert with_option == {"update_direction", "sampling_settings"}
    assert not any("--benchmark-problems" in measured().options_of(claim) for claim in limited.claims)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "ppo"}, "claims.method: is 'ppo'; accepted: dapo, grpo"),
        ({"weighting_method": "ppo"}, "claims.weighting_method: is 'ppo'; accepted: dapo, grpo"),
        ({"steps": [1, 41]}, "claims.steps: are [1, 41]; accepted: 1 to 24"),
        ({"benchmark": "aime_2024"}, "claims.benchmark: is 'aime_2024'; accepted: worded_3"),
        ({"compared": ["ppo"]}, "claims.compared: no study has the run tiny-ppo-s1"),
        ({"selected": ["delta", "ppo"]}, "claims.selected: no study has the run tiny-ppo-s1"),
    ],
)
def test_what_is_not_there_is_refused_in_one_line(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        _ = measured(**change).names
    assert str(error.value).startswith(message) and "\n" not in str(error.value)


def test_what_cannot_be_measured_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def verify(problem, response): return 1\n")
    problems = {**read_yaml(STUDIES / "smoke.yaml")["problems"], "verifier": str(tmp_path / "mine.py")}
    with pytest.raises(InvalidInput, match="measure correctness by the project's grader, and train has a verifier"):
        _ = measured("smoke.yaml", {"problems": problems}).names


def test_only_steps_that_every_run_has_are_looked_into() -> None:
    last = max(read_yaml(FILES / "sharpening.yaml")["claims"]["steps"])
    methods = read_study_file(STUDIES / "sharpening.yaml")["methods"]
    for patience in (last - 2, last - 3):
        stopping = {"training": {"early_stop": {"window": 2, "patience": patience}}}
        runs = measured(study={"methods": {**methods, "delta": stopping}})
        if patience == last - 2:
            assert runs.names
        else:
            with pytest.raises(UserError, match=rf"claims.steps: are .* accepted: 1 to {last - 1}$"):
                _ = runs.names


def test_a_named_benchmark_chooses_and_only_others_are_reported() -> None:
    models = decoded(settings={"problems": {"benchmark": "svamp"}})
    models.check()
    assert models.benchmarks == ["mawps_asdiv_a_test", "gsm8k"]
    assert models.choosing_sources == ["results/problems/svamp/manifest.json"]
    reported = {f"results/problems/{name}/problems.jsonl" for name in models.benchmarks}
    assert reported < set(models.trained_on_or_reported)
    assert "results/problems/svamp/problems.jsonl" not in models.trained_on_or_reported
    assert "svamp, which is not reported" in models.note


def test_a_sweep_samples_as_the_benchmark_is_sampled() -> None:
    """The model's precision, and the benchmark's prompt and form of answers, which are not those of the training."""
    evaluation = {**read_yaml(STUDIES / "smollm2.yaml")["evaluation"], "prompt": "benchmark"}
    models = decoded(settings={"problems": {"benchmark": "svamp", "count": 60}}, evaluation=evaluation)
    run = models.trained[0].run
    assert models.sampling(run).dtype == "bfloat16" and models.of_choosing(run).prompt.startswith("Problem:")
    assert models.choosing_kind == "completion"


def test_worked_examples_reach_the_sweep() -> None:
    shown = [{"problem": "1 + 1", "solution": "2"}]
    model = {**read_yaml(STUDIES / "smoke.yaml")["models"]["tiny"]}
    evaluation = {**read_yaml(STUDIES / "smoke.yaml")["evaluation"], "few_shot": shown}
    models = decoded("smoke.yaml", evaluation=evaluation, models={"tiny": model})
    few_shot = models.sampling(models.trained[0].run).few_shot
    assert [example.to_json() for example in few_shot] == shown


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
        decoded(settings=changes).check()
    assert error.value.key == key and accepted in str(error.value)


@pytest.mark.parametrize("name", ["gpqa_diamond", "humaneval_plus"])
def test_gated_problems_and_programs_cannot_choose(name: str) -> None:
    both = {"benchmarks": ["svamp", name], "benchmark_sources": None}
    with pytest.raises(InvalidInput) as error:
        decoded(settings={"problems": {"benchmark": name}}, **both).check()
    assert error.value.key == "decoding.problems.benchmark" and str(error.value).endswith("accepted: svamp")
    reporting = decoded(settings={"problems": {"benchmark": "svamp"}}, **both)
    reporting.check()
    assert reporting.benchmarks == [name]


@pytest.mark.parametrize(
    ("changes", "key"), [({"backend": "vllm"}, "evaluation.backend"), ({"stop": ["Problem:"]}, "evaluation.stop")]
)
def test_what_two_models_cannot_do_is_refused_before_the_training_runs(changes: dict[str, Any], key: str) -> None:
    evaluation = {**read_yaml(STUDIES / "smoke.yaml")["evaluation"], **changes}
    with pytest.raises(InvalidInput) as error:
        decoded("smoke.yaml", evaluation=evaluation).check()
    assert error.value.key == key


@pytest.mark.parametrize(
    ("section", "content", "place", "words"),
    [
        ("claims", {"method": "a", "steps": [1], "benchmark": "b", "selected": ["a"]}, "claims.selected", "at least 2"),
        ("decoding", {"fractions": [1]}, "decoding.fractions", "below 1"),
        ("decoding", {"criteria": ["entropy"]}, "decoding.criteria", "log_prob_difference"),
        ("decoding", {"problems": {"seed": 1, "count": 5}}, "decoding.problems.count", "at least 6"),
        ("decoding", {"problems": {"benchmrk": "b", "count": 6}}, "decoding.problems", "benchmark and count"),
        ("decoding", {"problems": {"benchmark": "b", "cuont": 6}}, "decoding.problems", "benchmark, count"),
    ],
)
def test_a_mistake_is_told_in_one_line_with_its_place(section: str, content: Any, place: str, words: str) -> None:
    with pytest.raises(InvalidInput) as error:
        ClaimsFile.parse({"extends": "smoke.yaml", section: content}, "mine.yaml")
    assert error.value.key == place and words in f"{error.value.found}; {error.value.accepted}"
