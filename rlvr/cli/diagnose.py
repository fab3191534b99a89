"""Commands that measure what training does to single tokens, and the papers' claims."""

from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from rlvr.cli.command import Commands
from rlvr.cli.options import Device, Paths, RunFile, Words
from rlvr.diagnostics.claims.base import claim_names

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
TableDirectory = Annotated[Path, Argument(help="directory made by `tokens replay` or `tokens compare`")]


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
    import torch

    from rlvr.diagnostics.replay import write_token_table

    torch.set_num_threads(threads)
    write_token_table(run_file, out, steps, device, grading_workers)


@tokens.add("probe")
def probe(
    table: Annotated[Path, Argument(help="directory made by `tokens replay`, which also takes the result")],
    steps: list[int] = [],
    threads: int = 1,
) -> None:
    """Measure what null, joint, one-sided and head-only updates would do to each token of a table."""
    import torch

    from rlvr.diagnostics.probes import write_probes

    torch.set_num_threads(threads)
    write_probes(table, steps or None)


@tokens.add("compare")
def compare(
    base: Annotated[Path, Option(help="checkpoint directory, before training")],
    trained: Annotated[Path, Option(help="checkpoint directory, after it")],
    problems: Path,
    samples: Annotated[Path, Option(help="samples.jsonl, as `stage sample` writes it")],
    prompt: str,
    out: Annotated[Path, Option(help="directory for tokens.parquet; resumable")],
    grades: Annotated[
        Path | None, Option(help="grades.jsonl of these samples, as `stage grade` writes it: adds rewards")
    ] = None,
    prompt_form: Literal["base", "chat"] = "base",
    temperature: float = 1.0,
    batch_size: int = 16,
    top: Annotated[
        int | None,
        Option(
            metavar="M",
            help="entropies and KL over each model's M likeliest tokens and one remainder: less memory and time; the "
            "error on the first batch is reported; default: the whole vocabulary",
        ),
    ] = None,
    device: Device = "cpu",
    threads: int = 1,
) -> None:
    """Measure what training did to each token of a sample file: any two Hugging Face checkpoints."""
    import torch

    from rlvr.diagnostics.tokens.compare import compare_checkpoints

    torch.set_num_threads(threads)
    compare_checkpoints(
        base, trained, problems, prompt, samples, out, temperature, device, batch_size, top, prompt_form, grades
    )


@tokens.add("show")
def show(
    table: TableDirectory,
    out: Path,
    step: Annotated[int | None, Option(help="one of the steps kept; a comparison has none")] = None,
    problem: Annotated[Words, Option(help="ids; default: the first ones with right and wrong responses")] = [],
    groups: Annotated[int, Option(help="how many problems, where none is named")] = 3,
    responses: Annotated[
        int | None, Option(help="of a comparison: the first so many of each problem; default: all")
    ] = None,
    problem_texts: Annotated[Path | None, Option(help="problems.jsonl, to show what was asked")] = None,
) -> None:
    """Write a token table as text: a page with problems' responses in colour."""
    from rlvr.diagnostics.tokens.view import read_texts, write_page

    texts = read_texts(problem_texts) if problem_texts else {}
    write_page(table, step, problem, groups, responses, texts, out)


@commands.add("contrast")
def contrast(
    run_file: RunFile,
    methods: Annotated[Words, Option(help="entries of the catalogue")],
    steps: Annotated[list[int], Option(help="rollout steps, from 1")],
    out: Annotated[Path, Option(help="directory for contrast.parquet")],
    threads: int = 1,
    device: Device = "cpu",
    grading_workers: int = 1,
) -> None:
    """Measure the angle between the updates that methods and a run's own method give, along the run's training."""
    import torch

    from rlvr.diagnostics.contrast import write_contrast
    from rlvr.study.catalogue import load_catalogue, resolve_method

    torch.set_num_threads(threads)
    entries = {name: resolve_method(name, {}, load_catalogue(), "--methods") for name in methods}
    frame = write_contrast(run_file, entries, steps, out, device, grading_workers)
    degrees = frame.pivot(index="method", columns="step", values="degrees").loc[list(dict.fromkeys(methods))]
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
    threads: int = 1,
) -> None:
    """Measure one of the papers' claims, and draw it: on replayed runs (--tables) or two checkpoints (--comparison)."""
    import torch

    from rlvr.diagnostics.claims.findings import measure_claim
    from rlvr.diagnostics.claims.inputs import Inputs

    torch.set_num_threads(threads)
    inputs = Inputs(
        tables=tables,
        weighting_tables=contrast_tables,
        steps=steps or None,
        results=results,
        runs=runs,
        benchmarks=benchmarks,
        comparison=comparison,
        base_comparison=base_comparison,
    )
    measure_claim(claim, inputs, out, figure)
