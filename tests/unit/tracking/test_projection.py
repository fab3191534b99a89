"""What MLflow shows, read back through its public client, against the files."""

import csv
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest
from mlflow.entities import Run
from mlflow.exceptions import MlflowException

from evals.core.errors import UserError
from evals.core.files import read_json, read_jsonl, sha256_file, write_json, write_jsonl
from evals.core.records import Chosen
from evals.core.run_spec import Execution, LocalRun
from evals.core.single_writer import single_writer
from rlvr.engines.local.train import train
from rlvr.methods.components import composition
from rlvr.report.mlflow.projection import UNJUDGED, metric_name, track
from rlvr.report.mlflow.store import Store
from rlvr.runs.job import remove_metrics_so_far, write_metrics_so_far
from rlvr.study.catalogue import load_catalogue, resolve_method
from tests.unit.synthetic_results import Study
from tests.unit.tracking.conftest import ALL_RUNS, BENCHMARKS, client_of, project, shown

TRAINING = "tiny-delta-s2"


def test_trainings_stand_beside_methods_and_hold_all_that_is_known(projected: Study) -> None:
    runs = shown(projected)
    assert len(runs) == ALL_RUNS and {run.info.status for run in runs.values()} == {"FINISHED"}
    run, directory = runs[TRAINING], projected.results / "runs" / TRAINING
    tags, manifest = run.data.tags, read_json(directory / "manifest.json")
    wanted = {"study": "laptop", "method": "delta", "model": "tiny", "seed": "2", "stage": "train"}
    wanted |= {"checkpoint": (directory / "checkpoint").as_uri(), "mlflow.user": psutil.Process().username()}
    wanted |= {"sha256/checkpoint/model.safetensors": sha256_file(directory / "checkpoint/model.safetensors")}
    assert {key: tags[key] for key in wanted} == wanted
    words = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    commit = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    assert tags["mlflow.source.git.commit"] in (commit, f"{commit}-dirty")
    settings = pd.json_normalize(manifest["parameters"]).iloc[0]
    assert set(run.data.params) == set(settings.index) and run.data.params["training.learning_rate"] == "0.0003"
    assert run.data.params["training.steps"] == "8"


def test_every_metric_of_every_step_is_shown_and_missing_ones_are_not(projected: Study) -> None:
    _assert_steps(projected, shown(projected)[TRAINING], 8)


def _assert_steps(study: Study, run: Run, steps: int) -> None:
    frame = pd.read_parquet(study.root.parent / "metrics.parquet" if steps < 8 else _metrics(study))[:steps]
    for name in set(frame) - {"step"}:
        points = client_of(study).get_metric_history(run.info.run_id, metric_name(name))
        expected = [(step, value) for step, value in zip(frame["step"], frame[name], strict=True) if value == value]
        assert [(point.step, point.value) for point in sorted(points, key=lambda each: each.step)] == expected, name
        assert [point.timestamp for point in points] == sorted(point.timestamp for point in points)


def _metrics(study: Study) -> Path:
    return study.results / "runs" / TRAINING / "metrics.parquet"


def test_methods_equal_their_rows_of_the_main_table(projected: Study) -> None:
    runs = shown(projected)
    with open(projected.results / "tables/main.csv", newline="") as lines:
        rows = {row["method"]: row for row in csv.DictReader(lines)}
    for method, title in {"base": "Base model", "grpo": "GRPO", "dapo": "DAPO", "delta": "DelTA"}.items():
        metrics, row = runs[title].data.metrics, rows[method]
        for name in ("all", *BENCHMARKS):
            assert metrics[f"eval/{name}/avg_at_32"] == 100 * float(row[f"{name}_avg_at_32"])
        assert runs[title].data.tags["stage"] == "method"
    delta = runs["DelTA"]
    assert delta.data.metrics["all_versus_dapo_difference"] == float(rows["delta"]["all_versus_dapo_difference"])
    assert delta.data.tags["all_versus_dapo_verdict"] == rows["delta"]["all_versus_dapo_verdict"]
    frames = [pd.read_parquet(projected.results / f"runs/tiny-delta-s{seed}/metrics.parquet") for seed in (1, 2)]
    points = client_of(projected).get_metric_history(delta.info.run_id, "train/reward_mean")
    means = (frames[0]["reward_mean"] + frames[1]["reward_mean"]) / 2
    assert [point.value for point in points] == pytest.approx(means.tolist())


