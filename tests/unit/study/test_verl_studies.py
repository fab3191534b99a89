"""Studies that verl trains: what their configuration has to say, and what a run becomes."""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from evals.core.errors import InvalidInput
from evals.core.files import canonical_json
from evals.core.run_spec import Cluster, VerlRun
from evals.core.yaml_file import read_yaml
from evals.tables.published import compare_with_papers, read_reference
from rlvr.cli import main
from rlvr.engines.verl.checks import check
from rlvr.methods.method import compose
from rlvr.study.catalogue import CATALOGUE
from rlvr.study.evidence import own_settings
from rlvr.study.notices import prompts
from rlvr.study.source_files import REPOSITORY
from rlvr.study.study import Study
from rlvr.study.study_file import read_study_file
from tests.unit.synthetic_results import full_size_results

PAPERS = sorted((CATALOGUE.parent / "papers").glob("*.yaml"))


def delta() -> dict[str, Any]:
    content: dict[str, Any] = copy.deepcopy(read_yaml(CATALOGUE.parent / "papers" / "delta.yaml"))
    return content


@pytest.mark.parametrize("path", PAPERS, ids=lambda path: path.stem)
def test_every_run_of_the_papers_passes_our_checks(path: Path) -> None:
    study = Study.resolve(read_study_file(path), path.name)
    assert study.engine == "verl" and len(study.trained_runs) >= 2
    assert all(run.gradient_clip == 1.0 for run in study.training.values())
    for run in study.trained_runs:
        spec = VerlRun.parse(study.resolved_run(run.run), "run.json")
        check(spec, Cluster.parse(study.cluster(run.run), "cluster"), None)


@pytest.mark.parametrize(
    ("name", "run", "expected"),
    [
        ("fipo", "qwen2_5_math_7b-fipo-s1", (512, 32, 8, 2048, 10240)),
        ("delta_code", "qwen3_8b_base-delta-s1", (128, 16, 4, 2048, 20480)),
        ("delta_ablations", "qwen3_8b_base-delta_without_range_map-s1", (128, 16, 4, 2048, 20480, 220)),
        ("delta_generalisation", "qwen3_14b_base-delta-s1", (128, 16, 4, 2048, 20480, 300)),
        ("delta_olmo3", "olmo3_7b-delta-s1", (128, 16, 4, 2048, 20480)),
        ("cancellation_conditions", "qwen3_32b-grpo-s1", ()),
    ],
)
def test_settings_that_no_page_has_a_table_of(name: str, run: str, expected: tuple[int, ...]) -> None:
    study = Study.read(CATALOGUE.parent / f"papers/{name}.yaml")
    for each in study.training.values():
        assert (each.learning_rate, each.temperature) == (1e-6, 1.0)
    names = [
        "prompts_per_step",
        "samples_per_prompt",
        "updates_per_step",
        "max_prompt_tokens",
        "max_new_tokens",
        "steps",
    ]
    training: Any = study.resolved_run(run)["training"]
    assert tuple(training[key] for key in names)[: len(expected)] == expected
    tokens = {"fipo": 20480, "cancellation_conditions": 32768}
    assert study.config.evaluation.max_new_tokens == tokens.get(name, 30000)


@pytest.mark.parametrize("name", ["dapo", "fipo", "directions", "directions_7b"])
def test_rewards_of_0_and_1_have_the_advantages_of_the_papers(name: str) -> None:
    """These papers reward by -1 and 1, and take at most 1 from the longest response."""
    path = next(path for path in PAPERS if path.stem == name)
    right = torch.tensor([1.0, 1.0, 0.0, 0.0])
    found = 0
    for run in ids(path):
        resolved = Study.read(path).resolved_run(run)
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
    return [run.run for run in Study.read(path).trained_runs]


def test_a_model_changes_methods_and_training() -> None:
    studies = [Study.read(CATALOGUE.parent / "papers" / f"{name}.yaml") for name in ("directions_7b", "directions")]
    names = ("qwen2_5_math_7b", "qwen3_8b_base")
    small, large = (
        study.resolved_run(f"{model}-low_probability-s1") for study, model in zip(studies, names, strict=True)
    )
    assert "alpha" not in small["method"]["token_weights"] and large["method"]["token_weights"]["alpha"] == 0.1
    # The penalty rises over 4,096 tokens in both.
    for run in (small, large):
        shaping: Any = compose(run["method"]).reward_shaping
        assert shaping.buffer * run["training"]["max_new_tokens"] == 4096
    assert small["method"]["version"] == large["method"]["version"]
    nodes = [study.cluster(f"{model}-ppl-s1")["nodes"] for study, model in zip(studies, names, strict=True)]
    assert nodes == [4, 8]


def test_generalisation_is_measured_on_the_policies_of_the_mathematics() -> None:
    """So that its trainings and the choice of their checkpoints are not repeated in one directory."""
    study, mathematics = (
        Study.read(CATALOGUE.parent / f"papers/{name}.yaml") for name in ("delta_generalisation", "delta")
    )
    for run in study.trained_runs:
        assert study.resolved_run(run.run) == mathematics.resolved_run(run.run)
        assert study.cluster(run.run) == mathematics.cluster(run.run)
    assert study.config.best_checkpoint == mathematics.config.best_checkpoint
    assert study.config.evaluation.samples("gpqa_diamond") == 5


