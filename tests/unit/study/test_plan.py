"""The plan of a study: what its rules are given, without Snakemake."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rlvr.study.rules import given, pattern, words
from rlvr.study.sampled import SamplingJobs
from rlvr.study.trained import TrainingJobs

from evals.core.errors import InvalidInput, UserError
from evals.core.files import write_text
from evals.core.records import conditions_of
from evals.core.yaml_file import read_yaml
from evals.grading.code import VERIFIER_VERSION
from rlvr.study import benchmarks, cost
from rlvr.study.displayed import Displayed
from rlvr.study.plan import Plan
from rlvr.study.software import OURS, training_software
from rlvr.study.source_files import REPOSITORY, code_of
from rlvr.study.study_file import read_study, read_study_file

CONFIG = REPOSITORY / "config"
SELECTION = "studies/selection/"


@pytest.fixture(scope="module")
def smoke() -> dict[str, Any]:
    content: dict[str, Any] = read_yaml(CONFIG / "smoke.yaml")
    return content


@pytest.fixture(scope="module")
def plan(smoke: dict[str, Any]) -> Plan:
    return Plan.read(smoke, "config/smoke.yaml")


def changed(smoke: dict[str, Any], dotted: str, value: Any) -> Plan:
    """The plan of the smoke study with the value under a dotted key replaced."""
    content = json.loads(json.dumps(smoke))
    *parents, key = dotted.split(".")
    place = content
    for parent in parents:
        place = place[parent]
    place[key] = value
    return Plan.read(content, "config/changed.yaml")


def test_a_rules_function_takes_the_wildcards_that_it_names(plan: Plan) -> None:
    wildcards = SimpleNamespace(run="tiny-dapo-s1", benchmark="chain_3", folder="")
    assert given(plan.grades)(wildcards) == plan.grades("", "chain_3")
    assert given(plan.problem_kinds)(wildcards) == plan.problem_kinds("chain_3")
    assert given(partial(plan.problem_kinds, "train"))(wildcards) == plan.problem_kinds("train")


def test_every_methods_first_seed_is_trained_before_any_second(smoke: dict[str, Any]) -> None:
    plan = changed(smoke, "seeds", [3, 1, 2])
    order = sorted(plan.trained_runs(""), key=TrainingJobs(plan).training_priority, reverse=True)
    seeds = [plan.studies.runs[run][1].seed for run in order]
    methods = len({run.method for run in plan.study.trained_runs})
    assert seeds == [3] * methods + [1] * methods + [2] * methods
    priorities = map(TrainingJobs(plan).training_priority, plan.trained)
    assert all(30 < priority <= 50 for priority in priorities), "before samples and grades"


def test_rollouts_are_kept_and_shown_where_a_study_asks_for_it_and_no_run_is_another(
    smoke: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = changed(smoke, "execution.rollouts_kept_every", 3)
    execution = {key: value for key, value in smoke["execution"].items() if key != "rollouts_kept_every"}
    none = changed(smoke, "execution", execution)
    page = "results/rollouts/index.html"
    assert page in Displayed(every).files("") and page not in Displayed(none).files("")
    assert "--rollouts-kept-every 3" in TrainingJobs(every).training_options
    assert "rollouts" not in TrainingJobs(none).training_options
    assert not Displayed(none).report_options("") and "rollouts" not in Displayed(none).responses_options("", "chain_3")
    run = every.trained_runs("")[0]
    monkeypatch.chdir(tmp_path)
    assert Displayed(every).replays("") == {} and "--replayed" not in Displayed(every).rollouts_options("")
    write_text(Path("results/diagnostics", run, "manifest.json"), "a")
    first = Displayed(every).replays("")
    write_text(Path("results/diagnostics", run, "manifest.json"), "b")
    assert Displayed(every).replays("") != first and list(first) == [f"results/diagnostics/{run}"]
    assert Displayed(every).rollouts_options("")[-2:] == ["--replayed", f"results/diagnostics/{run}"]
    for run in none.trained_runs(""):
        spec = TrainingJobs(every).run_spec(run)
        assert spec == TrainingJobs(none).run_spec(run) and "rollouts" not in spec
    for value in (0, 1.5):
        with pytest.raises(InvalidInput, match=r"execution\.rollouts_kept_every"):
            changed(smoke, "execution.rollouts_kept_every", value)


def test_a_mistake_of_the_user_ends_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def refuse() -> None:
        raise UserError("models.x: is not there")

    with pytest.raises(SystemExit) as stop:
        given(refuse)(SimpleNamespace())
    assert stop.value.code == "error: models.x: is not there"


def test_values_of_the_command_line_have_their_types_and_change_nothing_else(smoke: dict[str, Any]) -> None:
    """Snakemake gives what is nested as text."""
    changes = {"seeds": ["1", "2", "3"], "training": {"learning_rate": "1e-4"}, "study": "other", "contrast_steps": 0}
    content = read_study([CONFIG / "smoke.yaml"], changes)
    assert (content["seeds"], content["study"], content["contrast_steps"]) == ([1, 2, 3], "other", 0)
    assert content["training"] == {**smoke["training"], "learning_rate": 0.0001}
    assert Plan.read(content, "config/smoke.yaml").study.config.seeds == (1, 2, 3)
    with pytest.raises(UserError, match="--config seeds: is not valid YAML"):
        read_study([CONFIG / "smoke.yaml"], {"seeds": ["{"]})


def test_a_file_that_is_no_study_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text("seeds:\n  - 1\n study: x\n")
    with pytest.raises(UserError, match=r"study\.yaml: is not valid YAML in line 3"):
        read_study([tmp_path / "study.yaml"], {})
    (tmp_path / "study.yaml").write_text("")
    with pytest.raises(UserError, match=r"study\.yaml: has no keys"):
        read_study([tmp_path / "study.yaml"], {})


def test_a_gpu_that_is_not_there_is_said_when_a_study_is_planned(
    smoke: dict[str, Any], plan: Plan, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_gpu = changed(smoke, "execution.device", "cuda").study
    monkeypatch.setattr(cost, "_GPU_DEVICES", ("no-such-device",))
    cost.print_warnings(on_gpu)
    assert capsys.readouterr().err.startswith("warning: execution.device is cuda, and this machine shows no GPU")
    cost.print_warnings(plan.study)
    monkeypatch.setattr(cost, "_GPU_DEVICES", ("null",))
    cost.print_warnings(on_gpu)
    assert capsys.readouterr().err == ""


def test_options_and_patterns() -> None:
    assert words({"top_p": 1.0, "runs": ["a", "b"]}) == ["--top-p", "1.0", "--runs", "a", "b"]
    assert pattern(["a", "b"]) == "a|b"
    assert pattern([]) == "(?!)"


def test_samples_depend_on_the_evaluation_alone(smoke: dict[str, Any], plan: Plan) -> None:
    """With other threads, workers and intervals nothing is a parameter's change."""
    other = changed(smoke, "execution.sampling_threads", 7)
    before, after = SamplingJobs(plan), SamplingJobs(other)
    assert before.sampling_command != after.sampling_command
    for run in plan.runs:
        assert before.sampling_options(run, "chain_3") == after.sampling_options(run, "chain_3")
        assert before.evaluation(run, "chain_3") == after.evaluation(run, "chain_3")
    hotter = changed(smoke, "evaluation.temperature", 0.5)
    assert SamplingJobs(hotter).evaluation("tiny-base", "chain_3") != before.evaluation("tiny-base", "chain_3")