def test_a_training_has_its_final_scores_beside_its_settings(projected: Study) -> None:
    metrics, expected = shown(projected)["tiny-dapo-s1"].data.metrics, []
    for benchmark in BENCHMARKS:
        scores = read_json(projected.results / f"scores/{benchmark}.json")["scores"]
        (score,) = [row for row in scores if row["run"] == "tiny-dapo-s1"]
        assert metrics[f"eval/{benchmark}/avg_at_32"] == 100 * score["average_at_k"]
        assert metrics[f"eval/{benchmark}/pass_at_8"] == 100 * score["pass_at_k"]["8"]
        assert metrics[f"eval/{benchmark}/mean_tokens"] == score["mean_tokens"]
        expected.append(100 * score["average_at_k"])
    assert metrics["eval/all/avg_at_32"] == pytest.approx(sum(expected) / 2)
    counted = {name: shown(projected)[f"tiny-{name}-s1"].data.metrics[UNJUDGED] for name in ("dapo", "delta")}
    assert counted == {"dapo": 0, "delta": 2 * 8}  # of eight steps


def test_scores_along_a_training_are_metrics_of_their_steps(tracked_study: Study) -> None:
    choice = Chosen(run=TRAINING, benchmark="chain_3", samples_per_problem=8, step=2, averages={"2": 0.75, "1": 0.5})
    write_json(tracked_study.results / "runs/tiny-delta_best-s2/chosen.json", choice.to_json())
    project(tracked_study)
    run = shown(tracked_study)[TRAINING]
    history = client_of(tracked_study).get_metric_history(run.info.run_id, "validation/chain_3_avg_at_8")
    assert sorted((metric.step, metric.value) for metric in history) == [(1, 0.5), (2, 0.75)]


def test_the_overview_carries_tables_and_figures_and_claims_have_a_run(tracked_study: Study) -> None:
    results = tracked_study.results
    (results / "claims/tokens/tiny-dapo-s1").mkdir(parents=True)
    (results / "claims/tables").mkdir()
    (results / "claims/tables/claims.md").write_text("# Claims\n\n## Verdicts\n\n| a |\n\n## 1. First\n")
    (results / "claims/index.html").write_text("<html></html>")
    (results / "claims/tokens/tiny-dapo-s1/step-1.html").write_text("page")
    assert project(tracked_study) == ALL_RUNS + 1
    runs, client = shown(tracked_study), client_of(tracked_study)
    overview, claims = runs["laptop: tables and figures"], runs["laptop: claims of the papers"]
    paths = {file.path for name in ("tables", "figures") for file in client.list_artifacts(overview.info.run_id, name)}
    assert {"tables/main.md", "tables/main.csv", "figures/scores.png"} <= paths
    main = (results / "tables/main.md").read_text()
    assert overview.data.tags["mlflow.note.content"].strip() and main.startswith(
        overview.data.tags["mlflow.note.content"]
    )
    assert claims.data.tags["mlflow.note.content"] == "# Claims\n\n## Verdicts\n\n| a |\n"
    page = client.download_artifacts(claims.info.run_id, "claims/tokens/tiny-dapo-s1/step-1.html")
    assert Path(page).read_text() == "page"
    assert {"claims/index.html"} <= {file.path for file in client.list_artifacts(claims.info.run_id, "claims")}