@pytest.mark.parametrize(("key", "value"), [("micro_batch_size", 4), ("max_prompt_tokens", None)])
def test_training_settings_are_those_of_the_engine(key: str, value: int | None) -> None:
    config = delta()
    config["training"][key] = value
    if value is None:
        del config["training"][key]
    with pytest.raises(InvalidInput) as caught:
        Study.resolve(config, "study.yaml")
    assert str(caught.value).startswith("study.yaml: training: ") and key in caught.value.found


SHIPPED = sorted([*PAPERS, *CATALOGUE.parent.glob("*.yaml")])


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_training_and_evaluation_ask_alike_or_the_study_says_that_they_do_not(path: Path) -> None:
    content = read_study_file(path)
    if "benchmarks" not in content or not content.get("methods"):
        pytest.skip("trains nothing")
    study = Study.resolve(content, path.name)
    declared = study.config.evaluation.prompt == "benchmark"
    assert bool(study.benchmarks_with_another_prompt) == declared
    if declared:
        assert prompts(study)[0].startswith("Departure: evaluation has another prompt than training on ")
        return
    for run in study.trained_runs:
        spec = study.run_spec(run.run)
        for name, benchmark in study.benchmarks.items():
            if benchmark.grader == "math":
                assert study.prompt(name, run.model) == spec.prompt
    assert repr(study.config.problems.prompt) in prompts(study)[0] if study.config.problems else False


def test_another_prompt_is_a_departure_that_is_shown_and_recorded() -> None:
    content = delta()
    content["benchmarks"] = [*content["benchmarks"], "mmlu_pro"]
    alike = Study.resolve(content, "delta.yaml")
    own = alike.benchmarks["mmlu_pro"].prompt("base")
    assert alike.prompt("mmlu_pro", "qwen3_8b_base") == own and "Assistant:" in alike.prompt(
        "aime_2024", "qwen3_8b_base"
    )
    assert prompts(alike)[0].startswith("Training and evaluation have one prompt, but for choices and programs (mmlu")
    content["evaluation"]["prompt"] = "benchmark"
    study = Study.resolve(content, "delta.yaml")
    names = "aime_2024, aime_2025, aime_2026, hmmt_feb_2025, hmmt_nov_2025, hmmt_feb_2026, brumo_2025"
    assert prompts(study) == [f"Departure: evaluation has another prompt than training on {names}."]
    assert own_settings(study)["evaluation_prompt"] == "another than in training"
    run = "qwen3_8b_base-dapo-s1"
    assert study.prompt("aime_2024", "qwen3_8b_base").startswith("Problem:")
    # How it is asked is no part of what was trained.
    assert study.resolved_run(run) == alike.resolved_run(run)


def test_options_of_verl_that_can_change_results_are_part_of_the_run() -> None:
    content, run = delta(), "qwen3_8b_base-delta-s1"
    before = Study.resolve(content, "delta.yaml")
    rollout = "actor_rollout_ref.rollout"
    content["execution"]["cluster"]["overrides"] = {
        f"{rollout}.max_num_seqs": 128,
        "+ray_kwargs.ray_init.include_dashboard": False,
        f"{rollout}.quantization": "fp8",
    }
    content["models"]["qwen3_14b_base"]["cluster"]["overrides"] = {f"{rollout}.max_num_seqs": 64}
    after = Study.resolve(content, "delta.yaml")
    assert before.resolved_run(run) == {key: v for key, v in after.resolved_run(run).items() if key != "overrides"}
    assert before.cluster(run)["overrides"] == {}
    assert after.resolved_run(run)["overrides"] == {f"{rollout}.quantization": "fp8"}
    execution = {f"{rollout}.max_num_seqs": 128, "+ray_kwargs.ray_init.include_dashboard": False}
    assert after.cluster(run)["overrides"] == execution
    assert after.cluster("qwen3_14b_base-delta-s1")["overrides"] == {**execution, f"{rollout}.max_num_seqs": 64}
    spec = VerlRun.parse(after.resolved_run(run), "run.json")
    assert spec.parameters()["overrides"] == {f"{rollout}.quantization": "fp8"}
    assert "overrides" not in VerlRun.parse(before.resolved_run(run), "run.json").parameters()
    content["execution"]["cluster"]["overrides"] = {"a b": 1}
    with pytest.raises(InvalidInput, match="an option of verl, such as"):
        Study.resolve(content, "delta.yaml")


def test_where_a_run_is_carried_out_is_no_part_of_it() -> None:
    content, run = delta(), "qwen3_8b_base-delta-s1"
    before, machines = Study.resolve(content, "delta.yaml"), {"nodes": 2, "tokens_per_device": 40960}
    content["execution"]["cluster"] |= machines
    content["execution"]["rollouts_kept_every"] = 20
    after = Study.resolve(content, "delta.yaml")
    assert after.resolved_run(run) == before.resolved_run(run)
    assert after.cluster(run) == {**before.cluster(run), **machines, "rollouts_kept_every": 20}
    assert Cluster.parse(after.cluster(run), "cluster").rollouts_kept_every == 20


