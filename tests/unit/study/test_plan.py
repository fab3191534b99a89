"""The plan of a study: which jobs Snakemake makes of it, from what, and what a change makes again."""

import re
from pathlib import Path
from typing import Any

import pytest

from evals.core.config.base_models import HuggingFace
from evals.core.errors import InvalidInput, UserError
from evals.core.records import conditions_of
from evals.core.yaml_file import read_yaml
from evals.grading.code import VERIFIER_VERSION
from rlvr.study import benchmarks, notices
from rlvr.study.evidence import evidence, known_to_show, own_settings
from rlvr.study.job_sizes import devices, sampling_mb, size, training_mb
from rlvr.study.machine import OURS, check_machine, model_files, software
from rlvr.study.source_files import REPOSITORY, code_of
from rlvr.study.studies import Studies
from rlvr.study.study import Study
from rlvr.study.study_file import read_study, read_study_file
from tests.unit.study.planned import Job, changed, jobs_of, remade, replaced

CONFIG = REPOSITORY / "config"
SELECTION = "studies/selection/"


@pytest.fixture(scope="module")
def smoke() -> dict[str, Any]:
    content: dict[str, Any] = read_yaml(CONFIG / "smoke.yaml")
    return content


@pytest.fixture(scope="module")
def studies(smoke: dict[str, Any]) -> Studies:
    return Studies(smoke, "config/smoke.yaml")


@pytest.fixture(scope="module")
def jobs(smoke: dict[str, Any]) -> dict[str, Job]:
    return jobs_of(smoke)


def test_every_methods_first_seed_is_trained_before_any_second(smoke: dict[str, Any]) -> None:
    studies = changed(smoke, "seeds", [3, 1, 2])
    runs = studies.main.trained_runs
    order = sorted(runs, key=lambda run: -studies.priority(run.run))
    methods = len({run.method for run in runs})
    assert [run.seed for run in order] == [3] * methods + [1] * methods + [2] * methods
    assert all(30 < studies.priority(run.run) <= 50 for run in runs), "before samples and grades"


def test_rollouts_are_kept_where_a_study_asks_for_it(smoke: dict[str, Any], jobs: dict[str, Job]) -> None:
    execution = {key: value for key, value in smoke["execution"].items() if key != "rollouts_kept_every"}
    without = jobs_of({**smoke, "execution": execution})
    assert "page_rollouts" in jobs and "page_rollouts" not in without
    assert jobs["report_html"].params["rollouts"] and not without["report_html"].params["rollouts"]
    assert not without["page_responses chain_3"].params["rollouts"]
    assert not [name for name in remade(jobs, without) if name.startswith(("train", "sample", "grade"))]
    for value in (0, 1.5):
        with pytest.raises(InvalidInput, match=r"execution\.rollouts_kept_every"):
            changed(smoke, "execution.rollouts_kept_every", value)


def test_values_of_the_command_line_have_their_types_and_change_nothing_else(smoke: dict[str, Any]) -> None:
    """Snakemake gives what is nested as text."""
    changes = {"seeds": ["1", "2", "3"], "training": {"learning_rate": "1e-4"}, "study": "other", "contrast_steps": 0}
    content = read_study([CONFIG / "smoke.yaml"], changes)
    assert (content["seeds"], content["study"], content["contrast_steps"]) == ([1, 2, 3], "other", 0)
    assert content["training"] == {**smoke["training"], "learning_rate": 0.0001}
    assert Study.resolve(content).config.seeds == (1, 2, 3)
    with pytest.raises(UserError, match="--config seeds: is not valid YAML"):
        read_study([CONFIG / "smoke.yaml"], {"seeds": ["{"]})


def test_a_file_that_is_no_study_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text("")
    with pytest.raises(UserError, match=r"study\.yaml: has no keys"):
        read_study([tmp_path / "study.yaml"], {})