def test_a_training_shows_first_responses_with_their_verdicts(tracked_study: Study) -> None:
    results = tracked_study.results
    path = results / "samples/tiny-base/chain_3/samples.jsonl.bz2"
    first, *others = read_jsonl(path)
    write_jsonl(path, [first | {"text": "x" * 5000}, *others])
    shutil.rmtree(results / "samples/tiny-dapo-s2")
    project(tracked_study)
    run, client = shown(tracked_study)["tiny-base"], client_of(tracked_study)
    assert json.loads(run.data.tags["mlflow.loggedArtifacts"]) == [{"path": "responses.json", "type": "table"}]
    content = read_json(Path(client.download_artifacts(run.info.run_id, "responses.json")))
    table = pd.DataFrame(content["data"], columns=content["columns"])
    assert list(table)[:2] == ["problem", "response"]
    assert table["response"][0] == "x" * 4000 + " [... of 5,000 characters]"
    expected = {}
    for benchmark in BENCHMARKS:
        files = [f"problems/{benchmark}/problems.jsonl"]
        files += [f"{kind}/tiny-base/{benchmark}/{kind}.jsonl.bz2" for kind in ("samples", "grades")]
        problems, samples, grades = (read_jsonl(results / name) for name in files)
        for problem in problems[:10]:
            place = [row["problem_id"] for row in samples].index(problem["id"])
            grade = [grades[place][key] for key in ("correct", "answer", "reason")]
            expected[benchmark, problem["id"]] = [problem["problem"], samples[place]["text"], problem["answer"], *grade]
    expected["chain_3", "chain_3-000"][1] = table["response"][0]
    columns = ["problem", "response", "expected", "correct", "answer", "reason"]
    rows = table.set_index(["benchmark", "problem_id"])[columns]
    assert dict(zip(rows.index, rows.to_numpy().tolist(), strict=True)) == expected
    without = client.list_artifacts(shown(tracked_study)["tiny-dapo-s2"].info.run_id)
    assert [file.path for file in without] == ["manifest.json"]


def test_what_changed_is_brought_up_to_date_in_runs_that_stay(tracked_study: Study) -> None:
    project(tracked_study)
    before, client = shown(tracked_study), client_of(tracked_study)
    experiment = client.get_experiment_by_name("laptop").experiment_id
    own = client.create_run(experiment).info.run_id
    client.log_metric(own, "mine", 1.0)
    hidden = client.create_run(experiment).info.run_id
    client.delete_run(hidden)
    others = client.create_experiment("of the user")
    for run in before.values():
        client.set_tag(run.info.run_id, "mine", "a note")
    path, results = tracked_study.results / "runs" / TRAINING / "manifest.json", tracked_study.results
    write_json(path, read_json(path) | {"fingerprint": "f" * 64})
    with open(results / "tables/by_seed.csv", newline="") as lines:
        rows = list(csv.DictReader(lines))
    for row in rows:
        row["average_at_k"] = "0.5" if row["run"] == TRAINING else row["average_at_k"]
    pd.DataFrame(rows).to_csv(results / "tables/by_seed.csv", index=False)
    (results / "checkpoint gone").mkdir()
    shutil.move(results / "runs" / TRAINING / "checkpoint", results / "checkpoint gone")
    for _ in range(2):
        assert project(tracked_study) == ALL_RUNS
        after = shown(tracked_study)
        assert {name: run.info.run_id for name, run in after.items()} == {
            n: run.info.run_id for n, run in before.items()
        }
        assert all(run.data.tags["mine"] == "a note" for run in after.values())
        tags, metrics = after[TRAINING].data.tags, after[TRAINING].data.metrics
        assert tags["fingerprint"] == "f" * 64 and "checkpoint" in before[TRAINING].data.tags.keys() - tags.keys()
        assert {metrics[f"eval/{name}/avg_at_32"] for name in BENCHMARKS} == {50.0}
        assert metrics.keys() == before[TRAINING].data.metrics.keys()
        _assert_steps(tracked_study, after[TRAINING], 8)
    table = client.download_artifacts(after["laptop: tables and figures"].info.run_id, "tables/by_seed.csv")
    assert Path(table).read_bytes() == (results / "tables/by_seed.csv").read_bytes()
    assert client.get_run(own).data.metrics == {"mine": 1.0} and client.get_experiment(others).name == "of the user"
    assert client.get_run(hidden).info.lifecycle_stage == "deleted", "the user may restore it"


