"""The cost of a run, from its training metrics and from the benchmark files that Snakemake measures each job into."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

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
    """Of a training on a GPU what it took there, else the largest resident set of its jobs; None if not measured."""


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
    (sampling_seconds, sampling_memory), (grading_seconds, grading_memory) = (
        read_benchmark_file(path) for path in evaluation_files(run, costs)
    )
    evaluation_seconds = None
    if sampling_seconds is not None and grading_seconds is not None:
        sampled = sum(recorded.get("sampling_seconds", 0.0) for recorded in details)
        evaluation_seconds = max(sampled, sampling_seconds) + grading_seconds
    peaks = [recorded["peak_memory_bytes"] / 2**20 for recorded in details if recorded.get("peak_memory_bytes")]
    memory = _largest([*peaks, sampling_memory, grading_memory])
    if run.method == BASE:
        return Cost(None, None, None, None, evaluation_seconds, memory)
    job, metrics = _training_files(run, costs, training)
    training_seconds, training_memory = read_benchmark_file(job)
    memory = _largest([memory, training_memory])
    frame = read_parquet(metrics, columns := ["tokens_generated", "optimizer_steps", "seconds_step"])
    tokens, steps, step_seconds = frame[columns].sum().tolist()
    cpu_seconds = read_cpu_seconds(job)
    if cpu_seconds and training_seconds and training_seconds < step_seconds:
        cpu_seconds *= step_seconds / training_seconds  # both were measured of the last of several processes
    if "peak_memory_bytes" in frame and not metrics.with_name("cluster.json").is_file():  # verl's is of a GPU
        peak, manifest = float(frame["peak_memory_bytes"].max()) / 2**20, metrics.with_name("manifest.json")
        on_gpu = manifest.is_file() and read_manifest(manifest, "run").details.get("device") == "cuda"
        memory = peak if on_gpu else _largest([memory, peak])
    seconds = None if training_seconds is None else max(training_seconds, step_seconds)
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


def read_benchmark_file(path: Path) -> tuple[float | None, float | None]:
    """Read seconds and peak resident mebibytes of a job; of repeated jobs the mean time and the largest memory.

    Of a job that ended before Snakemake sampled its memory, and of a file that was lost or is damaged, they are None.
    """
    jobs = _read_jobs(path, "max_rss")
    seconds = jobs["s"].tolist()
    return (sum(seconds) / len(seconds) if seconds else None), _largest(jobs["max_rss"].dropna().tolist())


def read_cpu_seconds(path: Path) -> float | None:
    """Estimate the CPU seconds of a job from its benchmark file, mean of repeated jobs; None if they were not measured.

    Snakemake looks at a job every half second for 15.5 seconds and every 30 seconds from then on; the time after its
    last look counts as the time before.
    """
    jobs = _read_jobs(path, "cpu_time").dropna()
    seconds = jobs["s"]
    seen = seconds.where(seconds < _EVERY_HALF_SECOND, seconds - (seconds - _EVERY_HALF_SECOND) % _EVERY_SECONDS)
    estimates = jobs["cpu_time"] * seconds / seen
    return float(estimates.mean()) if len(estimates) and (jobs["cpu_time"] > 0).all() else None


def _read_jobs(path: Path, column: str) -> pd.DataFrame:
    """Read the seconds of a benchmark file's jobs, and another column; of a file that is none, no job."""
    try:
        table = pd.read_csv(path, sep="\t", dtype=str, na_values=["-"], index_col=False)
    except (OSError, ValueError):
        table = pd.DataFrame()
    jobs: pd.DataFrame = table.reindex(columns=["s", column]).apply(pd.to_numeric, errors="coerce").astype(float)
    return jobs.dropna(subset="s")


def _largest(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
