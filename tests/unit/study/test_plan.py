"""The plan of a study: its stages, without Snakemake."""

from pathlib import Path
from typing import Any

import pytest

from evals.core.errors import InvalidInput, UserError
from evals.core.files import write_text
from evals.core.records import conditions_of
from evals.core.yaml_file import read_yaml
from evals.grading.code import VERIFIER_VERSION
from rlvr.study import benchmarks, notices
from rlvr.study.displayed import Displayed
from rlvr.study.jobs import inputs
from rlvr.study.plan import Plan
from rlvr.study.software import software
from rlvr.study.source_files import REPOSITORY, code_of
from rlvr.study.study_file import read_study, read_study_file
from rlvr.study.targets import Targets
from tests.unit.study.planned import changed, remade, stages_of

CONFIG = REPOSITORY / "config"
SELECTION = "studies/selection/"


@pytest.fixture(scope="module")
def smoke() -> dict[str, Any]:
    content: dict[str, Any] = read_yaml(CONFIG / "smoke.yaml")
    return content


@pytest.fixture(scope="module")
def plan(smoke: dict[str, Any]) -> Plan:
    return Plan.read(smoke, "config/smoke.yaml")


def test_every_methods_first_seed_is_trained_before_any_second(smoke: dict[str, Any]) -> None:
    plan = changed(smoke, "seeds", [3, 1, 2])
    stages = stages_of(plan)
    order = sorted(plan.trained_runs(""), key=lambda run: -stages[f"train {run}"].priority)
    seeds = [plan.studies.runs[run][1].seed for run in order]
    methods = len({run.method for run in plan.study.trained_runs})
    assert seeds == [3] * methods + [1] * methods + [2] * methods
    assert all(30 < stages[f"train {run}"].priority <= 50 for run in plan.trained), "before samples and grades"