def test_a_coefficient_changes_the_runs_of_its_method_alone(smoke: dict[str, Any], plan: Plan) -> None:
    other = changed(smoke, "methods.delta", {"token_weights": {"lambda_max": 1.3}})
    before, after = TrainingJobs(plan), TrainingJobs(other)
    differing = {run for run in plan.trained_runs("") if after.run_spec(run) != before.run_spec(run)}
    assert differing == {"tiny-delta-s1", "tiny-delta-s2"}


def test_a_validation_draws_problems_of_its_own_for_every_training(smoke: dict[str, Any], plan: Plan) -> None:
    settings = {"seed": 9, "count": 20, "every": 2, "samples_per_problem": 4}
    other = changed(smoke, "validation", settings)
    assert plan.trained_with == ["train"] and "validation" not in TrainingJobs(plan).run_spec("tiny-dapo-s1")
    assert other.trained_with == ["train", "validation"]
    assert (other.problem_kinds("validation"), other.problem_count("validation")) == (plan.problem_kinds("train"), 20)
    spec = json.loads(TrainingJobs(other).run_spec("tiny-dapo-s1"))
    problems = "results/problems/validation"
    assert spec.pop("validation") == {"problems": problems, "every": 2, "samples_per_problem": 4}
    assert spec == json.loads(TrainingJobs(plan).run_spec("tiny-dapo-s1"))


