import csv
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from evals.core.errors import UserError
from evals.core.manifest import read_manifest
from evals.core.records import conditions_of, read_runs
from evals.results import read_results
from evals.tables.costs import condition_cost, cost_files, read_job, run_cost
from evals.tables.main import write_main_table
from tests.unit.synthetic_results import Study

_HEADER = "s\th:m:s\tmax_rss\tmax_vms\tmax_uss\tmax_pss\tio_in\tio_out\tmean_load\tcpu_time\n"


def _seconds(path: Path) -> float:
    with open(path, newline="") as handle:
        return float(next(csv.DictReader(handle, delimiter="\t"))["s"])


def test_a_seeds_cost_is_the_mean_over_seeds_and_its_evaluation_the_sum_over_jobs(synthetic_study: Study) -> None:
    results = synthetic_study.results
    condition = next(row for row in conditions_of(read_runs(synthetic_study.runs_file)) if row.method == "delta")
    cost = condition_cost(condition, ("chain_3", "nested_sums"), results / "costs", results / "runs")
    runs = ("tiny-delta-s1", "tiny-delta-s2")
    frames = [pd.read_parquet(results / "runs" / run / "metrics.parquet") for run in runs]
    evaluation = sum(
        _seconds(results / "costs" / stage / f"{run}.tsv") for stage in ("sample", "grade") for run in runs
    )
    assert cost.tokens_generated == sum(frame["tokens_generated"].sum() for frame in frames) / 2
    assert cost.optimizer_steps == 16
    training = [_seconds(results / f"costs/train/{run}.tsv") for run in runs]
    assert cost.training_seconds == pytest.approx(sum(training) / 2)
    assert cost.evaluation_seconds == pytest.approx(evaluation / 2)
    assert cost.peak_memory_mebibytes == 540.0


def test_a_resumed_run_is_charged_for_the_steps_of_its_earlier_processes(editable_study: Study) -> None:
    results = editable_study.results
    (results / "costs/train/tiny-delta-s1.tsv").write_text(_HEADER + "2.0\t\t10\t\t\t\t\t\t\t\n")
    run = next(run for run in read_runs(editable_study.runs_file) if run.run == "tiny-delta-s1")
    cost = run_cost(run, ("chain_3",), results / "costs", results / "runs")
    assert cost.training_seconds == pytest.approx(8 * 1.1)
    assert cost.training_cpu_seconds is None
    manifest = results / "runs/tiny-delta-s1/manifest.json"  # of a fork, which Snakemake does not see
    replace(read_manifest(manifest, "run"), details={"cpu_seconds_last_process": 1.5}).write(manifest)
    cost = run_cost(run, ("chain_3",), results / "costs", results / "runs")
    assert cost.training_cpu_seconds == pytest.approx(1.5 * 8 * 1.1 / 2)
    replace(read_manifest(manifest, "run"), details={}).write(manifest)
    (results / "costs/train/tiny-delta-s1.tsv").write_text(_HEADER + "2.0\t\t10\t\t\t\t\t\t\t1.0\n")
    cost = run_cost(run, ("chain_3",), results / "costs", results / "runs")
    assert cost.training_cpu_seconds == pytest.approx(8 * 1.1 / 2)
    metrics = results / "runs/tiny-delta-s1/metrics.parquet"
    frame = pd.read_parquet(metrics)
    frame["peak_memory_bytes"] = [900 * 2**20, *[100 * 2**20] * (len(frame) - 1)]  # two processes
    frame.to_parquet(metrics)
    assert run_cost(run, ("chain_3",), results / "costs", results / "runs").peak_memory_mebibytes == 900
    (metrics.parent / "cluster.json").write_text("{}")  # then it is the memory of GPUs
    assert run_cost(run, ("chain_3",), results / "costs", results / "runs").peak_memory_mebibytes < 900


def test_a_resumed_sampling_is_charged_for_its_earlier_processes(editable_study: Study) -> None:
    """Its benchmark file knows its last process alone."""
    results = editable_study.results
    run = next(run for run in read_runs(editable_study.runs_file) if run.run == "tiny-delta-s1")
    benchmarks = ("chain_3", "nested_sums")
    before = run_cost(run, benchmarks, results / "costs", results / "runs")
    sampling = _seconds(results / "costs/sample/tiny-delta-s1.tsv")
    manifests = [results / f"samples/tiny-delta-s1/{name}/manifest.json" for name in benchmarks]
    assert set(manifests) <= set(cost_files(run, benchmarks, results / "costs", results / "runs"))
    for seconds in (sampling / 4, sampling):  # of each of two benchmarks
        for path in manifests:
            details = {"sampling_seconds": seconds, "peak_memory_bytes": 900 * 2**20}
            replace(read_manifest(path, "samples"), details=details).write(path)
        cost = run_cost(run, benchmarks, results / "costs", results / "runs")
        assert cost.evaluation_seconds == pytest.approx(
            before.evaluation_seconds + max(2 * seconds, sampling) - sampling
        )
        assert cost.peak_memory_mebibytes == 900