def test_a_gpu_that_is_not_there_is_said_when_a_study_is_planned(
    smoke: dict[str, Any], studies: Studies, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_gpu = changed(smoke, "execution.device", "cuda").main
    monkeypatch.setattr(notices, "_GPU_DEVICES", ("no-such-device",))
    notices.print_notices(on_gpu, {})
    assert capsys.readouterr().err.startswith("warning: execution.device is cuda, and this machine shows no GPU")
    notices.print_notices(studies.main, {})
    monkeypatch.setattr(notices, "_GPU_DEVICES", ("null",))
    for build, words in {
        "2.13.0": "",
        "2.13.0+cpu": "warning: this machine has a GPU, and torch is a build for CPUs",
    }.items():
        monkeypatch.setattr(notices, "version", lambda _, build=build: build)
        notices.print_notices(on_gpu, {})
        assert capsys.readouterr().err.startswith(words) and bool(words) == build.endswith("+cpu")


def test_samples_depend_on_the_evaluation_alone(smoke: dict[str, Any], jobs: dict[str, Job]) -> None:
    hotter = remade(jobs, jobs_of(replaced(smoke, "evaluation.temperature", 0.5)))
    assert {name for name in jobs if name.startswith("sample")} <= hotter
    assert not [name for name in hotter if name.startswith(("train", "base_model", "draw_problems"))]


def test_a_validation_draws_problems_of_its_own_for_every_run(smoke: dict[str, Any], jobs: dict[str, Job]) -> None:
    settings = {"seed": 9, "count": 20, "every": 2, "samples_per_problem": 4}
    other = jobs_of(replaced(smoke, "validation", settings))
    assert "draw_problems validation" not in jobs
    drawn, of_training = (other[f"draw_problems {name}"].params["arguments"] for name in ("validation", "train"))
    assert (drawn["kinds"], drawn["count"], drawn["split"]) == (of_training["kinds"], 20, "evaluation")
    training, without = other["train tiny-dapo-s1"], jobs["train tiny-dapo-s1"]
    assert "results/problems/validation/manifest.json" in training.inputs
    problems = "results/problems/validation"
    assert training.content["validation"] == {"problems": problems, "every": 2, "samples_per_problem": 4}
    assert without.content == {key: value for key, value in training.content.items() if key != "validation"}


def test_the_order_of_keys_means_nothing(smoke: dict[str, Any], jobs: dict[str, Job]) -> None:
    reversed_ = jobs_of(replaced(smoke, "evaluation", dict(reversed(smoke["evaluation"].items()))))
    assert remade(jobs, reversed_) == set()


def test_what_is_asked_for_names_a_file_of_every_job_on_the_way(jobs: dict[str, Job]) -> None:
    """A lost file is made again though the table made from it is there."""
    for path in (
        *("comparisons.json", "scores/chain_3.json", "grades/tiny-dapo-s1/manifest.json"),
        *("samples/tiny-base/manifest.json", "runs/tiny-delta-s2/manifest.json"),
        *("base/tiny/manifest.json", "problems/train/manifest.json", "problems/chain_3/disjoint.json"),
    ):
        assert f"results/{path}" in jobs["all"].inputs
    assert not any("selection" in path for path in jobs["all"].inputs)


def test_one_file_stands_for_a_policys_samples_and_one_for_its_grades(jobs: dict[str, Job]) -> None:
    """Else a plan of many runs and benchmarks takes more memory than a login node gives (benchmarks/planning.py)."""
    assert {len(job.outputs) for job in jobs.values() if job.rule in ("sample", "grade")} == {1}
    asked_by = {
        job.rule for job in jobs.values() if any(re.match("results/(samples|grades)/", path) for path in job.inputs)
    }
    assert asked_by == {"all", "grade", "score"}


def test_a_run_starts_from_its_model_and_is_evaluated_at_its_end(jobs: dict[str, Job]) -> None:
    training = jobs["train tiny-dapo-s1"]
    assert "results/base/tiny/manifest.json" in training.inputs
    assert "results/runs/tiny-dapo-s1/manifest.json" in jobs["sample tiny-dapo-s1"].inputs
    assert "results/base/tiny/manifest.json" in jobs["sample tiny-base"].inputs
    assert (training.resources["gpu"], training.resources["nodes"]) == (0, 1)


def test_a_named_studys_results_lie_in_its_folder(smoke: dict[str, Any], jobs: dict[str, Job]) -> None:
    named = jobs_of(smoke, "selection")
    assert jobs["table_main"].outputs[0] == "results/tables/main.md"
    assert named[f"table_main {SELECTION}"].outputs[0] == f"results/{SELECTION}tables/main.md"
    assert f"figure_score_curves {SELECTION}" in named
    assert "results/grades/tiny-base/manifest.json" in named[f"score {SELECTION}"].inputs
    run, trained = "tiny-delta_top_lambda_step2-s1", "tiny-delta_top_lambda-s1"
    assert f"results/runs/{trained}/checkpoints/step-2.kept" in named[f"sample {run}"].inputs
    assert f"train {run}" not in named and f"policy_at_step {trained} 2" in named
    assert "2" in named[f"train {trained}"].params["kept"]
    assert not named["train tiny-dapo-s1"].params["kept"]  # of the main study
    sheet = [row["run"] for row in named[f"run_sheet {SELECTION}steps/"].params["value"]]
    assert sheet[0] == "tiny-base" and run in sheet


def test_only_the_table_of_published_numbers_depends_on_them(jobs: dict[str, Job]) -> None:
    published = {name for name, job in jobs.items() if any("published.csv" in path for path in job.inputs)}
    assert published == {"table_paper_vs_ours"}


def test_a_decayed_learning_rate_stands_beside_published_numbers(smoke: dict[str, Any], studies: Studies) -> None:
    """No paper has such a checkpoint, so that its numbers are not comparable then."""
    decayed = changed(smoke, "training.learning_rate_decay_from", 0.5)
    own = [own_settings(each.main) for each in (studies, decayed)]
    assert own[0]["checkpoint"] == "last"
    assert own[1] == {**own[0], "checkpoint": "last, after a decay of the learning rate"}


def test_what_is_not_there_is_named(smoke: dict[str, Any]) -> None:
    python = changed(smoke, "execution.sampling_python", ".venv-nowhere/bin/python")
    with pytest.raises(UserError, match=r"execution.sampling_python: .venv-nowhere/bin/python"):
        software(python.main, "sampling")
    problems = {"source": "deepmath_103k", "path": "nowhere.jsonl", "prompt": "{problem}"}
    with pytest.raises(UserError, match=r"problems: path: .*nowhere\.jsonl: no such file or directory"):
        check_machine(changed(smoke, "problems", problems).main)


def test_a_missing_model_stops_a_study_but_not_a_plan_by_verl(capsys: pytest.CaptureFixture[str]) -> None:
    model = HuggingFace.parse({"source": "hugging_face", "path": "../nowhere", "prompt_form": "base"}, "here")
    with pytest.raises(UserError, match=r"models\.one\.path: .*: no such directory"):
        model_files("models.one", model, may_be_missing=False)
    assert model_files("models.one", model, may_be_missing=True) == []
    assert "not here yet: models.one.path" in capsys.readouterr().err


def test_several_nodes_are_one_job_or_a_ray_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    def asked(name: str) -> list[dict[str, Any]]:
        study = Study.read(CONFIG / "papers" / f"{name}.yaml")
        different: list[dict[str, Any]] = []
        for run in study.trained_runs:
            needs = devices(study, run.run)
            different += [needs] if needs not in different else []
        return different

    one = {"nodes": 1, "gres": "", "cpus_per_task": 64, "slurm_extra": ""}
    assert asked("delta") == [{**one, "gpu": 8, "ray_cluster": 0}]
    whole = {"nodes": 8, "gres": "gpu:8", "slurm_extra": "--exclusive"}  # no other training beside it
    assert asked("dapo") == [{**one, **whole, "gpu": 0, "ray_cluster": 0}]
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert asked("dapo") == [{**one, "gpu": 0, "ray_cluster": 1}]
    assert asked("delta")[0]["ray_cluster"] == 0


def test_memory_and_time_of_a_job_follow_its_model_and_grow_with_its_attempts() -> None:
    study = Study.read(CONFIG / "papers" / "delta.yaml")
    # Eight GPUs at 16,000 each; 8 bytes of a parameter as it is saved, and of 14 billion 16 more that wait (offload).
    trained = [training_mb(study, run.run) for run in study.trained_runs if run.method == "dapo"]
    assert trained == [128_000 + 8 * 8000, 128_000 + 24 * 14_000]
    assert [sampling_mb(study, name) for name in study.config.models] == [16_000 + 4 * 8000, 16_000 + 4 * 14_000]
    asked = size(lambda wildcards: 1000.4, minutes=30)
    assert [asked["mem_mb"](None, attempt) for attempt in (1, 2)] == [1000, 2001]
    assert [asked["runtime"](None, attempt) for attempt in (1, 2)] == [30, 60]


def test_a_steps_code_is_all_of_ours_that_it_imports() -> None:
    files = {Path(path).resolve().relative_to(REPOSITORY).as_posix() for path in code_of("evals.scores.comparison")}
    assert {"evals/scores/comparison.py", "evals/statistics/resampling.py"} <= files
    assert not any(path.startswith(("evals/core", "rlvr/engines")) for path in files)
    assert {"rlvr/report/mlflow/projection.py", "rlvr/report/mlflow/views.json"} <= {
        Path(path).resolve().relative_to(REPOSITORY).as_posix() for path in code_of("rlvr.report.mlflow.projection")
    }
    with pytest.raises(ValueError, match="no module of ours"):
        code_of("evals.scores.nothing")


def test_cheap_jobs_follow_their_code(jobs: dict[str, Job]) -> None:
    """And those that compute a version, which is a setting of theirs."""
    for name, job in jobs.items():
        if job.rule.startswith(("score", "compare", "table", "figure", "page", "report", "track")):
            assert any(path.endswith(".py") for path in job.inputs), name
        elif job.rule in ("train", "sample", "grade", "base_model"):
            assert not any(path.endswith(".py") for path in job.inputs), name
            assert any("version" in text or text.startswith("audit:") for text in job.settings), name


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
    studies = Studies(EVALUATION, "config/models.yaml")
    assert [run.title for run in studies.compared("")] == ["Qwen3-8B-Base (one)", "other"]
    titles = [condition.title for condition in conditions_of(studies.compared(""))]
    assert titles == ["Qwen3-8B-Base (one)", "other"]  # they name the models by themselves
    sentence = evidence(studies.main)
    assert "Qwen3-8B-Base; other" in sentence and "without training" in sentence and "scratch" not in sentence


def test_a_study_of_the_default_task_says_what_that_is_known_to_show() -> None:
    said = known_to_show(Study.read(CONFIG / "config.yaml"))
    page = (CONFIG.parent / "docs/results/phenomena.md").read_text(encoding="utf-8")
    ((shown, measured),) = re.findall(r"show\s+(\d+) of (\d+) known effects", page)
    assert said.startswith(f"Testbed: skips and further studies show {shown} of {measured} known effects of RLVR")
    of_lists = r"lists \d+ % \[\d+, \d+\] \(signal to noise \d+\.\d\)"
    assert re.search(of_lists, said) and re.search(r"Signal to noise: \d+\.\d", said)
    assert known_to_show(Study.read(CONFIG / "sharpening.yaml")) == ""


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("training.steps", 9),
        ("models.skips.corpus.seed", 7),
        ("problems.kinds", [{"family": "hundreds", "operands": 3}]),
    ],
)
def test_another_task_or_a_few_steps_are_known_to_show_nothing(key: str, value: Any) -> None:
    content = read_yaml(CONFIG / "config.yaml")
    assert known_to_show(changed(content, "study", "mine").main) and not known_to_show(
        changed(content, key, value).main
    )