def test_the_order_of_keys_means_nothing(smoke: dict[str, Any], plan: Plan) -> None:
    other = changed(smoke, "evaluation", dict(reversed(smoke["evaluation"].items())))
    assert other.study_json("") == plan.study_json("")
    settings = [SamplingJobs(each).evaluation("tiny-base", "chain_3") for each in (plan, other)]
    assert settings[0] == settings[1]


def test_a_benchmark_more_adds_its_own_files(smoke: dict[str, Any], plan: Plan) -> None:
    other = changed(smoke, "benchmarks", [*smoke["benchmarks"], "chain_5"])
    more = set(other.intermediate("")) - set(plan.intermediate(""))
    assert more and all("/chain_5/" in path for path in more)
    assert set(plan.intermediate("")) <= set(other.intermediate(""))


def test_a_seed_more_adds_its_own_runs(smoke: dict[str, Any], plan: Plan) -> None:
    other = changed(smoke, "seeds", [1, 2, 7])
    assert {run.removesuffix("-s7") for run in set(other.trained_runs("")) - set(plan.trained_runs(""))} == {
        run.removesuffix("-s1") for run in plan.trained_runs("") if run.endswith("-s1")
    }


def test_a_run_starts_from_its_model_and_is_evaluated_at_its_end(plan: Plan) -> None:
    assert plan.base_manifest("tiny-dapo-s1") == "results/base/tiny/manifest.json"
    assert plan.checkpoint_manifest("tiny-dapo-s1") == "results/runs/tiny-dapo-s1/manifest.json"
    assert plan.checkpoint_manifest("tiny-base") == "results/base/tiny/manifest.json"
    assert TrainingJobs(plan).training_gpus("tiny-dapo-s1") == TrainingJobs(plan).ray_clusters("tiny-dapo-s1") == 0


def test_the_main_studys_results_lie_in_no_folder_of_their_own(plan: Plan) -> None:
    displayed = Displayed(plan)
    assert "results/tables/main.md" in displayed.files("")
    assert displayed.tables(SELECTION)[0] == f"results/{SELECTION}tables/main.md"
    assert f"results/{SELECTION}figures/score_curves.png" in displayed.figures(SELECTION)
    assert plan.scores(SELECTION)[0].startswith(f"results/{SELECTION}scores/")
    assert all(path.startswith("results/samples/") for path in plan.samples(SELECTION, "chain_3"))


def test_only_tables_of_papers_depend_on_published_numbers(plan: Plan) -> None:
    displayed = Displayed(plan)
    assert displayed.table_reference("by_seed") == displayed.table_reference("audit") == []
    names = [Path(path).name for path in displayed.table_reference("paper_vs_ours")]
    assert names == ["published.csv", "settings.yaml"]
    assert "--comparisons" not in displayed.table_options("", "audit")


def test_a_decayed_learning_rate_stands_beside_published_numbers(smoke: dict[str, Any], plan: Plan) -> None:
    """No paper has such a checkpoint, so that its numbers are not comparable then."""
    decayed = changed(smoke, "training.learning_rate_decay_from", 0.5)
    own = [json.loads(Displayed(each).own_settings()) for each in (plan, decayed)]
    assert own[0]["checkpoint"] == "last"
    assert own[1] == {**own[0], "checkpoint": "last, after a decay of the learning rate"}