def test_the_files_of_runs_are_those_that_training_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = next(path for path in PAPERS if path.stem == "delta")
    arguments = ["plan", "--config", str(path), "--out", str(tmp_path / "runs")]
    assert main(arguments) == 0
    study = Study.read(path)
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


# The papers' studies beside their papers: what a study says of itself, and which verdicts its table can give.

PUBLISHED, SETTINGS = read_reference(REPOSITORY / "config/reference")
SOME = {"inside", "outside", "no interval"}
AS_FAR = {f"{verdict}, as far as published" for verdict in SOME}


def study_of(name: str, **changes: Any) -> Study:
    path = REPOSITORY / "config/papers" / name
    return Study.resolve(read_study_file(path) | changes, path.name)


def compared(name: str, arxiv: str) -> tuple[dict[str, Any], Sequence[Mapping[str, Any]]]:
    """A study's made-up results of full size beside its paper's numbers."""
    study = study_of(name)
    own = own_settings(study)
    sizes = {benchmark: loaded.entry.count for benchmark, loaded in study.benchmarks.items()}
    methods = {model: list(study.methods) for model in study.config.models}
    results = full_size_results(methods, sizes, study.config.evaluation.samples_per_problem)
    return own, [one for one in compare_with_papers(results, PUBLISHED, SETTINGS, own) if one["arxiv"] == arxiv]


@pytest.mark.parametrize(
    ("name", "arxiv", "number", "verdicts"),
    [
        ("delta.yaml", "2605.21467", 105, SOME),
        ("delta_ablations.yaml", "2605.21467", 103, SOME),
        ("delta_olmo3.yaml", "2605.21467", 16, SOME),
        ("delta_generalisation.yaml", "2605.21467", 13, SOME),
        ("dapo.yaml", "2503.14476", 2, AS_FAR),
        ("fipo.yaml", "2603.19835", 18, AS_FAR),
        ("cancellation.yaml", "2605.08666", 15, AS_FAR),
        ("cancellation_conditions.yaml", "2604.13088", 3, AS_FAR),
        ("directions.yaml", "2603.22117", 10, AS_FAR),
        ("directions_7b.yaml", "2603.22117", 27, AS_FAR),
    ],
)
def test_the_numbers_that_a_study_compares_with(name: str, arxiv: str, number: int, verdicts: set[str]) -> None:
    """On made-up results of full size, of the study's models, methods, benchmarks and samples."""
    own, found = compared(name, arxiv)
    comparing = [one for one in found if not one["differing"]]
    assert len(comparing) == number
    for one in comparing:
        verdict, _, rest = one["verdict"].partition(" by ")
        assert verdict + rest.lstrip("0123456789.") in verdicts
        assert own["models"][one["model"]] == one["published_model"]
    assert {one["verdict"] for one in found if one["differing"]} <= {"not comparable"}


def test_numbers_on_problems_that_nobody_has_stand_beside_ours_and_do_not_compare() -> None:
    _, found = compared("delta_generalisation.yaml", "2605.21467")
    beyond = [one for one in found if one["table"] == "appendix, OOD"]
    said = {one["benchmark"]: one["differing"] for one in beyond if "model" not in one["differing"]}
    assert said == {
        "gpqa_diamond": "",
        "MMLU-Pro(600)": "benchmark (MMLU-Pro(600), mmlu_pro_600)",
        "Avg(problem-weighted)": "benchmark (Avg(problem-weighted), gpqa_diamond, mmlu_pro_600)",
    }


def test_a_directory_does_not_name_a_model() -> None:
    models = read_study_file(REPOSITORY / "config/papers/dapo.yaml")["models"]
    assert own_settings(study_of("dapo.yaml"))["models"] == {"qwen2_5_32b": "Qwen2.5-32B"}
    entry = {key: value for key, value in models["qwen2_5_32b"].items() if key != "published_as"}
    study = study_of("dapo.yaml", models={"qwen2_5_32b": entry})
    assert own_settings(study)["models"] == {"qwen2_5_32b": None}
    assert study.model_title("qwen2_5_32b") == "Qwen2.5-32B" == Path(entry["path"]).name
    del entry["path"]
    fetched = study_of("dapo.yaml", models={"qwen2_5_32b": {**entry, "id": "Qwen/Qwen2.5-32B", "revision": "main"}})
    assert own_settings(fetched)["models"] == {"qwen2_5_32b": "Qwen2.5-32B"}


def test_a_model_s_changes_of_a_method_are_the_catalogue_s_entry_for_that_size() -> None:
    assert own_settings(study_of("fipo.yaml")).get("methods") == {"qwen2_5_math_7b": {"fipo": "fipo_symmetric_range"}}
    assert own_settings(study_of("directions_7b.yaml")).get("methods") == {}