def test_a_run_that_was_trained_anew_takes_over_what_the_user_wrote(tracked_study: Study) -> None:
    """MLflow forgets no value of a step: the steps of another training need a run of their own."""
    project(tracked_study)
    before, client = shown(tracked_study), client_of(tracked_study)
    client.set_tag(before[TRAINING].info.run_id, "mine", "a note")
    metrics = tracked_study.results / "runs" / TRAINING / "metrics.parquet"
    pd.read_parquet(metrics).assign(reward_mean=0.25).to_parquet(metrics)
    path = metrics.with_name("manifest.json")
    manifest = read_json(path)
    write_json(path, manifest | {"outputs": manifest["outputs"] | {"metrics.parquet": sha256_file(metrics)}})
    assert project(tracked_study) == ALL_RUNS
    after = shown(tracked_study)
    changed = {name for name, run in after.items() if run.info.run_id != before[name].info.run_id}
    assert changed == {TRAINING, "DelTA"} and after[TRAINING].data.tags["mine"] == "a note"
    _assert_steps(tracked_study, after[TRAINING], 8)
    with pytest.raises(MlflowException, match="not found"):
        client.get_run(before[TRAINING].info.run_id)
    kept = {path.name for path in (tracked_study.results / "mlflow-artifacts").iterdir()}
    assert kept <= {run.info.run_id for run in after.values()}, "files of deleted runs are gone"


@pytest.mark.parametrize("ended_after", [0, 3, 8])
def test_a_killed_projection_ends(tracked_study: Study, monkeypatch: pytest.MonkeyPatch, ended_after: int) -> None:
    project(tracked_study)
    before = shown(tracked_study)
    for path in tracked_study.results.glob("runs/*/manifest.json"):
        write_json(path, read_json(path) | {"fingerprint": "f" * 64})
    log, number = Store.log, iter(range(100))

    def killed(*given: Any, **more: Any) -> str:
        if next(number) == ended_after:
            raise KeyboardInterrupt
        return log(*given, **more)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Store, "log", killed)
        project(tracked_study)
    assert {name: run.data.metrics for name, run in shown(tracked_study).items()} == {
        name: run.data.metrics for name, run in before.items()
    }
    assert project(tracked_study) == ALL_RUNS
    after = shown(tracked_study)
    assert {run.info.run_id for run in after.values()} == {run.info.run_id for run in before.values()}
    assert after[TRAINING].data.tags["fingerprint"] == "f" * 64


def test_a_copied_study_has_an_experiment_of_its_own_and_keeps_the_other(tracked_study: Study, tmp_path: Path) -> None:
    project(tracked_study)
    shutil.copytree(tracked_study.root, tmp_path / "copy")
    copy = Study(tmp_path / "copy")
    assert project(copy) == ALL_RUNS == len(shown(copy)) == len(shown(copy, experiment="laptop, copied, 1"))
    assert (copy.results / "mlflow-artifacts").exists()
    assert client_of(copy).get_experiment_by_name("laptop").artifact_location.startswith(tmp_path.as_uri())


def _begin(study: Study, steps: int) -> None:
    """Leave a run as it is after so many steps; the metrics of all are kept beside the study."""
    directory = study.results / "runs" / TRAINING
    if _metrics(study).exists():
        shutil.copy(_metrics(study), study.root.parent / "metrics.parquet")
        shutil.move(directory / "manifest.json", study.root.parent)
        _metrics(study).unlink()
    manifest = read_json(study.root.parent / "manifest.json")
    frame = pd.read_parquet(study.root.parent / "metrics.parquet")
    write_metrics_so_far(directory, manifest["parameters"], frame[:steps])