def test_what_is_not_there_is_named(smoke: dict[str, Any]) -> None:
    python = changed(smoke, "execution.sampling_python", ".venv-nowhere/bin/python")
    with pytest.raises(UserError, match=r"execution.sampling_python: .venv-nowhere/bin/python"):
        SamplingJobs(python).sampling_command  # noqa: B018
    problems = {"source": "deepmath_103k", "path": "nowhere.jsonl", "prompt": "{problem}"}
    with pytest.raises(UserError, match=r"problems: path: .*nowhere\.jsonl: no such file or directory"):
        changed(smoke, "problems", problems)


def test_a_model_that_is_not_there_stops_a_study_but_not_the_plan_of_one_by_verl(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plan = Plan.read(read_yaml(CONFIG / "papers" / "delta.yaml"), "config/papers/delta.yaml")
    model = next(name for name, entry in plan.study.existing_models.items() if entry.path)
    with pytest.raises(UserError, match=rf"models.{model}.path: .*: no such directory"):
        TrainingJobs(plan).model_files(model, only_planning=False)
    assert TrainingJobs(plan).model_files(model, only_planning=True) == []
    assert f"not here yet: models.{model}.path" in capsys.readouterr().err


def test_a_run_by_verl_on_several_nodes_is_one_job_of_theirs_or_has_a_ray_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    plan = Plan.read(read_yaml(CONFIG / "papers" / "delta.yaml"), "delta")
    run, alone = plan.trained_runs("")[0], TrainingJobs(plan)
    assert alone.training_gpus(run) == json.loads(alone.cluster(run))["gpus_per_node"] > 0
    assert (alone.training_nodes(run), alone.training_gres(run)) == (1, "")
    plan = Plan.read(read_yaml(CONFIG / "papers" / "dapo.yaml"), "dapo")
    several = TrainingJobs(plan)

    def asked() -> set[tuple[int, str, int]]:
        assert all(several.training_gpus(run) == 0 for run in plan.trained)
        return {
            (several.training_nodes(run), several.training_gres(run), several.ray_clusters(run)) for run in plan.trained
        }

    assert asked() == {(8, "gpu:8", 0)}
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert asked() == {(1, "", 1)} and (alone.training_nodes(run), alone.ray_clusters(run)) == (1, 0)
    assert SamplingJobs(plan).sampling_gpus == 2


def test_a_steps_code_is_all_of_ours_that_it_imports() -> None:
    files = {Path(path).resolve().relative_to(REPOSITORY).as_posix() for path in code_of("evals.scores.comparison")}
    assert {"evals/scores/comparison.py", "evals/statistics/resampling.py"} <= files
    assert not any(path.startswith(("evals/core", "rlvr/engines")) for path in files)
    with pytest.raises(ValueError, match="no module of ours"):
        code_of("evals.scores.nothing")


@pytest.mark.parametrize("rule", ["score", "audit", "compare", "table", "figure", "report_html", "track"])
def test_cheap_steps_follow_their_code(rule: str) -> None:
    rules = "".join(path.read_text() for path in sorted((REPOSITORY / "workflow/rules").glob("*.smk")))
    body = rules.split(f"\nrule {rule}:\n")[1].split("\nrule ")[0]
    assert "code=" in body


def test_policies_along_a_training_are_evaluated_and_not_trained(plan: Plan) -> None:
    (run,) = [name for name in plan.runs if name.startswith("tiny-delta_top_lambda_step2-s1")]
    trained = "tiny-delta_top_lambda-s1"
    assert run not in plan.trained and trained in plan.trained
    assert plan.checkpoint(run) == f"results/runs/{trained}/checkpoints/step-2"
    assert plan.checkpoint_manifest(run) == f"results/runs/{trained}/checkpoints/step-2.kept"
    assert "2" in TrainingJobs(plan).kept_steps(trained).split()
    assert TrainingJobs(plan).kept_steps("tiny-dapo-s1") == ""  # of the main study
    sheet = [row["run"] for row in json.loads(plan.run_sheet(f"{SELECTION}steps/"))]
    assert sheet[0] == "tiny-base" and run in sheet


EVALUATION: dict[str, Any] = {
    "study": "models",
    "models": {
        "one": {"source": "hugging_face", "id": "Qwen/Qwen3-8B-Base", "revision": "a" * 40, "prompt": "base"},
        "other": {"source": "hugging_face", "path": "../models/other", "prompt": "chat"},
    },
    "benchmarks": ["aime_2025", "math_500"],
    "evaluation": {"backend": "vllm", "samples_per_problem": 4, "max_new_tokens": 99, "temperature": 1, "top_p": 1,
                   "sampling_batch_size": 9, "seed": 1},
    "statistics": {"seed": 1, "resamples": 100, "permutations": 100, "weighting": {"aime_2025": 2, "math_500": 1}},
    "execution": {"device": "cpu", "sampling_threads": 1, "grading_workers": 1},
}  # fmt: skip


def test_a_study_of_models_says_which_they_are_and_that_nothing_was_trained() -> None:
    plan = Plan.read(EVALUATION, "config/models.yaml")
    assert [run.title for run in plan.evaluated_runs("")] == ["Qwen3-8B-Base (one)", "other"]
    titles = [condition.title for condition in conditions_of(plan.evaluated_runs(""))]
    assert titles == ["Qwen3-8B-Base (one)", "other"]  # they name the models by themselves
    evidence = Displayed(plan).evidence
    assert "Qwen3-8B-Base; other" in evidence and "without training" in evidence and "scratch" not in evidence


def test_weights_of_benchmarks_reach_the_comparisons(plan: Plan) -> None:
    assert plan.comparison_options("") == []
    options = Plan.read(EVALUATION, "config/models.yaml").comparison_options("")
    assert options == ["--weighting", "aime_2025=2,math_500=1"]
    with pytest.raises(InvalidInput) as error:
        changed(EVALUATION, "statistics.weighting", {"aime_2025": 1})
    assert error.value.key == "statistics.weighting" and "math_500" in error.value.accepted
    with pytest.raises(InvalidInput):
        changed(EVALUATION, "statistics.weighting", "seeds")


def test_a_fine_tuned_model_is_made_from_one_that_is_imported(smoke: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "solutions.jsonl").write_text("{}")
    tuning = {
        **{"prompt": "{problem}", "seed": 1, "steps": 2, "batch_size": 2, "micro_batch_tokens": 100},
        **{"learning_rate": 0.1, "warmup_steps": 0, "weight_decay": 0.0, "gradient_clip": 1.0},
    }
    entry = {
        **{"source": "fine_tuned", "path": str(tmp_path), "prompt": "chat", "dtype": "float32"},
        **{"solutions": str(tmp_path / "solutions.jsonl"), "fine_tuning": tuning},
    }
    plan = changed(smoke, "models", {"warm": entry})
    assert list(plan.imported) == ["warm-pretrained"]
    assert TrainingJobs(plan).model_source("warm-pretrained") == ["--model", str(tmp_path)]
    assert plan.study.solutions("warm") == [str(tmp_path / "solutions.jsonl")] == plan.trained_on[-1:]
    assert json.loads(TrainingJobs(plan).fine_tuning("warm")) == {**tuning, "dtype": "float32", "prompt_form": "chat"}
    assert plan.base_manifest("warm-dapo-s1") == "results/base/warm/manifest.json"
    assert json.loads(TrainingJobs(plan).run_spec("warm-dapo-s1"))["prompt_form"] == "chat"
    assert "results/base/warm-pretrained/manifest.json" in plan.intermediate("")
    with pytest.raises(UserError, match=r"models\.warm\.solutions: .*: no such file"):
        changed(smoke, "models", {"warm": {**entry, "solutions": "none.jsonl"}})
    with pytest.raises(InvalidInput, match=r"models\.warm\.solutions: names problems, which have no solutions"):
        changed(smoke, "models", {"warm": {**entry, "solutions": "problems"}})


def test_a_model_is_fine_tuned_on_several_sets_of_solutions(tmp_path: Path) -> None:
    content = read_study_file(CONFIG / "smollm2_gsm8k.yaml")
    own, steps = tmp_path / "own.jsonl", tmp_path / "steps.jsonl"
    model = content["models"]["smollm2"]
    model["solutions"] = ["problems", {"source": "gsm8k_steps", "path": str(steps)}, str(own)]
    for place in [model, content["problems"], *content["benchmark_sources"].values()]:
        place["path"] = str(tmp_path / Path(place["path"]).name)
        Path(place["path"]).touch()
    with pytest.raises(UserError, match=r"^gsm8k_steps: path: .*steps\.jsonl: no such file or directory$"):
        Plan.read(content, "here")
    steps.touch()
    with pytest.raises(UserError, match=r"models\.smollm2\.solutions: .*own\.jsonl: no such file$"):
        Plan.read(content, "here")
    own.touch()
    plan = Plan.read(content, "here")
    files = ["results/problems/train/problems.jsonl", "results/solutions/gsm8k_steps/problems.jsonl", str(own)]
    assert plan.study.solutions("smollm2") == plan.trained_on == files
    assert plan.solution_files("gsm8k_steps") == [str(steps)]
    settings = json.loads(plan.solution_settings("gsm8k_steps"))
    assert settings["columns"] == "gsm8k_steps" and settings["path"] == str(steps)
    assert "results/solutions/gsm8k_steps/manifest.json" in plan.intermediate("")
    without = {**model, "solutions": [{"source": "gsm8k_steps", "path": str(steps), "exclude": ["a"]}]}
    plan = Plan.read({**content, "models": {"smollm2": without}}, "here")
    assert plan.study.solution_settings["gsm8k_steps"]["exclude"] == ["a"]
    with pytest.raises(InvalidInput, match=r"solutions: are problems, problems; accepted: each once"):
        Plan.read({**content, "models": {"smollm2": {**model, "solutions": ["problems", "problems"]}}}, "here")
    with pytest.raises(
        InvalidInput, match=r"solutions: names dapo_math_17k, which have no solutions; accepted: a file"
    ):
        Plan.read({**content, "models": {"smollm2": {**model, "solutions": [{"source": "dapo_math_17k"}]}}}, "here")
    other = {**model, "solutions": [{"source": "gsm8k_steps"}]}
    with pytest.raises(InvalidInput, match=r"models\.other\.solutions: names gsm8k_steps with another path"):
        Plan.read({**content, "models": {"smollm2": model, "other": other}}, "here")
    with pytest.raises(InvalidInput, match=r"models\.smollm2\.solutions\.source: 'none' is no training set"):
        Plan.read({**content, "models": {"smollm2": {**model, "solutions": [{"source": "none"}]}}}, "here")


def test_the_shipped_study_of_a_pretrained_model_is_planned_and_says_which_file_is_missing(tmp_path: Path) -> None:
    content = read_yaml(CONFIG / "smollm2.yaml")
    places = [content["models"]["smollm2"], content["problems"], *content["benchmark_sources"].values()]
    for place in places:
        place["path"] = str(tmp_path / Path(place["path"]).name)
        Path(place["path"]).touch()
    plan = Plan.read(content, "smollm2.yaml")
    assert plan.study.solutions("smollm2") == ["results/problems/train/problems.jsonl"]
    assert plan.trained_on == plan.study.solutions(
        "smollm2"
    )  # once, though both a method and the warm start learn from it
    files = TrainingJobs(plan).model_files("smollm2-pretrained", only_planning=True)
    assert files == [str(tmp_path / "SmolLM2-135M-Instruct.Q4_1.gguf")]
    assert len(plan.study.trained_runs) == 12
    assert json.loads(TrainingJobs(plan).run_spec("smollm2-delta-s2"))["training"]["share_prompts"] is True
    (tmp_path / "svamp.json").unlink()
    with pytest.raises(UserError, match=r"^svamp: path: .*svamp\.json: no such file or directory$"):
        Plan.read(content, "smollm2.yaml")


def test_rollouts_by_vllm_change_a_run_and_the_environment_that_trains_it(smoke: dict[str, Any], plan: Plan) -> None:
    content = {key: value for key, value in smoke.items() if key != "diagnostics"}
    content["training"] = {**smoke["training"], "sampling_backend": "vllm"}
    jobs, before = TrainingJobs(Plan.read(content, "mine.yaml")), TrainingJobs(plan)
    (run, *_) = jobs.plan.trained
    assert json.loads(jobs.run_spec(run))["training"]["sampling_backend"] == "vllm"
    assert "sampling_backend" not in json.loads(before.run_spec(run))["training"]
    assert jobs.training_python == before.training_python == "python"
    assert Path(str(training_software(jobs.plan).conda)).name == "vllm.yaml"
    assert training_software(plan) is OURS
    content["execution"] = {**smoke["execution"], "training_python": "no/such/python"}
    named = Plan.read(content, "mine.yaml")
    assert training_software(named) is OURS
    with pytest.raises(UserError, match=r"^execution\.training_python: no/such/python: no such file"):
        TrainingJobs(named).training_python  # noqa: B018


def test_a_verifier_changes_what_it_grades_and_nothing_else(
    smoke: dict[str, Any], plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text("def verify(problem, response):\n    return 1\n")
    without = {**smoke, "diagnostics": None}
    del without["diagnostics"]
    own = Plan.read({**without, "problems": {**smoke["problems"], "verifier": str(mine)}}, "mine.yaml")
    assert own.problem_kinds("train") == plan.problem_kinds("train")
    assert own.verifier("train") == ["results/verifiers/train/verifier.py"] and own.verifier("chain_3") == []
    assert SamplingJobs(own).grading_kind("chain_3") == SamplingJobs(plan).grading_kind("chain_3") == "completion"
    (run, *_) = own.trained
    spec, before = (json.loads(TrainingJobs(each).run_spec(run)) for each in (own, plan))
    assert spec == {**before, "verifier": {"directory": "results/verifiers/train", "version": VERIFIER_VERSION}}
    assert "results/verifiers/train/manifest.json" in own.intermediate("")

    benchmark = benchmarks._read_benchmark("chain_3", "", "").model_copy(update={"verifier": str(mine)})
    monkeypatch.setattr(benchmarks, "_read_benchmark", lambda *_: benchmark)
    graded = Plan.read({**without, "benchmarks": ["chain_3"]}, "mine.yaml")
    assert graded.verifier("chain_3") == ["results/verifiers/chain_3/verifier.py"] and graded.verifier("train") == []
    jobs = SamplingJobs(graded)
    assert (jobs.grading_kind("chain_3"), jobs.grader_version("chain_3")) == ("verifier", "verifier 1")
    assert graded._problem_settings("chain_3") == plan._problem_settings("chain_3")
    assert json.loads(TrainingJobs(graded).run_spec(run)) == before


@pytest.mark.parametrize(
    ("text", "diagnosed", "complaint"),
    [
        (None, False, "mine.py: no such file"),
        ("verify = 1\n", False, "mine.py: has no function verify; accepted: def verify(problem, response)"),
        (
            "def verify(problem, response): return 1\n",
            True,
            "diagnostics: measures correctness by the project",
        ),
    ],
)
def test_a_verifier_is_refused_before_work_starts(
    smoke: dict[str, Any], tmp_path: Path, text: str | None, diagnosed: bool, complaint: str
) -> None:
    if text is not None:
        (tmp_path / "mine.py").write_text(text)
    content = {**smoke, "problems": {**smoke["problems"], "verifier": str(tmp_path / "mine.py")}}
    if not diagnosed:
        del content["diagnostics"]
    with pytest.raises(UserError) as raised:
        Plan.read(content, "mine.yaml")
    assert complaint in str(raised.value)