def test_rollouts_are_kept_and_shown_where_a_study_asks_for_it_and_no_run_is_another(
    smoke: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    every = changed(smoke, "execution.rollouts_kept_every", 3)
    execution = {key: value for key, value in smoke["execution"].items() if key != "rollouts_kept_every"}
    none = changed(smoke, "execution", execution)
    with_page, without = stages_of(every), stages_of(none)
    assert "page_rollouts" in with_page and "page_rollouts" not in without
    assert with_page["report_html"].rollouts and not without["report_html"].rollouts
    assert not without["page_responses chain_3"].rollouts
    assert not [name for name in remade(every, none) if name.startswith(("train", "sample", "grade"))]
    run = every.trained_runs("")[0]
    assert with_page["page_rollouts"].replays == {}
    write_text(Path("results/diagnostics", run, "manifest.json"), "a")
    first = stages_of(every)["page_rollouts"]
    write_text(Path("results/diagnostics", run, "manifest.json"), "b")
    assert stages_of(every)["page_rollouts"].settings() != first.settings()
    assert first.arguments()["replayed"] == (Path(f"results/diagnostics/{run}"),)
    for value in (0, 1.5):
        with pytest.raises(InvalidInput, match=r"execution\.rollouts_kept_every"):
            changed(smoke, "execution.rollouts_kept_every", value)


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
    (tmp_path / "study.yaml").write_text("")
    with pytest.raises(UserError, match=r"study\.yaml: has no keys"):
        read_study([tmp_path / "study.yaml"], {})


def test_a_gpu_that_is_not_there_is_said_when_a_study_is_planned(
    smoke: dict[str, Any], plan: Plan, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_gpu = changed(smoke, "execution.device", "cuda").study
    monkeypatch.setattr(notices, "_GPU_DEVICES", ("no-such-device",))
    notices.print_notices(on_gpu, {})
    assert capsys.readouterr().err.startswith("warning: execution.device is cuda, and this machine shows no GPU")
    notices.print_notices(plan.study, {})
    monkeypatch.setattr(notices, "_GPU_DEVICES", ("null",))
    for build, words in {
        "2.13.0": "",
        "2.13.0+cpu": "warning: this machine has a GPU, and torch is a build for CPUs",
    }.items():
        monkeypatch.setattr(notices, "version", lambda _, build=build: build)
        notices.print_notices(on_gpu, {})
        assert capsys.readouterr().err.startswith(words) and bool(words) == build.endswith("+cpu")


def test_samples_depend_on_the_evaluation_alone(smoke: dict[str, Any], plan: Plan) -> None:
    hotter = remade(plan, changed(smoke, "evaluation.temperature", 0.5))
    assert {f"sample {run}" for run in plan.runs} <= hotter
    assert not [name for name in hotter if name.startswith(("train", "base_model", "draw_problems"))]


def test_a_validation_draws_problems_of_its_own_for_every_training(smoke: dict[str, Any], plan: Plan) -> None:
    settings = {"seed": 9, "count": 20, "every": 2, "samples_per_problem": 4}
    other, before = stages_of(changed(smoke, "validation", settings)), stages_of(plan)
    assert "draw_problems validation" not in before
    drawn = other["draw_problems validation"]
    assert (drawn.kinds, drawn.count, drawn.split) == (before["draw_problems train"].kinds, 20, "evaluation")
    training, without = other["train tiny-dapo-s1"], before["train tiny-dapo-s1"]
    assert Path("results/problems/validation/manifest.json") in training.problems
    problems = "results/problems/validation"
    assert training.resolved["validation"] == {"problems": problems, "every": 2, "samples_per_problem": 4}
    assert without.resolved == {key: value for key, value in training.resolved.items() if key != "validation"}


def test_the_order_of_keys_means_nothing(smoke: dict[str, Any], plan: Plan) -> None:
    assert remade(plan, changed(smoke, "evaluation", dict(reversed(smoke["evaluation"].items())))) == set()


def test_what_is_asked_for_names_every_file_on_the_way(plan: Plan) -> None:
    """A lost file is made again though the table made from it is there."""
    files = Targets(plan).by_name["all"]()
    for path in (
        *("comparisons.json", "scores/chain_3.json", "grades/tiny-dapo-s1/chain_3/audit.json"),
        *("samples/tiny-base/variables_4/manifest.json", "runs/tiny-delta-s2/manifest.json"),
        *("base/tiny/manifest.json", "problems/train/manifest.json", "problems/chain_3/disjoint.json"),
    ):
        assert f"results/{path}" in files
    assert not any("selection" in path for path in files)


def test_a_run_starts_from_its_model_and_is_evaluated_at_its_end(plan: Plan) -> None:
    stages = stages_of(plan)
    training = stages["train tiny-dapo-s1"]
    assert str(training.base) == "results/base/tiny/manifest.json"
    assert str(stages["sample tiny-dapo-s1"].checkpoint) == "results/runs/tiny-dapo-s1/manifest.json"
    assert str(stages["sample tiny-base"].checkpoint) == "results/base/tiny/manifest.json"
    assert training.resources(plan.execution) == {"gpu": 0}


def test_the_main_studys_results_lie_in_no_folder_of_their_own(plan: Plan) -> None:
    stages = stages_of(plan)
    assert stages["table_main"].paths()[0] == "results/tables/main.md"
    assert stages[f"table_main {SELECTION}"].paths()[0] == f"results/{SELECTION}tables/main.md"
    assert f"figure_score_curves {SELECTION}" in stages
    assert all(str(path).startswith("results/grades/") for path in stages[f"score {SELECTION} chain_3"].grades)


def test_only_the_table_of_published_numbers_depends_on_them(plan: Plan) -> None:
    published = {
        name for name, stage in stages_of(plan).items() if any("published.csv" in path for path in stage.inputs())
    }
    folders = [folder for folder, study in plan.studies.by_folder.items() if folder and study.config.doses is None]
    assert published == {"table_paper_vs_ours", *(f"table_paper_vs_ours {folder}" for folder in folders)}


def test_a_decayed_learning_rate_stands_beside_published_numbers(smoke: dict[str, Any], plan: Plan) -> None:
    """No paper has such a checkpoint, so that its numbers are not comparable then."""
    decayed = changed(smoke, "training.learning_rate_decay_from", 0.5)
    own = [Displayed(each).own_settings() for each in (plan, decayed)]
    assert own[0]["checkpoint"] == "last"
    assert own[1] == {**own[0], "checkpoint": "last, after a decay of the learning rate"}


def test_what_is_not_there_is_named(smoke: dict[str, Any]) -> None:
    python = changed(smoke, "execution.sampling_python", ".venv-nowhere/bin/python")
    with pytest.raises(UserError, match=r"execution.sampling_python: .venv-nowhere/bin/python"):
        software(python, "sampling")
    problems = {"source": "deepmath_103k", "path": "nowhere.jsonl", "prompt": "{problem}"}
    with pytest.raises(UserError, match=r"problems: path: .*nowhere\.jsonl: no such file or directory"):
        changed(smoke, "problems", problems)


def test_a_model_that_is_not_there_stops_a_study_but_not_the_plan_of_one_by_verl(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plan = Plan.read(read_yaml(CONFIG / "papers" / "delta.yaml"), "config/papers/delta.yaml")
    model = next(name for name, entry in plan.study.existing_models.items() if entry.path)
    stage = stages_of(plan)[f"import_model {model}"]
    with pytest.raises(UserError, match=rf"models.{model}.path: .*: no such directory"):
        inputs(stage, plan.missing, only_planning=False)
    assert inputs(stage, plan.missing, only_planning=True) == []
    assert f"not here yet: models.{model}.path" in capsys.readouterr().err


def test_a_run_by_verl_on_several_nodes_is_one_job_of_theirs_or_has_a_ray_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    def asked(name: str) -> list[dict[str, Any]]:
        plan = Plan.read(read_yaml(CONFIG / "papers" / f"{name}.yaml"), name)
        trainings = (stage for stage in stages_of(plan).values() if stage.kind == "train")
        different: list[dict[str, Any]] = []
        for stage in trainings:
            needs = stage.resources(plan.execution)
            different += [needs] if needs not in different else []
        return different

    assert asked("delta") == [{"nodes": 1, "gpu": 8, "gres": "", "ray_cluster": 0}]
    assert asked("dapo") == [{"nodes": 8, "gpu": 0, "gres": "gpu:8", "ray_cluster": 0}]
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert asked("dapo") == [{"nodes": 1, "gpu": 0, "gres": "", "ray_cluster": 1}]
    assert asked("delta")[0]["ray_cluster"] == 0


def test_a_steps_code_is_all_of_ours_that_it_imports() -> None:
    files = {Path(path).resolve().relative_to(REPOSITORY).as_posix() for path in code_of("evals.scores.comparison")}
    assert {"evals/scores/comparison.py", "evals/statistics/resampling.py"} <= files
    assert not any(path.startswith(("evals/core", "rlvr/engines")) for path in files)
    with pytest.raises(ValueError, match="no module of ours"):
        code_of("evals.scores.nothing")


def test_cheap_steps_follow_their_code_and_computing_ones_a_version(plan: Plan) -> None:
    for name, stage in stages_of(plan).items():
        if stage.cost:
            versioned = stage.versions() is not None or stage.kind in ("train", "policy_at_step")
            assert not stage.code and versioned, name
        elif stage.kind.startswith(("score", "compare", "table", "figure", "page", "report", "track", "phenomenon")):
            assert any(path.endswith(".py") for path in inputs(stage)), name


def test_policies_along_a_training_are_evaluated_and_not_trained(plan: Plan) -> None:
    run, trained, stages = "tiny-delta_top_lambda_step2-s1", "tiny-delta_top_lambda-s1", stages_of(plan)
    assert run not in plan.trained and trained in plan.trained
    sampled = stages[f"sample {run}"]
    assert (
        sampled.source == f"results/runs/{trained}/checkpoints/step-2"
        and str(sampled.checkpoint) == f"{sampled.source}.kept"
    )
    assert 2 in stages[f"train {trained}"].kept_steps
    assert stages["train tiny-dapo-s1"].kept_steps == ()  # of the main study
    sheet = [row["run"] for row in stages[f"run_sheet {SELECTION}steps/"].sheet]
    assert sheet[0] == "tiny-base" and run in sheet


EVALUATION: dict[str, Any] = {
    "study": "models",
    "models": {
        "one": {"source": "hugging_face", "id": "Qwen/Qwen3-8B-Base", "revision": "a" * 40, "prompt_form": "base"},
        "other": {"source": "hugging_face", "path": "../models/other", "prompt_form": "chat"},
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
    assert stages_of(plan)["compare"].statistics.weighting is None
    compared = stages_of(Plan.read(EVALUATION, "config/models.yaml"))["compare"]
    assert compared.statistics.weighting == {"aime_2025": 2, "math_500": 1}
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
        **{"source": "fine_tuned", "path": str(tmp_path), "prompt_form": "chat", "dtype": "float32"},
        **{"solutions": str(tmp_path / "solutions.jsonl"), "fine_tuning": tuning},
    }
    plan = changed(smoke, "models", {"warm": entry})
    assert list(plan.imported) == ["warm-pretrained"]
    stages = stages_of(plan)
    assert stages["import_model warm-pretrained"].arguments() == {"model": str(tmp_path), "revision": None}
    assert plan.study.solutions("warm") == [str(tmp_path / "solutions.jsonl")] == plan.trained_on[-1:]
    tuned = stages["fine_tuned_model warm"]
    assert tuned.training == {**tuning, "dtype": "float32", "prompt_form": "chat"}
    assert str(tuned.base) == "results/base/warm-pretrained/manifest.json"
    assert str(stages["train warm-dapo-s1"].base) == "results/base/warm/manifest.json"
    assert stages["train warm-dapo-s1"].resolved["prompt_form"] == "chat"
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
    assert stages_of(plan)["read_solutions gsm8k_steps"].inputs() == [str(steps)]
    settings = stages_of(plan)["read_solutions gsm8k_steps"].content
    assert settings["columns"] == "gsm8k_steps" and settings["path"] == str(steps)
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
    config = Path(content["models"]["smollm2"]["path"]) / "config.json"
    config.parent.unlink()
    config.parent.mkdir()
    config.touch()
    plan = Plan.read(content, "smollm2.yaml")
    assert plan.study.solutions("smollm2") == ["results/problems/train/problems.jsonl"]
    assert plan.trained_on == plan.study.solutions(
        "smollm2"
    )  # once, though both a method and the warm start learn from it
    stages = stages_of(plan)
    assert stages["import_model smollm2-pretrained"].inputs() == [str(config)]
    assert len(plan.study.trained_runs) == 20
    assert stages["train smollm2-delta-s2"].resolved["training"]["share_prompts"] is True
    (tmp_path / "svamp.json").unlink()
    with pytest.raises(UserError, match=r"^svamp: path: .*svamp\.json: no such file or directory$"):
        Plan.read(content, "smollm2.yaml")


def test_rollouts_by_vllm_change_a_run_and_the_environment_that_trains_it(smoke: dict[str, Any], plan: Plan) -> None:
    content = {key: value for key, value in smoke.items() if key != "diagnostics"}
    content["training"] = {**smoke["training"], "sampling_backend": "vllm"}
    by_vllm = Plan.read(content, "mine.yaml")
    name = f"train {by_vllm.trained[0]}"
    assert stages_of(by_vllm)[name].resolved["training"]["sampling_backend"] == "vllm"
    assert "sampling_backend" not in stages_of(plan)[name].resolved["training"]
    assert software(by_vllm, "training").python == software(plan, "training").python == "python"
    assert Path(str(software(by_vllm, "training").conda)).name == "vllm.yaml"
    assert software(plan, "training") == software(plan, "")
    content["execution"] = {**smoke["execution"], "training_python": "no/such/python"}
    with pytest.raises(UserError, match=r"^execution\.training_python: no/such/python: no such file"):
        software(Plan.read(content, "mine.yaml"), "training")


def test_a_verifier_changes_what_it_grades_and_nothing_else(
    smoke: dict[str, Any], plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text("def verify(problem, response):\n    return 1\n")
    without = {**smoke, "diagnostics": None}
    del without["diagnostics"]
    own = Plan.read({**without, "problems": {**smoke["problems"], "verifier": str(mine)}}, "mine.yaml")
    stages, before = stages_of(own), stages_of(plan)
    assert stages["draw_problems train"] == before["draw_problems train"]
    assert stages["try_verifier train"].inputs() == [str(mine), "results/problems/train/problems.jsonl"]
    copy = Path("results/verifiers/train/verifier.py")
    name = f"train {own.trained[0]}"
    assert stages[name].verifier == (copy,)
    verifier = {"directory": "results/verifiers/train", "version": VERIFIER_VERSION}
    assert stages[name].resolved == {**before[name].resolved, "verifier": verifier}
    assert stages["grade tiny-base"] == before["grade tiny-base"]

    benchmark = benchmarks._read_benchmark("chain_3", "", "").model_copy(update={"verifier": str(mine)})
    monkeypatch.setattr(benchmarks, "_read_benchmark", lambda *_: benchmark)
    graded = stages_of(Plan.read({**without, "benchmarks": ["chain_3"]}, "mine.yaml"))
    grading = graded["grade tiny-base"]
    assert grading.verifiers == {"chain_3": Path("results/verifiers/chain_3/verifier.py")}
    assert grading.grading["chain_3"].to_json() == {"kind": "verifier", "version": f"verifier {VERIFIER_VERSION}"}
    assert graded["draw_problems chain_3"] == before["draw_problems chain_3"]
    assert graded[name].resolved == before[name].resolved


def test_another_extraction_grades_a_benchmark_again_and_nothing_else(
    smoke: dict[str, Any], plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_extraction(name: str, *where: str) -> Any:
        entry = read(name, *where)
        return entry.model_copy(update={"extraction": "last_statement"}) if name == "variables_4" else entry

    read = benchmarks._read_benchmark
    monkeypatch.setattr(benchmarks, "_read_benchmark", with_extraction)
    stated = Plan.read(smoke, "mine.yaml")
    again = remade(plan, stated)
    assert {name.split()[0] for name in again} == {"grade", "decoding_grade"}
    grading = stages_of(stated)["grade tiny-base"].grading
    assert {name: how.kind for name, how in grading.items() if how.kind != "completion"} == {
        "variables_4": "last_statement"
    }
    assert "Departure: rewards are for marked answers, and variables_4" in notices.prompts(stated.study)[0]
    diagnosed = {**smoke, "diagnostics": {**smoke["diagnostics"], "benchmark": "variables_4"}}
    with pytest.raises(InvalidInput, match=r"diagnostics\.benchmark: .*variables_4 has extraction last_statement"):
        Plan.read(diagnosed, "mine.yaml")


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


def test_a_study_of_several_sizes_has_their_table_and_figure(smoke: dict[str, Any], plan: Plan) -> None:
    """One of them is trained to an accuracy on the held-out problems."""
    tiny = smoke["models"]["tiny"]
    stopping = {**tiny, "training": {**tiny["training"], "stop_at": {"accuracy": 0.2, "every": 50}}}
    validation = {"seed": 1, "count": 8, "every": 2, "samples_per_problem": 2}
    content = {**smoke, "models": {"other": stopping, "tiny": tiny}, "validation": validation}
    stages = stages_of(Plan.read(content, "mine.yaml"))
    assert [path.parent.name for path in stages["table_sizes"].bases] == ["other", "tiny"]
    figure = stages["figure_sizes"]
    assert str(figure.table) in stages["table_sizes"].paths() and figure.reference == "DAPO"
    assert stages["report_html"].own_figures == ("sizes",)
    assert [str(path) for path in stages["base_model other"].held_out] == ["results/problems/validation/problems.jsonl"]
    assert not stages["base_model tiny"].held_out and "table_sizes" not in stages_of(plan)
