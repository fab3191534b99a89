"""What MLflow shows, read back through its public client, against the files."""

from __future__ import annotations

import getpass
import json
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest
from mlflow.entities import Run, ViewType

from evals.core.errors import UserError
from evals.core.files import read_jsonl, sha256_file, write_json
from evals.core.records import Chosen
from rlvr.report.mlflow.database import Store
from rlvr.report.mlflow.planned_run import UNJUDGED, metric_name
from rlvr.report.mlflow.projected import project as project_result
from rlvr.report.mlflow.projected import project_newer
from tests.commands import rlvr_bench
from tests.unit.synthetic_results import Study
from tests.unit.tracking.conftest import ALL_RUNS, BENCHMARKS, client_of, project, tracked

main = rlvr_bench("stage")


def _shown(study: Study, view: int = ViewType.ACTIVE_ONLY, database: str = "mlflow.db") -> dict[str, Run]:
    client = client_of(study, database)
    experiment = client.get_experiment_by_name("laptop")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id], run_view_type=view, max_results=1000)
    return {run.data.tags["rlvr.result"]: run for run in runs if "rlvr.result" in run.data.tags}


@pytest.fixture
def projected_copy(tracked_study: Study, empty_database: Path) -> Study:
    """A study after its first projection, to be changed by one test."""
    shutil.copy(empty_database, tracked_study.results / "mlflow.db")
    project(tracked_study)
    return tracked_study


def test_trainings_stand_beside_methods_and_hold_their_evaluations(projected: Study) -> None:
    shown = _shown(projected)
    assert len(shown) == ALL_RUNS
    parents = {result: run.data.tags.get("mlflow.parentRunId") for result, run in shown.items()}
    assert parents["method tiny delta"] is None and parents["study laptop"] is None
    for seed in (1, 2):
        assert parents[f"run tiny-delta-s{seed}"] is None
        for benchmark in BENCHMARKS:
            assert parents[f"score tiny-delta-s{seed} {benchmark}"] == shown[f"run tiny-delta-s{seed}"].info.run_id
    assert parents["score tiny-base chain_3"] == shown["run tiny-base"].info.run_id
    assert {run.info.status for run in shown.values()} == {"FINISHED"}


def test_every_metric_of_every_step_is_shown_and_missing_ones_are_not(projected: Study) -> None:
    client, run = client_of(projected), _shown(projected)["run tiny-delta-s2"]
    frame = pd.read_parquet(projected.results / "runs/tiny-delta-s2/metrics.parquet").set_index("step")
    for column in frame:
        name = metric_name(str(column))
        history = client.get_metric_history(run.info.run_id, name)
        assert {point.step: point.value for point in history} == frame[column].dropna().to_dict(), column
        if history:
            assert run.data.metrics[name] == frame[column].iloc[-1]
    times = [point.timestamp for point in client.get_metric_history(run.info.run_id, "train/reward_mean")]
    assert times == sorted(times) and times[-1] - times[0] == pytest.approx(7 * 1100, abs=2)


def test_runs_carry_settings_hashes_and_data_sets(projected: Study) -> None:
    shown = _shown(projected)
    run = shown["run tiny-delta-s1"]
    folder = projected.results / "runs/tiny-delta-s1"
    assert run.data.params["training.learning_rate"] == "0.0003" and run.data.params["method.loss.clip_high"] == "0.28"
    tags = run.data.tags
    assert tags["fingerprint"] == json.loads((folder / "manifest.json").read_text())["fingerprint"]
    assert tags["mlflow.source.name"] == "rlvr-bench" and tags["mlflow.user"] == getpass.getuser()
    assert not [key for key in tags if key.startswith("sha256/checkpoint")], "they are the model's"
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    assert tags["mlflow.source.git.commit"] in (commit, f"{commit}-dirty")
    wanted = {"study": "laptop", "method": "delta", "model": "tiny", "seed": "1", "stage": "train"}
    assert {key: tags[key] for key in wanted} == wanted
    for result, name, context in (
        ("run tiny-delta-s1", "train", "training"),
        ("score tiny-delta-s1 chain_3", "chain_3", "evaluation"),
    ):
        (data,) = shown[result].inputs.dataset_inputs
        sha256 = sha256_file(projected.results / f"problems/{name}/problems.jsonl")
        assert (data.dataset.name, data.tags[0].value) == (name, context)
        assert sha256.startswith(data.dataset.digest) and len(data.dataset.digest) <= 36
        assert shown[result].data.tags[f"sha256/problems/{name}"] == sha256