def test_a_training_grows_and_its_method_says_how_many_seeds_it_shows(tracked_study: Study) -> None:
    under_way, directory = f"{TRAINING} (under way)", tracked_study.results / "runs" / TRAINING
    with single_writer(directory / "state", "trains this run"):
        for steps in (3, 5):
            _begin(tracked_study, steps)
            assert project(tracked_study) == ALL_RUNS - 1, "no tables before the end"
            runs = shown(tracked_study)
            assert runs[under_way].info.status == "RUNNING" and runs[under_way].info.end_time is None
            _assert_steps(tracked_study, runs[under_way], steps)
            assert runs[under_way].data.params["training.steps"] == "8"
    project(tracked_study)
    runs = shown(tracked_study)
    assert runs[under_way].info.status == "KILLED"
    partial = runs["DelTA (1 of 2 seeds)"]
    assert not [key for key in partial.data.metrics if key.startswith("eval/")] and "DelTA" not in runs
    of_one = client_of(tracked_study).get_metric_history(partial.info.run_id, "train/reward_mean")
    frame = pd.read_parquet(tracked_study.results / "runs/tiny-delta-s1/metrics.parquet")
    assert [point.value for point in of_one] == frame["reward_mean"].tolist()
    for name in ("manifest.json", "metrics.parquet"):
        shutil.copy(tracked_study.root.parent / name, directory)
    remove_metrics_so_far(directory)
    client_of(tracked_study).set_tag(runs[under_way].info.run_id, "mine", "a note")
    assert project(tracked_study) == ALL_RUNS and under_way not in shown(tracked_study)
    after = shown(tracked_study)
    own = {TRAINING: under_way} | {name: name for name in ("tiny-base", "tiny-dapo-s1", "Base model", "GRPO")}
    assert {after[name].info.run_id for name in own} == {runs[name].info.run_id for name in own.values()}
    assert after[TRAINING].data.tags["mine"] == "a note" and after[TRAINING].info.status == "FINISHED"
    _assert_steps(tracked_study, after[TRAINING], 8)
    assert "mlflow.loggedArtifacts" in after[TRAINING].data.tags


def test_a_study_that_grows_keeps_the_scores_that_it_had(tracked_study: Study) -> None:
    """With a seed more, and a table: what is not known meanwhile is shown as it was, in runs that stay."""
    project(tracked_study)
    before, results = shown(tracked_study), tracked_study.results
    aside = tracked_study.root.parent / "by_seed.csv"
    shutil.move(results / "tables/by_seed.csv", aside)
    assert project(tracked_study) == ALL_RUNS
    meanwhile = shown(tracked_study)
    assert {name: run.data.metrics for name, run in meanwhile.items()} == {n: r.data.metrics for n, r in before.items()}
    assert meanwhile["DelTA"].data.tags["all_versus_dapo_verdict"]
    shutil.move(aside, results / "tables")
    (results / "tables/other.md").write_text("| a |")
    for number in (ALL_RUNS, ALL_RUNS):
        assert project(tracked_study) == number
        after = shown(tracked_study)
        assert {name: run.info.run_id for name, run in after.items()} == {n: r.info.run_id for n, r in before.items()}
    (results / "tables/other.md").unlink()
    assert project(tracked_study) == ALL_RUNS
    changed = {name for name, run in shown(tracked_study).items() if run.info.run_id != before[name].info.run_id}
    assert changed == {"laptop: tables and figures"}, "MLflow forgets no file of a run that stays"


def test_a_file_that_cannot_be_read_hides_no_other_and_is_named_each_time(tracked_study: Study) -> None:
    _begin(tracked_study, 3)
    (tracked_study.results / "runs" / TRAINING / "metrics_so_far.parquet").write_text("half")
    for _ in range(2):
        with pytest.raises(UserError, match=r"metrics_so_far\.parquet: is not parquet"):
            project(tracked_study)
        assert len(shown(tracked_study)) == ALL_RUNS - 2
    grades = tracked_study.results / "grades/tiny-dapo-s1/chain_3/grades.jsonl.bz2"
    for name in ("manifest.json", "metrics.parquet"):
        shutil.copy(tracked_study.root.parent / name, tracked_study.results / "runs" / TRAINING)
    write_jsonl(grades, reversed(read_jsonl(grades)))
    with pytest.raises(UserError, match=r"grades\.jsonl\.bz2: has not the samples in their order"):
        project(tracked_study)


