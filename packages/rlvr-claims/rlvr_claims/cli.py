"""Commands that measure what training does to single tokens, and the papers' claims: ``rlvr-bench claims ...``."""

from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from evals.core.errors import UserError
from evals.core.files import read_json
from evals.core.sampling import SamplingMachine
from evals.generation import arithmetic
from rlvr.cli.command import Commands
from rlvr.cli.options import RunFile, Words
from rlvr.engines.train_run import is_portable
from rlvr_claims.checkpoint_contrast import Rollouts
from rlvr_claims.claims.inputs import Inputs

commands = Commands(help="Measure papers' claims about single tokens: replay, probe, compare; decode with two models.")
app = Commands()
"""What rlvr-bench finds: the group `claims`."""
app.add_typer(commands, name="claims")

Device = Annotated[Literal["cpu", "cuda"], Option(help="device to run on")]
Steps = Annotated[list[int], Option(help="rollout steps, from 1; default: all that were kept")]
Threads = Annotated[int, Option(help="number of threads for torch; for a run, as many as in its training")]
Workers = Annotated[int, Option(help="number of grading processes")]


@commands.add("replay")
def replay(
    run_file: RunFile,
    steps: Annotated[list[int], Option(help="rollout steps, from 1")],
    threads: Annotated[int, Option(help="number of threads of the run's training, for the same rounding")],
    out: Path,
    device: Device = "cpu",
    grading_workers: Workers = 1,
) -> None:
    """Replay a finished run and write its token table, and the policy before each step wanted."""
    arithmetic.set_up(threads, is_portable(read_json(run_file), device))
    from rlvr_claims.replay import write_token_table

    write_token_table(run_file, out, steps, device, grading_workers)


@commands.add("probe")
def probe(
    table: Annotated[Path, Argument(help="directory made by `replay`; the result is written there too")],
    steps: Steps = [],
    threads: Threads = 1,
) -> None:
    """Measure what null, joint, one-sided and head-only updates would do to each token of a table."""
    arithmetic.set_up(threads)
    from rlvr_claims.probes import write_probes

    write_probes(table, steps or None)


commands.call("compare", "rlvr_claims.compare:compare_checkpoints")


@commands.add("contrast")
def contrast(
    source: Annotated[Path, Argument(help="run.json of a run, or the directory of any Hugging Face checkpoint")],
    methods: Annotated[Words, Option(help="entries of the catalogue")],
    out: Annotated[Path, Option(help="directory for contrast.parquet")],
    rollouts: Rollouts,
    steps: Annotated[list[int], Option(help="rollout steps, from 1")] = [1],
    threads: Threads = 1,
    device: Device = "cpu",
    grading_workers: Workers = 1,
    problems: Annotated[
        Path | None, Option(help="checkpoint: JSON lines with id, problem and answer; required")
    ] = None,
    reference: Annotated[
        str, Option(help="checkpoint: the method that trains it, with which the others are compared")
    ] = "dapo",
) -> None:
    """Measure the angle between the updates that methods and a reference method give the same policy.

    Of a run, along its training, which is carried out in memory; the reference is the run's own method. Of a
    checkpoint, on rollouts that it samples, trained in memory by --reference. Nothing is written but the angles.
    """
    # Of a run, the digits of its training.
    arithmetic.set_up(threads, source.is_file() and is_portable(read_json(source), device))
    from rlvr.study.catalogue import load_catalogue, resolve_method
    from rlvr_claims.contrast import write_checkpoint_contrast, write_contrast

    names = list(dict.fromkeys(methods if source.is_file() else [reference, *methods]))
    entries = {name: resolve_method(name, {}, load_catalogue(), "--methods") for name in names}
    if source.is_dir():
        if problems is None:
            raise UserError("--problems: is missing; accepted: a JSON lines file, for a checkpoint")
        frame = write_checkpoint_contrast(
            source, problems, reference, entries, steps, rollouts, out, device, grading_workers
        )
    else:
        frame = write_contrast(source, entries, steps, out, device, grading_workers)
    degrees = frame.pivot(index="method", columns="step", values="degrees").loc[names]
    print(degrees.assign(mean=degrees.mean(axis=1)).round(1).to_string())


@commands.add("measure")
def measure(
    claim: Annotated[str, Argument(help="one of the papers', such as token_flipping; README.md has their table")],
    out: Annotated[Path, Option(help="path of the findings without their ending")],
    figure: Annotated[Path, Option(help="path of the figure without its ending")],
    inputs: Inputs,
    threads: Threads = 1,
) -> None:
    """Measure one of the papers' claims, and draw it: on replayed runs (--tables) or two checkpoints (--comparison)."""
    arithmetic.set_up(threads)
    from rlvr_claims.claims.claim import measure_claim

    measure_claim(claim, inputs, out, figure)


@commands.add("decode")
def decode(
    out: Annotated[Path, Argument(help="directory for the samples, with a subdirectory for each benchmark")],
    base: Annotated[Path, Argument(help="directory of a model, of a base model or of a run")],
    trained: Annotated[Path, Argument(help="the same; prompts and chat template are this one's")],
    sampling: Annotated[str, Argument(help="JSON: the settings that all benchmarks share, such as temperature")],
    benchmarks: Annotated[
        str, Argument(help="JSON: directory of problems -> its own settings: prompt, samples_per_problem")
    ],
    decoding: Annotated[str, Argument(help="JSON: mode, driver, criterion, tau and gamma (docs/decoding.md)")],
    machine: SamplingMachine,
) -> None:
    """Sample two models of one vocabulary that decode together, or what is missing of it."""
    from evals.core.files import parse_json
    from evals.core.sampling import OfBenchmark, Sampling
    from rlvr_claims.decoding import jobs
    from rlvr_claims.decoding.settings import Decoding

    own = {Path(problems): of for problems, of in parse_json(benchmarks, "BENCHMARKS").items()}
    settings = {problems: OfBenchmark.parse(of, f"BENCHMARKS: {problems}") for problems, of in own.items()}
    way = Decoding.parse(parse_json(decoding, "DECODING"), "DECODING")
    shared = Sampling.parse(parse_json(sampling, "SAMPLING"), "SAMPLING")
    jobs.decode((base, trained), shared, settings, machine, way, out)


@commands.add("snakefile")
def snakefile() -> None:
    """Print the path of the workflow that makes all of this, for `snakemake --snakefile`."""
    print(Path(__file__).with_name("workflow") / "Snakefile")