def test_a_training_has_its_final_scores_beside_its_settings(projected: Study) -> None:
    run = _shown(projected)["run tiny-dapo-s1"]
    expected = []
    for benchmark in BENCHMARKS:
        scores = json.loads((projected.results / f"scores/{benchmark}.json").read_text())["scores"]
        (score,) = [row for row in scores if row["run"] == "tiny-dapo-s1"]
        assert run.data.metrics[f"eval/{benchmark}/avg_at_32"] == score["average_at_k"]
        expected.append(score["average_at_k"])
    assert run.data.metrics["eval/all/avg_at_32"] == pytest.approx(sum(expected) / 2)
    assert run.data.params["training.learning_rate"] == "0.0003"
    counted = {name: _shown(projected)[f"run tiny-{name}-s1"].data.metrics[UNJUDGED] for name in ("dapo", "delta")}
    assert counted == {"dapo": 0, "delta": 2 * 8}  # of eight steps
    assert {name.partition("/")[0] for name in run.data.metrics} == {"eval", "time", "train"}


def test_a_policy_is_a_model_with_its_checkpoint_and_its_scores_by_data_set(projected: Study) -> None:
    client, shown = client_of(projected), _shown(projected)
    training, folder = shown["run tiny-delta-s2"], projected.results / "runs/tiny-delta-s2/checkpoint"
    version = client.get_model_version_by_alias("laptop-tiny-delta", "s2")
    model = client.get_logged_model(version.tags["rlvr.model"])
    assert (model.name, model.source_run_id, version.run_id) == ("tiny-delta-s2", *2 * [training.info.run_id])
    assert model.tags["checkpoint"] == version.tags["checkpoint"] == folder.as_uri() and model.tags["method"] == "delta"
    assert json.loads(model.tags["mlflow.modelVersions"]) == [{"name": version.name, "version": version.version}]
    assert not client.list_logged_model_artifacts(model.model_id), "nothing of a checkpoint is copied, or pickled"
    assert model.tags["sha256/checkpoint/model.safetensors"] == sha256_file(folder / "model.safetensors")
    made = client.get_run(training.info.run_id).outputs.model_outputs
    assert [each.model_id for each in made] == [model.model_id]
    evaluation = client.get_run(shown["score tiny-delta-s2 chain_3"].info.run_id)
    assert [each.model_id for each in evaluation.inputs.model_inputs] == [model.model_id]
    scores = {(each.dataset_name, each.key): each.value for each in model.metrics}
    for benchmark in BENCHMARKS:
        run = shown[f"score tiny-delta-s2 {benchmark}"]
        assert scores[benchmark, "avg_at_32"] == run.data.metrics["avg_at_32"]
    names = {model.name for model in client.search_registered_models()}
    assert names == {f"laptop-tiny-{method}" for method in ("base", "grpo", "dapo", "delta")}


