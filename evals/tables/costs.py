"""The cost of a run, from its training metrics and from the benchmark files that Snakemake measures each job into."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from evals.core.files import read_parquet
from evals.core.manifest import read_manifest
from evals.core.records import BASE, Condition, Run

_EVERY_HALF_SECOND, _EVERY_SECONDS = 15.5, 30.0  # snakemake.benchmark.ScheduledPeriodicTimer, Snakemake 9.27


@dataclass(frozen=True)
class Cost:
    """The cost of one run, or of one seed of a method on average; None for training if there was none, or not measured.

    The benchmark file of a job that was killed and resumed knows its last process alone. Such a training costs the time
    of its steps, such a sampling that of its samples; either has the largest memory that any of its processes found.
    """

    tokens_generated: float | None
    optimizer_steps: float | None
    training_seconds: float | None
    training_cpu_seconds: float | None  # which other jobs do not lengthen; None too where they were not measured
    evaluation_seconds: float | None  # of sampling and grading, on all benchmarks
    peak_memory_mebibytes: float | None
    """The memory that a run took on its GPU, else the largest resident set of its jobs; None if not measured."""


def condition_cost(condition: Condition, benchmarks: Sequence[str], costs: Path, training: Path) -> Cost:
    """Read the mean cost of a seed on some benchmarks; of the memory, the largest over seeds.

    ``costs`` has ``{stage}/...tsv``, one file a job; ``training`` has ``{run}/metrics.parquet``, and ``samples`` beside
    it ``{run}/{benchmark}/manifest.json``.
    """
    per_run = [astuple(run_cost(run, benchmarks, costs, training)) for run in condition.runs]
    *others, memory = zip(*per_run, strict=True)
    means = [None if None in values else sum(values) / len(values) for values in others]
    return Cost(*[*means, _largest(memory)])


def run_cost(run: Run, benchmarks: Sequence[str], costs: Path, training: Path) -> Cost:
    """Read the cost of one run; arguments as for :func:`condition_cost`."""
    details = [read_manifest(path, "samples").details for path in _sample_manifests(run, benchmarks, training)]
    sampling, grading = map(read_job, evaluation_files(run, costs))
    evaluation_seconds = None
    if sampling.seconds is not None and grading.seconds is not None:
        sampled = sum(recorded.get("sampling_seconds", 0.0) for recorded in details)
        evaluation_seconds = max(sampled, sampling.seconds) + grading.seconds
    peaks = [recorded["peak_memory_bytes"] / 2**20 for recorded in details if recorded.get("peak_memory_bytes")]
    memory = _largest([*peaks, sampling.memory, grading.memory])
    if run.method == BASE:
        return Cost(None, None, None, None, evaluation_seconds, memory)
    benchmark_file, metrics = _training_files(run, costs, training)
    job = read_job(benchmark_file)
    memory = _largest([memory, job.memory])
    frame = read_parquet(metrics, columns := ["tokens_generated", "optimizer_steps", "seconds_step"])
    tokens, steps, step_seconds = frame[columns].sum().tolist()
    manifest = metrics.with_name("manifest.json")
    details_of_run = read_manifest(manifest, "run").details if manifest.is_file() else {}
    own_cpu_seconds = details_of_run.get("cpu_seconds_last_process", 0.0)  # Snakemake does not see a server's forks
    cpu_seconds = max(job.cpu_seconds or 0.0, own_cpu_seconds) or None
    if cpu_seconds and job.seconds and job.seconds < step_seconds:
        cpu_seconds *= step_seconds / job.seconds  # both were measured of the last of several processes
    if "peak_memory_bytes" in frame and not metrics.with_name("cluster.json").is_file():  # verl's is of a GPU
        peak = float(frame["peak_memory_bytes"].max()) / 2**20
        memory = peak if details_of_run.get("device") == "cuda" else _largest([memory, peak])
    seconds = None if job.seconds is None else max(job.seconds, step_seconds)
    return Cost(tokens, steps, seconds, cpu_seconds, evaluation_seconds, memory)


def cost_files(run: Run, benchmarks: Sequence[str], costs: Path, training: Path) -> list[Path]:
    """The files that :func:`run_cost` reads; of the measured ones those that are there."""
    training_files = [] if run.method == BASE else _training_files(run, costs, training)
    files = [*_sample_manifests(run, benchmarks, training), *evaluation_files(run, costs), *training_files]
    return [file for file in files if file.is_file() or file.suffix != ".tsv"]


def evaluation_files(run: Run, costs: Path) -> list[Path]:
    """The benchmark files of the jobs that sampled and that graded a run, on all benchmarks of the study."""
    return [costs / stage / f"{run.run}.tsv" for stage in ("sample", "grade")]


def _training_files(run: Run, costs: Path, training: Path) -> list[Path]:
    return [costs / "train" / f"{run.run}.tsv", training / run.run / "metrics.parquet"]


def _sample_manifests(run: Run, benchmarks: Sequence[str], training: Path) -> list[Path]:
    """Those of the samples beside ``training``, as far as they are there."""
    directory = training.parent / "samples" / run.run
    return [path for name in benchmarks if (path := directory / name / "manifest.json").is_file()]


class Job(NamedTuple):
    """The costs of a job that Snakemake measured, None where it did not: the job ended before, or the file was lost."""

    seconds: float | None
    memory: float | None  # largest resident set in mebibytes
    cpu_seconds: float | None


def read_job(path: Path) -> Job:
    """Read the benchmark file of a job; of repeated jobs the mean times and the largest memory.

    Snakemake looks at a job every half second for 15.5 seconds and every 30 seconds from then on; the time after its
    last look counts as the time before.
    """
    try:
        table = pd.read_csv(path, sep="\t", dtype=str, na_values=["-"], index_col=False)
    except (OSError, ValueError):
        table = pd.DataFrame()
    measured = table.reindex(columns=["s", "max_rss", "cpu_time"]).apply(pd.to_numeric, errors="coerce")
    jobs = measured.astype(float).dropna(subset="s")
    all_seconds, looked_at = jobs["s"].tolist(), jobs.dropna(subset="cpu_time")
    seconds, cpu = looked_at["s"], looked_at["cpu_time"]
    seen = seconds.where(seconds < _EVERY_HALF_SECOND, seconds - (seconds - _EVERY_HALF_SECOND) % _EVERY_SECONDS)
    return Job(
        sum(all_seconds) / len(all_seconds) if all_seconds else None,
        _largest(jobs["max_rss"].dropna().tolist()),
        float((cpu * seconds / seen).mean()) if len(cpu) and (cpu > 0).all() else None,
    )


def _largest(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
