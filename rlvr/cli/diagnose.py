"""Commands that measure what training does to single tokens, and the papers' claims."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from evals.core.errors import UserError
from evals.core.files import read_json
from evals.generation import arithmetic
from rlvr.cli.command import Commands
from rlvr.cli.options import Device, Paths, RunFile, Words
from rlvr.diagnostics.checkpoint_contrast import Rollouts
from rlvr.diagnostics.claims.base import claim_names
from rlvr.engines.train_run import is_portable

commands = Commands()
tokens = Commands(help="Tables and pages of what training does to each token.")
commands.add_typer(tokens, name="tokens")

_COMPARISON = "directory made by `tokens compare`, of any two checkpoints: for " + " and ".join(
    claim_names(of_checkpoints=True)
)
_BASE_COMPARISON = (
    "the same checkpoints compared on the base model's samples, --comparison on the trained one's: adds what tells the "
    "two apart (update_direction)"
)


@tokens.add("replay")
def replay(
    run_file: RunFile,
    steps: Annotated[list[int], Option(help="rollout steps, from 1")],
    threads: Annotated[int, Option(help="the run's own, for the same rounding")],
    out: Path,
    device: Device = "cpu",
    grading_workers: int = 1,
) -> None:
    """Replay a finished run and write its token table, and the policy before each step wanted."""
    arithmetic.set_up(threads, is_portable(read_json(run_file), device))
    from rlvr.diagnostics.replay import write_token_table

    write_token_table(run_file, out, steps, device, grading_workers)


@tokens.add("probe")
def probe(
    table: Annotated[Path, Argument(help="directory made by `tokens replay`, which also takes the result")],
    steps: list[int] = [],
    threads: int = 1,
) -> None:
    """Measure what null, joint, one-sided and head-only updates would do to each token of a table."""
    arithmetic.set_up(threads)
    from rlvr.diagnostics.probes import write_probes

    write_probes(table, steps or None)


tokens.call("compare", "rlvr.diagnostics.tokens.compare:compare_checkpoints")
tokens.call("show", "rlvr.diagnostics.tokens.view:write_page", ["table"], {"problems": "problem", "count": "groups"})


@commands.add("contrast")
def contrast(
    source: Annotated[Path, Argument(help="run.json of a run, or the directory of any Hugging Face checkpoint")],
    methods: Annotated[Words, Option(help="entries of the catalogue")],
    out: Annotated[Path, Option(help="directory for contrast.parquet")],
    rollouts: Rollouts,
    steps: Annotated[list[int], Option(help="rollout steps, from 1")] = [1],
    threads: int = 1,
    device: Device = "cpu",
    grading_workers: int = 1,
    problems: Annotated[Path | None, Option(help="checkpoint: JSON lines with id, problem and answer; needed")] = None,
    reference: Annotated[
        str, Option(help="checkpoint: the method that trains it and that others are held to")
    ] = "dapo",
) -> None:
    """Measure the angle between the updates that methods and a reference method give the same policy.

    Of a run, along its training, which is carried out in memory; the reference is the run's own method. Of a
    checkpoint, on rollouts that it samples, trained in memory by --reference. Nothing is written but the angles.
    """
    # Of a run, the digits of its training.
    arithmetic.set_up(threads, source.is_file() and is_portable(read_json(source), device))
    from rlvr.diagnostics.contrast import write_checkpoint_contrast, write_contrast
    from rlvr.study.catalogue import load_catalogue, resolve_method

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


@commands.add("claim")
def claim(
    claim: Annotated[str, Argument(help=f"of the papers: {', '.join(claim_names())}")],
    out: Annotated[Path, Option(help="path of the findings without their ending")],
    figure: Annotated[Path, Option(help="path of the figure without its ending")],
    tables: Annotated[Paths, Option(help="directories made by `tokens replay`")] = [],
    comparison: Annotated[Path | None, Option(help=_COMPARISON)] = None,
    base_comparison: Annotated[Path | None, Option(help=_BASE_COMPARISON)] = None,
    contrast_tables: Annotated[Paths, Option(help="as --tables, of runs of DelTA")] = [],
    steps: list[int] = [],
    results: Path = Path("results"),
    runs: Annotated[Words, Option(help="further runs, whose metrics are read")] = [],
    benchmarks: Annotated[Words, Option(help="benchmarks that evaluation is looked at on")] = [],
    benchmark_problems: Annotated[
        int | None, Option(min=1, help="of the benchmark: the first so many are sampled; default: all")
    ] = None,
    threads: int = 1,
) -> None:
    """Measure one of the papers' claims, and draw it: on replayed runs (--tables) or two checkpoints (--comparison)."""
    arithmetic.set_up(threads)
    from rlvr.diagnostics.claims.claim import measure_claim
    from rlvr.diagnostics.claims.inputs import Inputs

    inputs = Inputs(
        tables=tables,
        weighting_tables=contrast_tables,
        steps=steps or None,
        results=results,
        runs=runs,
        benchmarks=benchmarks,
        benchmark_problems=benchmark_problems,
        comparison=comparison,
        base_comparison=base_comparison,
    )
    measure_claim(claim, inputs, out, figure)