def test_a_training_shows_first_responses_with_their_verdicts(projected: Study) -> None:
    run, results = _shown(projected)["run tiny-base"], projected.results
    table = _table(projected, run)
    shown = {}
    for benchmark in BENCHMARKS:
        files = [f"problems/{benchmark}/problems"]
        files += [f"{kind}/tiny-base/{benchmark}/{kind}" for kind in ("samples", "grades")]
        problems, samples, grades = (read_jsonl(results / f"{name}.jsonl") for name in files)
        assert len(problems) == 12 and len(samples) == 12 * 4
        for problem in problems[:10]:
            place = [row["problem_id"] for row in samples].index(problem["id"])
            shown[benchmark, problem["id"]] = [
                *(problem["problem"], samples[place]["text"], grades[place]["correct"], grades[place]["answer"]),
                *(problem["answer"], grades[place]["reason"]),
            ]
    rows = table.set_index(["benchmark", "problem_id"])
    assert list(rows) == ["problem", "response", "correct", "answer", "expected", "reason"]
    assert dict(zip(rows.index, rows.to_numpy().tolist(), strict=True)) == shown
    assert set(rows["correct"]) == {True, False}
    assert (results / "responses/BENCHMARK/index.html").as_posix() in run.data.tags["mlflow.note.content"]


def test_a_long_response_is_cut_and_deleted_samples_have_no_rows(projected_copy: Study) -> None:
    samples = projected_copy.results / "samples"
    path = samples / "tiny-dapo-s1/chain_3/samples.jsonl"
    first, *others = path.read_text().splitlines()
    path.write_text("\n".join([json.dumps(json.loads(first) | {"text": "x" * 5000}), *others]) + "\n")
    shutil.rmtree(samples / "tiny-dapo-s2")
    assert project(projected_copy, database="again.db")["created"] == ALL_RUNS
    shown = _shown(projected_copy, database="again.db")
    table = _table(projected_copy, shown["run tiny-dapo-s1"], database="again.db")
    assert table["response"][0] == "x" * 4000 + " [... of 5,000 characters]"
    without = client_of(projected_copy, "again.db").list_artifacts(shown["run tiny-dapo-s2"].info.run_id)
    assert [file.path for file in without] == ["manifest.json"]
    grades = projected_copy.results / "grades/tiny-dapo-s1/chain_3/grades.jsonl"
    grades.write_text("\n".join(reversed(grades.read_text().splitlines())))
    with pytest.raises(UserError, match=r"grades\.jsonl: has not the samples in their order"):
        project(projected_copy, database="thrice.db")


def _table(study: Study, run: Run, database: str = "mlflow.db") -> pd.DataFrame:
    """The responses of a run that MLflow shows as a table."""
    assert json.loads(run.data.tags["mlflow.loggedArtifacts"]) == [{"path": "responses.json", "type": "table"}]
    path = client_of(study, database).download_artifacts(run.info.run_id, "responses.json")
    content = json.loads(Path(path).read_text())
    return pd.DataFrame(content["data"], columns=content["columns"])


def test_evaluations_have_metric_names_that_mlflow_accepts(projected: Study) -> None:
    run = _shown(projected)["score tiny-dapo-s1 chain_3"]
    scores = json.loads((projected.results / "scores/chain_3.json").read_text())["scores"]
    row = next(row for row in scores if row["run"] == "tiny-dapo-s1")
    assert run.data.metrics["avg_at_32"] == row["average_at_k"]
    assert run.data.metrics["pass_at_8"] == row["pass_at_k"]["8"]
    assert run.data.metrics["standard_error"] == row["standard_error"]
    assert run.data.tags["benchmark"] == "chain_3" and run.data.tags["stage"] == "evaluation"


def test_methods_carry_their_means_and_verdicts(projected: Study) -> None:
    run = _shown(projected)["method tiny delta"]
    comparisons = json.loads(projected.comparisons.read_text())["comparisons"]
    row = next(r for r in comparisons if (r["method"], r["against"], r["benchmark"]) == ("delta", "dapo", "all"))
    assert run.data.metrics["all/difference_to_dapo"] == row["difference"]
    assert run.data.metrics["all/avg_at_32"] == pytest.approx(row["method_average"])
    assert run.data.metrics["all/p_against_dapo"] == row["p_value"]
    assert run.data.metrics["all/p_holm_against_dapo"] == row["p_value_holm"]
    assert run.data.tags["verdict_against_dapo"] == row["verdict"]