def test_the_base_model_costs_its_evaluation_alone(synthetic_study: Study) -> None:
    results = synthetic_study.results
    base = conditions_of(read_runs(synthetic_study.runs_file))[0]
    cost = condition_cost(base, ("chain_3",), results / "costs", results / "runs")
    assert (cost.tokens_generated, cost.optimizer_steps, cost.training_seconds) == (None, None, None)
    assert cost.evaluation_seconds > 0 and cost.peak_memory_mebibytes == 310.0


@pytest.mark.parametrize(
    ("content", "seconds", "memory"),
    [
        (f"{_HEADER}0.2\t0:00:00\tNA\t-\t-\t-\t-\t-\t-\t0\n", 0.2, None),  # Snakemake could not sample it
        (f"{_HEADER}0.2\t0:00:00\t-\t-\t-\t-\t-\t-\t-\t0\n", 0.2, None),
        (f"{_HEADER}1.0\t\t10\t\t\t\t\t\t\t\n3.0\t\t30\t\t\t\t\t\t\t\n", 2.0, 30.0),  # a job that was repeated
        ("s\tmax_rss\n1.0\t2.0\t3.0\n", 1.0, 2.0),  # a value too many moves no other
    ],
)
def test_mean_time_and_largest_memory_count(tmp_path: Path, content: str, seconds: float, memory: float | None) -> None:
    path = tmp_path / "job.tsv"
    path.write_text(content)
    assert read_job(path)[:2] == (seconds, memory)


@pytest.mark.parametrize(
    ("seconds", "measured", "estimate"),
    [("10.0", "8.0", 8.0), ("45.5", "30.0", 30.0), ("60.5", "30.0", 30.0 * 60.5 / 45.5), ("31.0", "15.5", 31.0)],
)
def test_cpu_time_after_the_last_look_counts(tmp_path: Path, seconds: str, measured: str, estimate: float) -> None:
    path = tmp_path / "job.tsv"
    path.write_text(f"s\tmax_rss\tcpu_time\n{seconds}\t1\t{measured}\n")
    assert read_job(path).cpu_seconds == pytest.approx(estimate)
    path.write_text(f"s\tmax_rss\tcpu_time\n{seconds}\t1\tNA\n")
    assert read_job(path).cpu_seconds is None


@pytest.mark.parametrize(
    "content",
    [
        "",
        _HEADER,
        "seconds\n1\n",
        _HEADER.replace("max_rss", "rss") + "1\t\t1\n",
        "s\tmax_rss\n1.0\t2.0\nNA\t2.0\n",
        "s\tmax_rss\none\t2.0\n",
    ],
)
def test_a_file_that_is_no_benchmark_file_has_no_seconds(tmp_path: Path, content: str) -> None:
    path = tmp_path / "job.tsv"
    path.write_text(content)
    assert read_job(path).seconds in ((1.0,) if "NA" in content or "rss\t\t" in content else (None, 1.0))


@pytest.mark.parametrize("damaged", [None, b"", b"\0\xff\tx"])
@pytest.mark.parametrize("stage", ["train", "sample", "grade"])
def test_a_lost_cost_is_a_dash(editable_study: Study, stage: str, damaged: bytes | None) -> None:
    results = editable_study.results
    path = results / f"costs/{stage}/tiny-delta-s1.tsv"
    path.unlink() if damaged is None else path.write_bytes(damaged)
    scores = [results / f"scores/{name}.json" for name in ("chain_3", "nested_sums")]
    read = read_results(editable_study.runs_file, scores, results / "comparisons.json")
    write_main_table(read, results / "costs", results / "runs", [], results / "tables/main")
    rows = {row["method"]: row for row in csv.DictReader((results / "tables/main.csv").read_text().splitlines())}
    lost = ("training_seconds", "training_cpu_seconds") if stage == "train" else ("evaluation_seconds",)
    assert {key for key in rows["delta"] if "seconds" in key and not rows["delta"][key]} >= set(lost)
    assert all(rows["grpo"][key] for key in ("training_seconds", "evaluation_seconds"))
    read_inputs = read_manifest(results / "tables/main.manifest.json", "table").inputs
    assert (path.as_posix() in read_inputs) == (damaged is not None)


def test_missing_metrics_are_named(synthetic_study: Study, tmp_path: Path) -> None:
    condition = conditions_of(read_runs(synthetic_study.runs_file))[1]
    with pytest.raises(UserError, match=r"tiny-grpo-s1/metrics\.parquet: no such file"):
        condition_cost(condition, ("chain_3",), synthetic_study.results / "costs", tmp_path)