def test_weights_of_benchmarks_are_checked() -> None:
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
    content = replaced(smoke, "models", {"warm": entry})
    jobs = jobs_of(content)
    imported = jobs["import_model warm-pretrained"].params
    assert (imported["model"], imported["revision"]) == (str(tmp_path), None)
    assert str(tmp_path / "solutions.jsonl") in jobs["check_disjoint chain_3"].inputs
    tuned = jobs["fine_tuned_model warm"]
    assert tuned.params["settings"] == {**tuning, "dtype": "float32", "prompt_form": "chat"}
    assert "results/base/warm-pretrained/manifest.json" in tuned.inputs
    assert "results/base/warm/manifest.json" in jobs["train warm-dapo-s1"].inputs
    assert jobs["train warm-dapo-s1"].content["prompt_form"] == "chat"
    with pytest.raises(UserError, match=r"models\.warm\.solutions: .*: no such file"):
        check_machine(changed(smoke, "models", {"warm": {**entry, "solutions": "none.jsonl"}}).main)
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
    study = Study.resolve(content, "here")
    with pytest.raises(UserError, match=r"^gsm8k_steps: path: .*steps\.jsonl: no such file or directory$"):
        check_machine(study)
    steps.touch()
    with pytest.raises(UserError, match=r"models\.smollm2\.solutions: .*own\.jsonl: no such file$"):
        check_machine(study)
    own.touch()
    check_machine(study)
    files = ["results/problems/train/problems.jsonl", "results/solutions/gsm8k_steps/problems.jsonl", str(own)]
    assert study.solutions("smollm2") == files
    settings = study.solution_settings["gsm8k_steps"]
    assert settings["columns"] == "gsm8k_steps" and settings["path"] == str(steps)
    without = {**model, "solutions": [{"source": "gsm8k_steps", "path": str(steps), "exclude": ["a"]}]}
    excluding = Study.resolve({**content, "models": {"smollm2": without}}, "here")
    assert excluding.solution_settings["gsm8k_steps"]["exclude"] == ["a"]
    with pytest.raises(InvalidInput, match=r"solutions: are problems, problems; accepted: each once"):
        Study.resolve({**content, "models": {"smollm2": {**model, "solutions": ["problems", "problems"]}}}, "here")
    with pytest.raises(
        InvalidInput, match=r"solutions: names dapo_math_17k, which have no solutions; accepted: a file"
    ):
        Study.resolve({**content, "models": {"smollm2": {**model, "solutions": [{"source": "dapo_math_17k"}]}}}, "here")
    other = {**model, "solutions": [{"source": "gsm8k_steps"}]}
    with pytest.raises(InvalidInput, match=r"models\.other\.solutions: names gsm8k_steps with another path"):
        Study.resolve({**content, "models": {"smollm2": model, "other": other}}, "here")
    with pytest.raises(InvalidInput, match=r"models\.smollm2\.solutions\.source: 'none' is no training set"):
        Study.resolve({**content, "models": {"smollm2": {**model, "solutions": [{"source": "none"}]}}}, "here")