def test_the_command_shows_a_named_study_and_says_so(tracked_study: Study, capsys: pytest.CaptureFixture[str]) -> None:
    results = tracked_study.results
    named = results / "studies/small"
    shutil.copytree(results / "tables", named / "tables")
    shutil.copytree(results / "scores", named / "scores")
    for name in ("comparisons.json", "runs.json"):
        shutil.copy(results / name, named)
    write_json(named / "study.json", {"study": "small", "benchmarks": list(BENCHMARKS)})
    track(results, named, named / "tracking.json")
    assert capsys.readouterr().out == f"MLflow runs: {ALL_RUNS}\n"
    assert read_json(named / "tracking.json") == {"runs": ALL_RUNS}
    assert len(shown(tracked_study, experiment="small")) == ALL_RUNS
    assert client_of(tracked_study).get_experiment_by_name("laptop") is None


def test_losing_the_database_loses_nothing(projected: Study, tmp_path: Path) -> None:
    # Elsewhere, for MLflow keeps a deleted database open as long as the process lives.
    shutil.copytree(projected.root, tmp_path / "copy", ignore=shutil.ignore_patterns("mlflow*"))
    assert project(Study(tmp_path / "copy")) == ALL_RUNS
    after = shown(Study(tmp_path / "copy"))
    for name, run in shown(projected).items():
        assert after[name].data.metrics == run.data.metrics and after[name].data.params == run.data.params


def test_usage_reports_are_off() -> None:
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true" and os.environ["DO_NOT_TRACK"] == "true"


# Runs of both engines in one chart: the same metric under the same name, in MLflow as in the files.

RECORDED = Path(__file__).with_name("recorded_verl_metrics.jsonl")
"""Two steps of DelTA by real verl, without the columns of terms that its loss had besides (test_verl_training.py).

tests/engines holds the names to what it writes now.
"""
ONLY_VERL = {
    "groups_whole_fraction",
    "prompts_failed",
    "model_flops_utilisation",
    "tokens_per_second_and_device",
    "seconds_weight_sync",
    "seconds_save",
}
ONLY_LOCAL = {"seconds_reward"}  # verl grades while it samples


def test_both_engines_share_names(make_run: Callable[..., LocalRun], tracked_study: Study, tmp_path: Path) -> None:
    entry = resolve_method("delta", {}, load_catalogue(), "test")
    method = {piece: entry.get(piece) for piece in ("version", *composition().model_fields)}
    directory = tmp_path / "local"
    directory.mkdir()
    local = make_run(training={"steps": 2}, method=method, method_name="delta")
    train(local, directory, Execution(checkpoint_interval=1, lock_wait_seconds=1))
    results = tracked_study.results
    shutil.copy(directory / "metrics.parquet", results / "runs" / "tiny-delta-s1" / "metrics.parquet")
    pd.DataFrame(read_jsonl(RECORDED)).to_parquet(results / "runs" / "tiny-delta-s2" / "metrics.parquet")
    project(tracked_study)
    runs = shown(tracked_study)
    of_local, of_verl = (runs[f"tiny-delta-s{seed}"].data.metrics for seed in (1, 2))
    assert set(of_local) - set(of_verl) == {metric_name(column) for column in ONLY_LOCAL}
    assert set(of_verl) - set(of_local) == {metric_name(column) for column in ONLY_VERL}
    # Not the same numbers, but of one kind: a fraction of one engine is no count of the other.
    for name in set(of_local) & set(of_verl):
        if name.startswith("train/") and name.endswith(("_fraction", "_rate")) and name != "train/learning_rate":
            assert 0 <= of_local[name] <= 1 and 0 <= of_verl[name] <= 1, name
    assert of_verl["train/tokens_generated"] > 100
    assert of_verl["time/seconds_step"] > of_verl["time/seconds_update"] > 0
    assert pd.read_parquet(results / "runs" / "tiny-delta-s2" / "metrics.parquet")["step"].tolist() == [1, 2]