def test_the_overview_carries_tables_and_figures_and_describes_itself(projected: Study) -> None:
    run = _shown(projected)["study laptop"]
    client = client_of(projected)
    shown = {file.path for folder in ("tables", "figures") for file in client.list_artifacts(run.info.run_id, folder)}
    assert shown == {"tables/main.md", "figures/scores.png"}
    assert run.data.tags["mlflow.note.content"] == "## Main\n\n| a |\n"


def test_replaying_changes_nothing(projected: Study) -> None:
    before = {result: run.info.run_id for result, run in _shown(projected, ViewType.ALL).items()}
    assert project(projected) == {"created": 0, "kept": ALL_RUNS, "replaced": 0, "removed": 0}
    assert {result: run.info.run_id for result, run in _shown(projected, ViewType.ALL).items()} == before


def test_a_changed_run_replaces_the_old_one_and_keeps_its_children(projected_copy: Study) -> None:
    study = projected_copy
    before = _shown(study)
    path = study.results / "runs/tiny-delta-s1/manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps(manifest | {"fingerprint": "f" * 64}))
    counts = project(study)
    # The run itself; its evaluations name its fingerprint, so they are of another policy now.
    assert counts == {"created": 0, "kept": ALL_RUNS - 3, "replaced": 3, "removed": 0}
    after = _shown(study)
    assert len(after) == ALL_RUNS and after["run tiny-delta-s1"].data.tags["fingerprint"] == "f" * 64
    changed = {result for result in after if after[result].info.run_id != before[result].info.run_id}
    assert changed == {"run tiny-delta-s1", *(f"score tiny-delta-s1 {name}" for name in BENCHMARKS)}
    old = before["run tiny-delta-s1"].info.run_id
    versions = client_of(study).search_model_versions("name = 'laptop-tiny-delta'")
    assert {version.run_id for version in versions} == {after[f"run tiny-delta-s{seed}"].info.run_id for seed in (1, 2)}
    models = client_of(study).search_logged_models([after["study laptop"].info.experiment_id])
    assert len(models) == 7 and old not in {model.source_run_id for model in models}
    assert client_of(study).get_run(old).info.lifecycle_stage == "deleted"
    assert not list((study.results / "mlflow-artifacts").glob(f"{old}*"))