def test_rollouts_by_vllm_change_a_run_and_its_environment(smoke: dict[str, Any], studies: Studies) -> None:
    content = {**smoke, "training": {**smoke["training"], "sampling_backend": "vllm"}}
    by_vllm = Study.resolve(content, "mine.yaml")
    assert by_vllm.resolved_run("tiny-dapo-s1")["training"]["sampling_backend"] == "vllm"
    assert "sampling_backend" not in studies.main.resolved_run("tiny-dapo-s1")["training"]
    assert software(by_vllm, "training").python == software(studies.main, "training").python == "python"
    assert Path(str(software(by_vllm, "training").conda)).name == "vllm.yaml"
    assert software(studies.main, "training") == OURS
    content["execution"] = {**smoke["execution"], "training_python": "no/such/python"}
    with pytest.raises(UserError, match=r"^execution\.training_python: no/such/python: no such file"):
        software(Study.resolve(content, "mine.yaml"), "training")


def test_a_verifier_changes_what_it_grades_and_nothing_else(
    smoke: dict[str, Any], jobs: dict[str, Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text("def verify(problem, response):\n    return 1\n")
    own = jobs_of({**smoke, "problems": {**smoke["problems"], "verifier": str(mine)}})
    name, copy = "train tiny-dapo-s1", "results/verifiers/train/verifier.py"
    assert own["try_verifier train"].inputs == [str(mine), "results/problems/train/problems.jsonl"]
    assert copy in own[name].inputs
    verifier = {"directory": "results/verifiers/train", "version": VERIFIER_VERSION}
    assert own[name].content == {**jobs[name].content, "verifier": verifier}
    trained = {name for name in jobs if name.startswith("train ")}
    assert remade(jobs, own) & {"draw_problems train", "grade tiny-base", *trained} == trained

    benchmark = benchmarks._read_benchmark("chain_3", "", "").model_copy(update={"verifier": str(mine)})
    monkeypatch.setattr(benchmarks, "_read_benchmark", lambda *_: benchmark)
    graded = jobs_of({**smoke, "benchmarks": ["chain_3"]})
    grading = graded["grade tiny-base"]
    assert grading.params["verifiers"] == {"chain_3": "results/verifiers/chain_3/verifier.py"}
    assert f'of.chain_3: ["verifier", "verifier {VERIFIER_VERSION}"]' in grading.settings
    assert remade({name: jobs[name] for name in (name, "draw_problems chain_3")}, graded) == set()


def test_another_extraction(smoke: dict[str, Any], jobs: dict[str, Job], monkeypatch: pytest.MonkeyPatch) -> None:
    def with_extraction(name: str, *where: str) -> Any:
        entry = read(name, *where)
        return entry.model_copy(update={"extraction": "last_statement"}) if name == "variables_4" else entry

    read = benchmarks._read_benchmark
    monkeypatch.setattr(benchmarks, "_read_benchmark", with_extraction)
    stated = jobs_of(smoke)
    assert {name.split()[0] for name in remade(jobs, stated)} == {"grade"}
    kinds = stated["grade tiny-base"].params["kinds"]
    assert kinds == {"chain_3": "completion", "variables_4": "last_statement"}
    departure = notices.prompts(Study.resolve(smoke))[0]
    assert "Departure: rewards are for marked answers, and variables_4" in departure


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (None, "mine.py: no such file"),
        ("verify = 1\n", "mine.py: has no function verify; accepted: def verify(problem, response)"),
    ],
)
def test_a_bad_verifier_is_refused(smoke: dict[str, Any], tmp_path: Path, text: str | None, complaint: str) -> None:
    if text is not None:
        (tmp_path / "mine.py").write_text(text)
    content = {**smoke, "problems": {**smoke["problems"], "verifier": str(tmp_path / "mine.py")}}
    with pytest.raises(UserError) as raised:
        check_machine(Study.resolve(content, "mine.yaml"))
    assert complaint in str(raised.value)


