"""Training one run by either engine, and what verl needs before it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from evals.core.files import write_text
from evals.core.run_spec import Execution
from evals.core.sampling import SamplingMachine
from rlvr.cli.command import Commands
from rlvr.cli.options import Paths, RunFile
from rlvr.engines.train_run import read_verl_run

commands = Commands()
verl = Commands(help="Show and check how verl would train a run.")
commands.add_typer(verl, name="verl")

ClusterFile = Annotated[Path | None, Option(help="verl: where it trains; default: cluster.json beside run.json")]
Cluster = Annotated[
    str | None, Option(help="verl: where it trains, a file, or JSON that is written to cluster.json beside run.json")
]
Python = Annotated[str, Option(help="Python of the environment that verl is in; a path is relative to the repository")]


@commands.add("train")
def train(
    run_file: RunFile,
    execution: Execution,
    out: Annotated[Path | None, Option(help="local: directory of the run; default: where run.json is")] = None,
    threads: Annotated[int | None, Option(help="local: number of threads for torch; required")] = None,
    cluster: Cluster = None,
    python: Python = "python",
    checkpoints_at: Annotated[
        list[int],
        Option(help="steps after which the checkpoint is kept too, in checkpoints/step-N of the run's directory"),
    ] = [],
    device_memory: Annotated[
        int | None,
        Option(help="local: memory in MiB of a device that need not be here: print what the run needs on it, and end"),
    ] = None,
) -> None:
    """Train, or continue, one run by the engine that run.json names.

    Exits with status 143 after a SIGTERM, with the state saved. verl's checkpoint is merged into Hugging Face's format.
    """
    from rlvr.engines.train_run import train_run

    if device_memory is not None:
        from evals.core.run_spec import LocalRun
        from rlvr.engines.local.memory import print_sum

        print_sum(LocalRun.read(run_file), execution, device_memory << 20)
        return
    file = None if cluster is None else Path(cluster)
    if cluster is not None and cluster.startswith("{"):
        write_text(file := run_file.with_name("cluster.json"), cluster)
    train_run(run_file, execution, threads, python, checkpoints_at, out, file)


@commands.add("sample")
def sample(
    out: Annotated[Path, Argument(help="directory for the samples, with a subdirectory for each benchmark")],
    checkpoint: Annotated[Path, Argument(help="directory of a run or of a base model")],
    sampling: Annotated[str, Argument(help="JSON: the settings that all benchmarks share, such as temperature")],
    benchmarks: Annotated[
        str, Argument(help="JSON: directory of problems -> its own settings: prompt, samples_per_problem")
    ],
    machine: SamplingMachine,
) -> None:
    """Sample a model on benchmarks, or what is missing of it, as the rule `sample` of a study does.

    The last part of a benchmark's directory is its name. `eval` is the command for a model that exists.
    """
    from evals.core.files import parse_json
    from evals.core.sampling import OfBenchmark, Sampling
    from evals.generation.settings import EvaluationSettings

    shared = Sampling.parse(parse_json(sampling, "SAMPLING"), "SAMPLING")
    settings = {
        Path(problems): EvaluationSettings.of(shared, OfBenchmark.parse(own, f"BENCHMARKS: {problems}"), machine)
        for problems, own in parse_json(benchmarks, "BENCHMARKS").items()
    }
    next(iter(settings.values())).choose_code_paths()
    from evals.generation.checkpoint import Checkpoint
    from evals.generation.evaluate import sample_benchmarks

    sample_benchmarks([Checkpoint.of(checkpoint)], settings, out)


@verl.add("render")
def render(run_file: RunFile, cluster: ClusterFile = None) -> None:
    """Print the complete launch: environment, command and overrides. Needs no verl."""
    from rlvr.engines.verl.launch import launch

    print(launch(*read_verl_run(run_file, cluster)).as_shell(), end="")


@verl.add("validate")
def validate(
    run_files: Annotated[Paths, Argument(help="run.json of one or more runs")], cluster: ClusterFile = None
) -> None:
    """Hold the launch against verl's own configuration and checks, and ours; needs no GPU."""
    from rlvr.engines.verl.checks import check, compose_config
    from rlvr.engines.verl.launch import launch

    for path in run_files:
        run, machines, places = read_verl_run(path, cluster)
        checkpoint = places.study / run.base / "checkpoint"
        there = checkpoint.exists()
        check(run, machines, checkpoint if there else None)
        compose_config(launch(run, machines, places))
        unread = "" if there else f" ({checkpoint} is not there yet: the model itself was not looked at)"
        print(f"{run.run}: verl accepts the launch{unread}")