def test_models_are_registered_beside_their_runs_whatever_registry_the_environment_names(
    tracked_study: Study, empty_database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_REGISTRY_URI", f"sqlite:///{tmp_path / 'theirs.db'}")
    shutil.copy(empty_database, tracked_study.results / "mlflow.db")
    project(tracked_study)
    assert len(client_of(tracked_study).search_model_versions("name = 'laptop-tiny-delta'")) == 2
    assert not (tmp_path / "theirs.db").exists()


def test_a_changed_verdict_replaces_its_method_alone(projected_copy: Study) -> None:
    study = projected_copy
    content = json.loads(study.comparisons.read_text())
    for row in content["comparisons"]:
        if (row["method"], row["against"], row["benchmark"]) == ("delta", "dapo", "all"):
            row["verdict"] = "not distinguishable"
    study.comparisons.write_text(json.dumps(content))
    assert project(study) == {"created": 0, "kept": ALL_RUNS - 1, "replaced": 1, "removed": 0}
    assert _shown(study)["method tiny delta"].data.tags["verdict_against_dapo"] == "not distinguishable"


def test_what_a_killed_projection_left_is_written_again(projected_copy: Study) -> None:
    study = projected_copy
    half = _shown(study)["run tiny-grpo-s1"].info.run_id
    client_of(study).update_run(half, status="RUNNING")
    # With its evaluations, which name its model.
    assert project(study) == {"created": 0, "kept": ALL_RUNS - 3, "replaced": 3, "removed": 0}
    assert _shown(study)["run tiny-grpo-s1"].info.run_id != half


def test_scores_of_other_weights_are_those_of_new_models(projected_copy: Study) -> None:
    study = projected_copy
    content = json.loads(study.comparisons.read_text())
    study.comparisons.write_text(json.dumps(content | {"weighting": {"chain_3": 3, "nested_sums": 1}}))
    project(study)
    shown, client = _shown(study), client_of(study)
    training = shown["run tiny-delta-s1"]
    scores = {name: shown[f"score tiny-delta-s1 {name}"].data.metrics["avg_at_32"] for name in BENCHMARKS}
    mean = (3 * scores["chain_3"] + scores["nested_sums"]) / 4
    assert training.data.metrics["eval/all/avg_at_32"] == pytest.approx(mean)
    model = client.get_logged_model(training.data.tags["rlvr.model"])
    assert {each.dataset_name: each.value for each in model.metrics if each.key == "avg_at_32"} == scores


def test_results_that_left_the_study_are_hidden_and_the_users_own_runs_are_not(projected_copy: Study) -> None:
    study = projected_copy
    client = client_of(study)
    own = client.create_run(client.get_experiment_by_name("laptop").experiment_id).info.run_id
    assert project(study, drop="delta-s2") == {"created": 0, "kept": ALL_RUNS - 4, "replaced": 1, "removed": 3}
    assert "run tiny-delta-s2" not in _shown(study)
    assert client.get_run(own).info.lifecycle_stage == "active"


def test_losing_the_database_loses_nothing(projected_copy: Study) -> None:
    study = projected_copy
    before = _shown(study)
    # Another name, for MLflow keeps a deleted database open as long as the process lives.
    assert project(study, database="again.db")["created"] == ALL_RUNS
    after = _shown(study, database="again.db")
    for result, run in before.items():
        assert after[result].data.metrics == run.data.metrics and after[result].data.params == run.data.params


def test_command_projects_and_says_what_it_did(projected: Study, capsys: pytest.CaptureFixture[str]) -> None:
    results = projected.results
    arguments = ["--results", results, "--runs", projected.runs_file, "--study", "laptop", "--benchmarks", *BENCHMARKS]
    arguments += ["--database", results / "mlflow.db", "--artifacts", results / "mlflow-artifacts"]
    arguments += ["--out", results / "tracking.json"]
    assert main(["track", *map(str, arguments)]) == 0
    assert capsys.readouterr().out == f"MLflow runs: 0 created, {ALL_RUNS} kept, 0 replaced, 0 removed\n"
    record = json.loads(Path(results / "tracking.json").read_text())
    assert record["study"] == "laptop" and len(record["projected"]) == ALL_RUNS


def test_scores_along_a_training_are_metrics_of_their_steps(tracked_study: Study) -> None:
    run, results = "tiny-dapo-s1", tracked_study.results
    choice = Chosen(run=run, benchmark="chain_3", samples_per_problem=8, step=2, averages={"2": 0.75, "1": 0.5})
    write_json(results / "runs/tiny-dapo_best-s1/chosen.json", choice.to_json())
    of_study = tracked(tracked_study).model_copy(update={"best": ("tiny-dapo_best-s1",)})
    store = Store(results / "mlflow.db", results / "mlflow-artifacts")
    project_result(of_study, results / "tracking.json", results, store)
    shown = _shown(tracked_study)[f"run {run}"]
    history = client_of(tracked_study).get_metric_history(shown.info.run_id, "validation/chain_3_avg_at_8")
    assert [(metric.step, metric.value) for metric in history] == [(1, 0.5), (2, 0.75)]
    # A new choice is projected again, without the workflow.
    write_json(results / "runs/tiny-dapo_best-s1/chosen.json", {**choice.to_json(), "averages": {"2": 1.0}})
    assert (project_newer(results / "tracking.json", results, store) or {})["replaced"] == 1 + len(BENCHMARKS)