def test_a_study_of_several_sizes_has_their_table_and_figure(smoke: dict[str, Any], jobs: dict[str, Job]) -> None:
    """One of them is trained to an accuracy on the held-out problems."""
    tiny = smoke["models"]["tiny"]
    stopping = {**tiny, "training": {**tiny["training"], "stop_at": {"accuracy": 0.2, "every": 50}}}
    validation = {"seed": 1, "count": 8, "every": 2, "samples_per_problem": 2}
    several = jobs_of({**smoke, "models": {"other": stopping, "tiny": tiny}, "validation": validation})
    bases = {path for path in several["table_sizes"].inputs if path.startswith("results/base/")}
    assert bases == {"results/base/other/manifest.json", "results/base/tiny/manifest.json"}
    assert "results/tables/sizes.csv" in several["figure_design sizes"].inputs
    assert several["report_html"].params["own_figures"] == ["sizes"]
    held_out = "results/problems/validation/problems.jsonl"
    assert held_out in several["base_model other"].inputs and held_out not in several["base_model tiny"].inputs
    assert "table_sizes" not in jobs


def test_threads_are_the_studys_and_not_snakemakes_which_depend_on_its_cores(smoke: dict[str, Any]) -> None:
    """They decide how sums are rounded; this plan has one core."""
    execution = {**smoke["execution"], "training_threads": 3, "base_threads": 5}
    jobs = jobs_of({**smoke, "execution": execution})
    assert jobs["train tiny-dapo-s1"].params["machine"][:2] == ["--threads", "3"]
    assert jobs["base_model tiny"].params["machine"].base_threads == 5
    assert remade(jobs_of(smoke), jobs) == {"study_file"}
